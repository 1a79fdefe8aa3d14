package userspace

import (
	"io"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/iptables"
)

// LowerAll returns the lowered Programs of a node.
func LowerAll(programs ir.Programs) render.Rendered { return rendered{render.Each(programs, Lower)} }

// rendered are the Rulesets of one node.
type rendered struct{ ir.PerFamily[*Ruleset] }

// Outputs returns the rules of each family, and the listeners of both.
func (x rendered) Outputs() []render.Output {
	return []render.Output{
		iptables.Output(ir.IPv4, render.Writer(x.PerFamily, (*Ruleset).WriteRules, ir.IPv4)),
		iptables.Output(ir.IPv6, render.Writer(x.PerFamily, (*Ruleset).WriteRules, ir.IPv6)),
		{Format: "listeners", File: "userspace-listeners.json",
			Note:  "No command loads it: it lists the ports to which the rules send connections, for a proxy process that listens on them and connects each client to a backend.",
			Write: func(w io.Writer) error { return WriteListeners(w, x.PerFamily) }},
	}
}

// Explain adds the rules of each family, and then its listeners with their
// backends.
func (x rendered) Explain(add func(render.Entry)) {
	for _, r := range ir.Present(x.PerFamily) {
		r.Rules.Explain(add)
		r.explain(add)
	}
}

func (r *Ruleset) explain(add func(render.Entry)) {
	for i := range r.Listeners {
		l := &r.Listeners[i]
		where := l.Object()
		add(render.Entry{Where: where, Port: l.Port, Origin: l.Origin})
		for j, b := range l.Backends {
			add(render.Entry{Where: where + " -> " + b.String(), Port: l.Port, Origin: l.origins[j]})
		}
	}
	for _, name := range r.Unserved {
		o := ir.Origin{Object: "config", Field: "portRange", Reason: "no port left: not served"}
		add(render.Entry{Where: "listener", Port: name, Origin: o})
	}
}
