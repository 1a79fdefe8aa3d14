package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

type traceCmd struct {
	input

	From   string `required:"" placeholder:"SOURCE" help:"Who sends: pod:NAMESPACE/NAME, node, or IP[@INTERFACE]."`
	To     string `required:"" placeholder:"IP:PORT/PROTO" help:"To what; /tcp if no protocol is given."`
	Output string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
}

func (c *traceCmd) Run(e *env) error {
	job, err := c.load(e)
	if err != nil {
		return err
	}
	programs := job.compile()
	pkt, err := packet(job.snap, programs, c.From, c.To)
	if err != nil {
		return job.finish(e, err)
	}
	t := trace(programs, pkt)
	write := t.writeText
	if c.Output == "json" {
		write = t.writeJSON
	}
	return job.finish(e, write(e.stdout))
}

// outside is the name of the interface by which a packet is taken to come in
// when nothing tells.
const outside = "eth0"

// packet reads the --from and --to of a trace.
func packet(snap *snapshot.Snapshot, programs ir.Programs, from, to string) (sim.Packet, error) {
	// The destination alone tells the family, which a pod or node needs.
	any4, any6 := "0.0.0.0", "::"
	pkt, err := sim.ParsePacket(any4, to)
	if err != nil {
		if pkt, err = sim.ParsePacket(any6, to); err != nil {
			return pkt, fmt.Errorf("--to: %w", err)
		}
	}
	p := programFor(programs, pkt.Dst)
	node := &p.Node
	if pod, ok := strings.CutPrefix(from, "pod:"); ok {
		pkt.Src, pkt.In, err = podSource(snap, p, pod)
	} else if from == "node" {
		pkt.Src, err = nodeSource(node, pkt.Dst)
	} else {
		pkt.Src, pkt.In, err = addrSource(node, from)
	}
	if err == nil && !p.Family.Has(pkt.Src) {
		err = fmt.Errorf("source %s and destination %s are of different families", pkt.Src, pkt.Dst)
	}
	if err != nil {
		return pkt, fmt.Errorf("--from: %w", err)
	}
	return pkt, nil
}

// addrSource reads IP or IP@INTERFACE, an IPv6 address with brackets or without.
func addrSource(node *ir.Node, from string) (netip.Addr, string, error) {
	text, in, _ := strings.Cut(from, "@")
	if t, ok := strings.CutPrefix(text, "["); ok {
		text = strings.TrimSuffix(t, "]")
	}
	src, err := netip.ParseAddr(text)
	if err != nil {
		return src, "", fmt.Errorf("must be pod:NAMESPACE/NAME, node, IP or IP@INTERFACE, got %q", from)
	}
	if in == "" && !node.HasAddr(src) {
		in = outside
	}
	return src, in, nil
}

func programFor(programs ir.Programs, addr netip.Addr) *ir.Program {
	return programs.Of(ir.FamilyOf(addr))
}

// nodeSource is the address from which the node itself sends: the destination
// when that is its own, as the kernel does for loopback, else its primary one.
func nodeSource(node *ir.Node, dst netip.Addr) (netip.Addr, error) {
	switch {
	case node.HasAddr(dst):
		return dst, nil
	case node.IP.IsValid():
		return node.IP, nil
	}
	return netip.Addr{}, fmt.Errorf("node %q has no address of the family of %s in the snapshot; give IP", node.Name, dst)
}

// podSource finds the address of a pod through the EndpointSlices that name
// it, and the interface by which its packets reach the node's rules.
func podSource(snap *snapshot.Snapshot, p *ir.Program, pod string) (netip.Addr, string, error) {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok || namespace == "" || name == "" {
		return netip.Addr{}, "", fmt.Errorf("must be pod:NAMESPACE/NAME, got %q", "pod:"+pod)
	}
	addr, nodeName, ok := snap.Pod(ir.Name{Namespace: namespace, Name: name}, p.Family)
	if !ok {
		return addr, "", fmt.Errorf("no EndpointSlice of the snapshot has an %s address of Pod %s/%s; give IP@INTERFACE", p.Family, namespace, name)
	}
	if p.Node.HasAddr(addr) {
		return addr, "", nil // host network
	}
	return addr, podInterface(&p.Node, nodeName), nil
}

// podInterface is where packets of a pod come in: what the detector looks for
// if the pod runs here.
func podInterface(node *ir.Node, nodeName string) string {
	if nodeName != node.Name {
		return outside
	}
	switch d := &node.Detector; d.Mode {
	case ir.DetectInterface:
		return d.Interface
	case ir.DetectPrefix:
		return d.Interface + "0"
	}
	return "pod"
}

// traced is the course of one packet.
type traced struct {
	pkt     sim.Packet
	outcome sim.Outcome
	steps   []sim.Step
}

func trace(programs ir.Programs, pkt sim.Packet) traced {
	outcome, steps := sim.Explain(programFor(programs, pkt.Dst), pkt)
	return traced{pkt, outcome, steps}
}

func (t traced) source() string {
	if t.pkt.FromNode() {
		return t.pkt.Src.String() + " (the node)"
	}
	return t.pkt.Src.String() + "@" + t.pkt.In
}

func (t traced) destination() string {
	return ir.Match{Addr: t.pkt.Dst, Protocol: t.pkt.Protocol, Port: t.pkt.Port}.String()
}

func (t traced) writeText(w io.Writer) error {
	return buffered(w, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s -> %s\n", t.source(), t.destination())
		for i, s := range t.steps {
			line := fmt.Sprintf("%3d. %s", i+1, s.Text)
			if s.Origin != (ir.Origin{}) {
				line = fmt.Sprintf("%-72s # %s", line, s.Origin)
			}
			_, writing := fmt.Fprintln(w, line)
			err = errors.Join(err, writing)
		}
		_, writing := fmt.Fprintf(w, "  => %s\n", t.outcome)
		return errors.Join(err, writing)
	})
}

type traceJSON struct {
	From         string            `json:"from"`
	Interface    string            `json:"interface,omitempty"`
	To           string            `json:"to"`
	Steps        []sim.Step        `json:"steps"`
	Fate         string            `json:"fate"`
	Destinations []destinationJSON `json:"destinations,omitempty"`
	Affinity     bool              `json:"affinity,omitempty"`
}

type destinationJSON struct {
	Address    netip.AddrPort `json:"address"`
	Masquerade bool           `json:"masquerade"`
}

func (t traced) writeJSON(w io.Writer) error {
	out := traceJSON{
		From:      t.pkt.Src.String(),
		Interface: t.pkt.In,
		To:        t.destination(),
		Steps:     t.steps,
		Fate:      t.outcome.Fate.String(),
		Affinity:  t.outcome.Affinity,
	}
	for _, d := range t.outcome.Destinations {
		out.Destinations = append(out.Destinations, destinationJSON{d.AddrPort, d.SNAT})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}
