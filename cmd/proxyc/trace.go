package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

type traceCmd struct {
	source
	namespaceFlag

	From    string  `placeholder:"SOURCE" help:"Who sends: pod:NAMESPACE/NAME, node (this one), node:NAME, or IP[:PORT][@INTERFACE]; without INTERFACE the one in whose network the address is, or eth0 where nothing tells. The PORT counts where a Maglev table chooses."`
	To      string  `placeholder:"DESTINATION" help:"To what: IP:PORT[/PROTO], NAMESPACE/NAME:PORT[/PROTO] or the DNS name of a Service with PORT, by name or number; tcp if no protocol is given."`
	Expect  *string `placeholder:"FATE" help:"What is to become of the packet: accepted, rejected, dropped, \"not ours\", or all its backends as they are printed; exit 1 if it is something else."`
	Packets string  `placeholder:"FILE" help:"Trace many packets: lines of JSON with from, to and, if it is to be checked, expect. - for standard input."`
	Kernel  bool    `help:"Walk the rules that this node's kernel really holds, those of others included as far as they are understood, and tell where they depart from what is wanted; exit 1 if they do. Needs root, and the tool nft for tables of others."`
	Variant string  `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Which iptables --kernel reads; auto is the one that the node uses."`
	Output  string  `short:"o" enum:"text,json" default:"text" help:"Output: text or json; with --packets a line of JSON each."`
}

func (c *traceCmd) Run(e *env, k *kong.Context) error {
	if err := errors.Join(c.check(), c.source.check(k)); err != nil {
		return err
	}
	c.From, c.To = c.pod(c.From), c.service(c.To)
	if c.Kernel {
		return c.kernel(e)
	}
	wanted := []expectation{{From: c.From, To: c.To, Expect: c.Expect}}
	var unread error
	if c.Packets != "" {
		if err := oneStdin(append(c.names(), c.IR, c.Packets)...); err != nil {
			return err
		}
		if wanted, unread = e.readPackets(c.Packets, int64(c.Limit)); len(wanted) == 0 {
			return unread
		}
		for i := range wanted {
			wanted[i].From, wanted[i].To = c.pod(wanted[i].From), c.service(wanted[i].To)
		}
	}
	job, programs, err := c.programs(e)
	if err != nil {
		if unread != nil {
			fmt.Fprintf(e.stderr, "proxyc: %s\n", unread)
		}
		return err
	}
	results, failed := job.scene(programs).traceAll(wanted)
	failed = errors.Join(unread, failed)
	if failed != nil && len(results) == 0 {
		return job.finish(e, failed)
	}
	write := func(w io.Writer) error { return writeTraces(w, results, c.Packets != "") }
	if c.Output == "json" {
		write = func(w io.Writer) error { return writeTracesJSON(w, results, c.Packets != "") }
	}
	if err := job.finish(e, errors.Join(buffered(e.stdout, write), failed)); err != nil {
		return err
	}
	for i := range results {
		if !results[i].met() {
			return errFindings
		}
	}
	return nil
}

// check refuses flags that do not go together.
func (c *traceCmd) check() error {
	switch {
	case c.Packets != "" && (c.From+c.To != "" || c.Expect != nil):
		return errors.New("--packets: has --from, --to and --expect of its own in each line")
	case c.Kernel && (c.Packets != "" || c.Expect != nil):
		return errors.New("--kernel: not together with --packets and --expect: what is wanted is expected of it")
	case c.Packets != "":
		return nil
	case c.From == "" && c.To == "":
		return errors.New("missing flags: --from=SOURCE, --to=DESTINATION, or --packets=FILE")
	case c.From == "":
		return errors.New("missing flags: --from=SOURCE")
	case c.To == "":
		return errors.New("missing flags: --to=DESTINATION")
	}
	return expectation{Expect: c.Expect}.check()
}

// traced is the course of one packet.
type traced struct {
	pkt        sim.Packet // where it begins
	outcome    sim.Outcome
	steps      []sim.Step
	hindrances []hindrance // what would have to be otherwise for it to pass
	unknown    bool        // the outcome depends on what is not known
}

