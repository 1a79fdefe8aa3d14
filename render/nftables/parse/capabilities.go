package parse

import (
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
)

// Capabilities returns the capabilities of the rules of one table, by which
// releases of kube-proxy differ from the newest one and from proxyc.
func Capabilities(r *nftables.Ruleset) ir.Capability {
	caps := ir.ModeNFTables.Capabilities()
	if slices.ContainsFunc(r.Sets, func(s nftables.Set) bool { return s.Name == "hairpin-connections" }) {
		caps |= ir.HairpinByPort // kube-proxy, and earlier versions of proxyc
	}
	for i := range r.Chains {
		switch c := &r.Chains[i]; {
		case c.Name == "endpoints-check":
			// 1.29 has no chain for other ports and addresses of ClusterIPs, and compares
			// source ranges with packets whose destination it has translated.
			caps &^= ir.RejectUndefinedPorts | ir.DropUnallocated | ir.SourceRanges
		case strings.HasPrefix(c.Name, "endpoint-") && marks(c):
			// Before 1.36, the chain of each endpoint marks its hairpin
			// connections, wherever the endpoint is.
			caps = caps&^ir.HairpinByAddress | ir.HairpinRemote
		case c.Base != nil && !c.Base.NAT && c.Base.Hook == nftables.Forward:
			caps |= ir.FiltersTranslated // kube-proxy, and proxyc before its rules refused in chains of type nat
		}
	}
	return caps
}

// marks reports whether a chain marks packets for masquerade.
func marks(c *nftables.Chain) bool {
	return slices.ContainsFunc(c.Rules, func(r nftables.Rule) bool {
		v, ok := r.Stmts[len(r.Stmts)-1].(nftables.Verdict)
		return ok && v.Kind == nftables.Jump && v.Chain == "mark-for-masquerade"
	})
}
