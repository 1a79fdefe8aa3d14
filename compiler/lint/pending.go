package lint

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// Pending maps Services that the API server has not seen yet to their object
// names in diagnostics.
type Pending map[ir.Name]string

// Has reports whether a Service is pending.
func (p Pending) Has(name ir.Name) bool { _, ok := p[name]; return ok }

// standIns are the first placeholder addresses for addresses that the API server
// would allocate. Nobody uses 240.0.0.0/4 (RFC 1112) or 100::/64 (RFC 6666).
var standIns = ir.PerFamily[netip.Addr]{IPv4: netip.MustParseAddr("240.0.0.0"), IPv6: netip.MustParseAddr("100::")}

// Complete assigns a placeholder address to each Service without clusterIP, so
// that the compiler checks the rest of it. It returns these Services.
func Complete(snap *snapshot.Snapshot, written map[string]manifest.Written) Pending {
	pending := Pending{}
	next := standIns
	for _, svc := range snap.Services() {
		if svc.ClusterIP != "" || svc.Type == "ExternalName" || svc.ProxyName {
			continue
		}
		pending[svc.Name] = svc.Object
		full := *svc
		if len(full.IPFamilies) == 0 {
			full.IPFamilies = []string{primary(snap).String()}
		}
		if other := otherFamily(full.IPFamilies[0]); written[svc.Object].DualStack && len(full.IPFamilies) == 1 {
			full.IPFamilies = append(slices.Clone(full.IPFamilies), other)
		}
		full.ClusterIPs = nil
		for _, f := range ir.Families() {
			*next.At(f) = next.Of(f).Next()
		}
		for _, family := range full.IPFamilies {
			addr := next.IPv4
			if family == ir.IPv6.String() {
				addr = next.IPv6
			}
			full.ClusterIPs = append(full.ClusterIPs, addr.String())
		}
		full.ClusterIP = full.ClusterIPs[0]
		snap.SetService(&full)
	}
	return pending
}

func otherFamily(family string) string {
	if family == ir.IPv6.String() {
		return ir.IPv4.String()
	}
	return ir.IPv6.String()
}

// primary returns the family of a Service without ipFamilies in this cluster.
func primary(snap *snapshot.Snapshot) ir.Family {
	for _, c := range snap.ServiceCIDRs() {
		for _, p := range c.CIDRs {
			return ir.FamilyOf(p.Addr())
		}
	}
	for _, n := range snap.Nodes() {
		for _, a := range n.Addresses {
			if addr, ok := parse(a.Address); ok {
				return ir.FamilyOf(addr)
			}
		}
	}
	return ir.IPv4
}

// Mend adapts findings to Services that the API server has not seen. It removes
// findings about a missing health check port, which the API server allocates, and
// lowers a missing address to an info.
func (p Pending) Mend(list diag.List) (out diag.List) {
	objects := map[string]bool{}
	for _, object := range p {
		objects[object] = true
	}
	for _, d := range list {
		switch {
		case !objects[d.Object]:
		case d.Code == diag.HealthPortMissing:
			continue
		case d.Code == diag.NoClusterIP:
			d.Severity = diag.Info
			d.Msg, d.Hint = "is not set yet: the Service is checked as if it were", "the API server allocates it; without it, compile writes no rules"
		}
		out = append(out, d)
	}
	return out
}