// tell adds a step that no rule makes.
func (t *traced) tell(o ir.Origin, format string, args ...any) {
	t.steps = append(t.steps, sim.Step{Text: fmt.Sprintf(format, args...), Origin: o})
}

// fate returns the outcome in a word.
func (t *traced) fate() string {
	if t.unknown {
		return "not known offline"
	}
	return t.outcome.Fate.String()
}

// result returns the outcome in one line.
func (t *traced) result() string {
	if t.unknown {
		return t.fate()
	}
	return t.outcome.String()
}

func (t *traced) sender() string {
	src := t.pkt.Src.String()
	if t.pkt.SrcPort != 0 {
		src = netip.AddrPortFrom(t.pkt.Src, t.pkt.SrcPort).String()
	}
	if t.pkt.FromNode() {
		return src + " (the node)"
	}
	return src + "@" + t.pkt.In
}

func (t *traced) destination() string {
	return ir.Match{Addr: t.pkt.Dst, Protocol: t.pkt.Protocol, Port: t.pkt.Port}.String()
}

// line is a line of a trace: text, and behind it where that comes from.
func line(indent string, s sim.Step) string {
	if s.Origin == (ir.Origin{}) {
		return indent + s.Text
	}
	return fmt.Sprintf("%-72s # %s", indent+s.Text, s.Origin)
}

func (t *traced) writeText(w io.Writer) error {
	return buffered(w, func(w io.Writer) error {
		_, err := io.WriteString(w, t.text())
		return err
	})
}

// text returns the steps, the outcome, and what would have to be otherwise.
func (t *traced) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s\n", t.sender(), t.destination())
	for i, s := range t.steps {
		fmt.Fprintln(&b, line(fmt.Sprintf("%3d. ", i+1), s))
	}
	fmt.Fprintf(&b, "  => %s\n", t.result())
	if len(t.hindrances) > 0 {
		fmt.Fprintf(&b, "  for it to pass:\n")
	}
	for _, h := range t.hindrances {
		fmt.Fprintln(&b, line("   - ", h.Step))
		for _, near := range h.Near {
			fmt.Fprintln(&b, line("       ", near))
		}
	}
	return b.String()
}

type traceJSON struct {
	From         string            `json:"from"`
	Port         uint16            `json:"port,omitempty"` // of From
	Interface    string            `json:"interface,omitempty"`
	To           string            `json:"to"`
	Steps        []sim.Step        `json:"steps"`
	Fate         string            `json:"fate"`
	Others       []string          `json:"others,omitempty"` // fates that chance may bring instead
	Destinations []destinationJSON `json:"destinations,omitempty"`
	Affinity     bool              `json:"affinity,omitempty"`
	Choice       string            `json:"choice,omitempty"` // how the client chooses among destinations
	Hindrances   []hindrance       `json:"hindrances,omitempty"`
	Expect       string            `json:"expect,omitempty"`
	Met          *bool             `json:"met,omitempty"` // with Expect
}

type destinationJSON struct {
	Address    netip.AddrPort `json:"address"`
	Masquerade bool           `json:"masquerade"`
}

// json returns the form that is written as JSON.
func (t *traced) json() traceJSON {
	out := traceJSON{
		From:       t.pkt.Src.String(),
		Port:       t.pkt.SrcPort,
		Interface:  t.pkt.In,
		To:         t.destination(),
		Steps:      append([]sim.Step{}, t.steps...),
		Fate:       t.fate(),
		Affinity:   t.outcome.Affinity,
		Choice:     t.outcome.Choice,
		Hindrances: t.hindrances,
	}
	for _, e := range t.outcome.Else {
		out.Others = append(out.Others, e.Fate.String())
	}
	for _, d := range t.outcome.Destinations {
		out.Destinations = append(out.Destinations, destinationJSON{d.AddrPort, d.SNAT})
	}
	return out
}

func (t *traced) writeJSON(w io.Writer) error { return writeDocument(w, "Trace", "  ", t.json()) }
