package sim

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// behind returns the fate of a packet that was translated to a backend, in modes
// whose filter rules match it again with the backend as destination (PKT-20). It
// is Accepted, or the verdict of the rules that reject untranslated packets. It
// is the same for all sources, because every source with a route is translated.
// marked reports whether the packet has the masquerade mark by then.
func (t *tracer) behind(to netip.AddrPort, marked bool) Fate {
	if !t.caps.Has(ir.FiltersTranslated) {
		return Accepted
	}
	m := ir.Match{Addr: to.Addr(), Protocol: t.pkt.Protocol, Port: to.Port()}
	_, f := t.find(m)
	local := t.own.Has(m.Addr)
	if f != nil && t.caps.Has(ir.GuardsTranslated) && len(f.SourceRanges) > 0 && t.usable(f) {
		t.step(ir.Origin{Object: f.SourceRanges[0].Origin.Object, Field: "spec.loadBalancerSourceRanges"},
			"%s is the %s of %s, whose source ranges admit no translated packet: dropped", m, f.Kind, f.Port)
		return Dropped
	}
	if marked && !local && !t.pkt.FromNode() && t.caps.Has(ir.ForwardsMarked) {
		return Accepted
	}
	u := tracer{Evaluator: t.Evaluator, pkt: t.pkt, explain: t.explain, translated: true}
	u.pkt.Dst, u.pkt.Port = m.Addr, m.Port
	fate := u.refusal(f, local)
	if t.explain {
		t.steps = append(t.steps, u.steps...)
	}
	if fate == NotOurs {
		return Accepted
	}
	return fate
}

// usable reports whether some packet can match a route of the frontend.
func (t *tracer) usable(f *ir.Frontend) bool {
	detects := t.program.Node.Detector.Mode != ir.DetectNone
	return slices.ContainsFunc(f.Routes, func(r ir.Route) bool { return r.From != ir.Pods || detects })
}

// refusal returns the fate of a packet that was translated to its destination, or
// NotOurs if nothing rejects it. f is the frontend of that destination; it may be
// nil.
func (t *tracer) refusal(f *ir.Frontend, local bool) Fate {
	if f != nil && ir.RoutesAll(f.Routes) {
		f = nil
	}
	if local {
		_, port := t.find(ir.Match{Protocol: t.pkt.Protocol, Port: t.pkt.Port})
		if port != nil && !ir.RoutesAll(port.Routes) && (t.caps.Has(ir.EmptyNodePortAnyAddr) || t.program.Node.NodePorts.Has(t.pkt.Dst, true)) {
			if f == nil {
				f = port
			} else {
				f = t.refusing(f, port)
			}
		}
	}
	if f != nil {
		t.step(f.Origin, "%s, the new destination, is the %s of %s", f.Match, f.Kind, f.Port)
		if o := t.noRoute(f); o.Fate != NotOurs {
			return o.Fate
		}
	}
	return t.unallocated(local)
}

// because returns the step of a backend, with the reason why it is refused.
func because(b *ir.Backend, why []Step) Step {
	texts := make([]string, len(why))
	for i := range why {
		texts[i] = why[i].Text
	}
	s := Step{b.AddrPort.String(), b.Origin}
	s.Origin.Reason = strings.Join(texts, "; ")
	return s
}

// withRefused adds the refused backends to the chances of an outcome.
func (t *tracer) withRefused(o Outcome) Outcome {
	var all []Chance
	for _, r := range t.refused {
		all = append(all, Chance{Fate: r.fate, Weight: 1, Choice: o.Choice})
	}
	for _, d := range o.Destinations {
		all = append(all, Chance{Fate: Accepted, Destination: d, Weight: 1, Choice: o.Choice})
	}
	mixed := Shared(all)
	if len(o.Destinations) > 0 {
		mixed.Affinity, mixed.Timeout = o.Affinity, o.Timeout
	}
	return mixed
}
