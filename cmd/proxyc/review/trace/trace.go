// Package trace follows a packet through the meaning of the IR, and prints its path step by step.
package trace

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Trace is the path of one packet.
type Trace struct {
	Packet     sim.Packet // the packet as sent
	Outcome    sim.Outcome
	Steps      []sim.Step
	hindrances []Hindrance // conditions that keep the packet from being served
	unknown    bool        // the fate depends on unknown facts
}

// addStep adds a step that no rule causes.
func (t *Trace) addStep(o ir.Origin, format string, args ...any) {
	t.Steps = append(t.Steps, sim.Step{Text: fmt.Sprintf(format, args...), Origin: o})
}

// fate returns the outcome as one word.
func (t *Trace) fate() string {
	if t.unknown {
		return "not known offline"
	}
	return t.Outcome.Fate.String()
}

// result returns the outcome as one line.
func (t *Trace) result() string {
	if t.unknown {
		return t.fate()
	}
	return t.Outcome.String()
}

// SenderOf returns the address, port and interface of a packet's sender as text.
func SenderOf(pkt sim.Packet) string {
	src := pkt.Src.String()
	if pkt.SrcPort != 0 {
		src = netip.AddrPortFrom(pkt.Src, pkt.SrcPort).String()
	}
	if pkt.FromNode() {
		return src + " (the node)"
	}
	return src + "@" + pkt.In
}

// DestinationOf returns the destination of a packet as IP:PORT/PROTO.
func DestinationOf(pkt sim.Packet) string {
	return ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port}.String()
}

// line returns one line of a trace: the text, followed by its source.
func line(indent string, s sim.Step) string {
	if s.Origin == (ir.Origin{}) {
		return indent + s.Text
	}
	return fmt.Sprintf("%-72s # %s", indent+s.Text, s.Origin)
}

// WriteText writes the steps, the outcome, and the conditions that keep the packet from being
// served.
func (t *Trace) WriteText(w io.Writer) error {
	return review.Buffered(w, func(w io.Writer) error {
		_, err := io.WriteString(w, t.Text())
		return err
	})
}

// Text returns the output of WriteText.
func (t *Trace) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s\n", SenderOf(t.Packet), DestinationOf(t.Packet))
	for i, s := range t.Steps {
		fmt.Fprintln(&b, line(fmt.Sprintf("%3d. ", i+1), s))
	}
	fmt.Fprintf(&b, "  => %s\n", t.result())
	b.WriteString(Required(t.hindrances))
	return b.String()
}

// Required returns as text what is required for a packet to be served; "" if it is.
func Required(list []Hindrance) string {
	var b strings.Builder
	if len(list) > 0 {
		fmt.Fprintf(&b, "  required for it to be served:\n")
	}
	for _, h := range list {
		fmt.Fprintln(&b, line("   - ", h.Step))
		for _, near := range h.Near {
			fmt.Fprintln(&b, line("       ", near))
		}
	}
	return b.String()
}

// TraceJSON is the document that WriteJSON writes of a Trace.
type TraceJSON struct {
	From         string            `json:"from"`
	Port         uint16            `json:"port,omitempty"` // source port
	Interface    string            `json:"interface,omitempty"`
	To           string            `json:"to"`
	Steps        []sim.Step        `json:"steps"`
	Fate         string            `json:"fate"`
	Others       []string          `json:"others,omitempty"` // other possible fates, chosen at random
	Destinations []DestinationJSON `json:"destinations,omitempty"`
	Affinity     bool              `json:"affinity,omitempty"`
	Choice       string            `json:"choice,omitempty"` // how the client chooses among destinations
	Hindrances   []Hindrance       `json:"hindrances,omitempty"`
	Expect       string            `json:"expect,omitempty"`
	Met          *bool             `json:"met,omitempty"` // set only with Expect
}

// DestinationJSON is a backend that can receive the packet.
type DestinationJSON struct {
	Address    netip.AddrPort `json:"address"`
	Masquerade bool           `json:"masquerade"`
}

// json returns the JSON form of the Trace.
func (t *Trace) json() TraceJSON {
	out := TraceJSON{
		From:       t.Packet.Src.String(),
		Port:       t.Packet.SrcPort,
		Interface:  t.Packet.In,
		To:         DestinationOf(t.Packet),
		Steps:      append([]sim.Step{}, t.Steps...),
		Fate:       t.fate(),
		Affinity:   t.Outcome.Affinity,
		Choice:     t.Outcome.Choice,
		Hindrances: t.hindrances,
	}
	for _, e := range t.Outcome.Fallback {
		out.Others = append(out.Others, e.Fate.String())
	}
	for _, d := range t.Outcome.Destinations {
		out.Destinations = append(out.Destinations, DestinationJSON{d.AddrPort, d.SNAT})
	}
	return out
}

// NodeOf returns the node of a sender, as far as a snapshot has it; "" for other senders.
func NodeOf(from string, snap *snapshot.Snapshot) string {
	if name, ok := strings.CutPrefix(from, "node:"); ok && snap.Node(name) != nil {
		return name
	}
	text, _, _ := strings.Cut(from, "@")
	if addr, err := netip.ParseAddr(text); err == nil {
		for _, n := range snap.Nodes() {
			if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) }) {
				return n.Name
			}
		}
	}
	name, ok := strings.CutPrefix(from, "pod:")
	namespace, name, both := strings.Cut(name, "/")
	if !ok || !both {
		return ""
	}
	for _, f := range ir.Families() {
		if _, node, ok := snap.Pod(ir.Name{Namespace: namespace, Name: name}, f); ok && node != "" {
			return node
		}
	}
	return ""
}
