package ipvs

import (
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/iptables"
)

// LowerAll returns the lowered Programs of a node.
func LowerAll(programs ir.Programs) render.Rendered { return rendered{render.Each(programs, Lower)} }

// rendered are the Rulesets of one node.
type rendered struct{ ir.PerFamily[*Ruleset] }

// Outputs returns the texts. Formats that do not separate families contain both.
func (x rendered) Outputs() []render.Output {
	return []render.Output{
		{Format: "ipvsadm", File: "ipvsadm.rules", Load: "ipvsadm -R <ipvsadm.rules",
			Note:  "It needs a table without these virtual servers. Where there are some, ipvsadm -C goes first: it removes all virtual servers, those of others too, and connections through them stall until the file is loaded.",
			Write: render.Writer(x.PerFamily, (*Ruleset).WriteIPVS, ir.IPv4, ir.IPv6)},
		{Format: "ipset", File: "ipset.rules", Load: "ipset -exist restore <ipset.rules",
			Note:  "It goes before the iptables rules, which name the sets. Sets that are there already are emptied and filled.",
			Write: render.Writer(x.PerFamily, (*Ruleset).WriteSets, ir.IPv4, ir.IPv6)},
		iptables.Output(ir.IPv4, render.Writer(x.PerFamily, (*Ruleset).WriteRules, ir.IPv4)),
		iptables.Output(ir.IPv6, render.Writer(x.PerFamily, (*Ruleset).WriteRules, ir.IPv6)),
		{Format: "addresses", File: "kube-ipvs0.addresses",
			Load:  "ip link add " + ir.IPVSDevice + " type dummy; sed 's/.*/addr replace & dev " + ir.IPVSDevice + "/' kube-ipvs0.addresses | ip -batch -",
			Write: render.Writer(x.PerFamily, (*Ruleset).WriteAddresses, ir.IPv4, ir.IPv6)},
	}
}

// Explain adds virtual servers, real servers, set elements and rules, by family.
func (x rendered) Explain(add func(render.Entry)) {
	for _, r := range ir.Present(x.PerFamily) {
		r.explain(add)
	}
}

func (r *Ruleset) explain(add func(render.Entry)) {
	for i := range r.VirtualServers {
		v := &r.VirtualServers[i]
		e := render.Entry{Where: "ipvs " + v.Key.String(), Match: v.Match.String(), Port: v.Port, Origin: v.Origin}
		add(e)
		for _, rs := range v.RealServers {
			e.Where, e.Origin = "ipvs "+v.Key.String()+" -> "+rs.AddrPort.String(), rs.Origin
			add(e)
		}
	}
	for _, el := range r.Elements {
		e := render.Entry{Where: "ipset " + el.Set.Name(r.Family) + " " + el.String(), Port: el.Port, Origin: el.Origin}
		if el.Match != (ir.Match{}) {
			e.Match = el.Match.String()
		}
		add(e)
	}
	r.Rules.Explain(add)
}
