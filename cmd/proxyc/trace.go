package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

type traceCmd struct {
	input

	From   string `required:"" placeholder:"SOURCE" help:"Who sends: pod:NAMESPACE/NAME, node, or IP[@INTERFACE]; without INTERFACE the one in whose network the address is, or eth0 where nothing tells."`
	To     string `required:"" placeholder:"IP:PORT/PROTO" help:"To what; /tcp if no protocol is given."`
	Output string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
}

func (c *traceCmd) Run(e *env) error {
	job, err := c.load(e)
	if err != nil {
		return err
	}
	t, err := job.scene(job.compile()).trace(c.From, c.To)
	if err != nil {
		return job.finish(e, err)
	}
	write := t.writeText
	if c.Output == "json" {
		write = t.writeJSON
	}
	return job.finish(e, write(e.stdout))
}

// traced is the course of one packet.
type traced struct {
	pkt     sim.Packet // where it begins
	outcome sim.Outcome
	steps   []sim.Step
	unknown bool // the outcome depends on what is not known
}

// tell adds a step that no rule makes.
func (t *traced) tell(o ir.Origin, format string, args ...any) {
	t.steps = append(t.steps, sim.Step{Text: fmt.Sprintf(format, args...), Origin: o})
}

// fate returns the outcome in a word.
func (t traced) fate() string {
	if t.unknown {
		return "not known offline"
	}
	return t.outcome.Fate.String()
}

// result returns the outcome in one line.
func (t traced) result() string {
	if t.unknown {
		return t.fate()
	}
	return t.outcome.String()
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
		_, writing := fmt.Fprintf(w, "  => %s\n", t.result())
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
		Fate:      t.fate(),
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
