package ipvs

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

// Outputs returns the texts. Formats that do not separate families contain both.
func (x rendered) Outputs() []render.Output {
	return []render.Output{
		{Format: "ipvsadm", File: "ipvsadm.rules", Load: "ipvsadm -R <ipvsadm.rules",
			Note:  "It needs a table without these virtual servers. Where there are some, ipvsadm -C goes first: it removes all virtual servers, those of others too, and connections through them stall until the file is loaded.",
			Write: x.write((*Ruleset).WriteIPVS)},
		{Format: "ipset", File: "ipset.rules", Load: "ipset -exist restore <ipset.rules",
			Note:  "It goes before the iptables rules, which name the sets. Sets that are there already are emptied and filled.",
			Write: x.write((*Ruleset).WriteSets)},
		{Format: "iptables", File: "iptables.rules", Load: iptables.Load(ir.IPv4, "iptables.rules"),
			Write: x.family(ir.IPv4).write((*Ruleset).WriteRules)},
		{Format: "ip6tables", File: "ip6tables.rules", Load: iptables.Load(ir.IPv6, "ip6tables.rules"),
			Write: x.family(ir.IPv6).write((*Ruleset).WriteRules)},
		{Format: "addresses", File: "kube-ipvs0.addresses",
			Load:  "ip link add " + ir.IPVSDevice + " type dummy; sed 's/.*/addr replace & dev " + ir.IPVSDevice + "/' kube-ipvs0.addresses | ip -batch -",
			Write: x.write((*Ruleset).WriteAddresses)},
	}
}

func (x rendered) family(f ir.Family) rendered {
	var of rendered
	*of.At(f) = x.Of(f)
	return of
}

func (x rendered) write(write func(*Ruleset, io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		for _, r := range ir.Present(x.PerFamily) {
			if err := write(r, w); err != nil {
				return err
			}
		}
		return nil
	}
}

// Explain yields virtual servers, real servers, set elements and rules, by
// family.
func (x rendered) Explain(yield func(render.Entry) bool) {
	for _, r := range ir.Present(x.PerFamily) {
		if !r.explain(yield) {
			return
		}
	}
}

func (r *Ruleset) explain(yield func(render.Entry) bool) bool {
	for i := range r.VirtualServers {
		v := &r.VirtualServers[i]
		e := render.Entry{Where: "ipvs " + v.Key.String(), Match: v.Match.String(), Port: v.Port, Origin: v.Origin}
		if !yield(e) {
			return false
		}
		for _, rs := range v.RealServers {
			e.Where, e.Origin = "ipvs "+v.Key.String()+" -> "+rs.AddrPort.String(), rs.Origin
			if !yield(e) {
				return false
			}
		}
	}
	for _, el := range r.Elements {
		e := render.Entry{Where: "ipset " + el.Set.Name(r.Family) + " " + el.String(), Port: el.Port, Origin: el.Origin}
		if el.Match != (ir.Match{}) {
			e.Match = el.Match.String()
		}
		if !yield(e) {
			return false
		}
	}
	return r.Rules.Explain(yield)
}
