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
		{Format: "iptables", File: "iptables.rules", Load: iptables.Load(ir.IPv4, "iptables.rules"), Write: x.rules(ir.IPv4)},
		{Format: "ip6tables", File: "ip6tables.rules", Load: iptables.Load(ir.IPv6, "ip6tables.rules"), Write: x.rules(ir.IPv6)},
		{Format: "listeners", File: "userspace-listeners.json",
			Note:  "No command loads it: it lists the ports to which the rules send connections, for a proxy process that listens on them and connects each client to a backend.",
			Write: func(w io.Writer) error { return WriteListeners(w, x.PerFamily) }},
	}
}

func (x rendered) rules(f ir.Family) func(io.Writer) error {
	return func(w io.Writer) error {
		if r := x.Of(f); r != nil {
			return r.WriteRules(w)
		}
		return nil
	}
}

// Explain yields the rules of each family, and then its listeners with their
// backends.
func (x rendered) Explain(yield func(render.Entry) bool) {
	for _, r := range ir.Present(x.PerFamily) {
		if !r.Rules.Explain(yield) || !r.explain(yield) {
			return
		}
	}
}

func (r *Ruleset) explain(yield func(render.Entry) bool) bool {
	for i := range r.Listeners {
		l := &r.Listeners[i]
		where := l.Object()
		if !yield(render.Entry{Where: where, Port: l.Port, Origin: l.Origin}) {
			return false
		}
		for j, b := range l.Backends {
			if !yield(render.Entry{Where: where + " -> " + b.String(), Port: l.Port, Origin: l.origins[j]}) {
				return false
			}
		}
	}
	for _, name := range r.Unserved {
		o := ir.Origin{Object: "config", Field: "portRange", Reason: "no port left: not served"}
		if !yield(render.Entry{Where: "listener", Port: name, Origin: o}) {
			return false
		}
	}
	return true
}
