package lint

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Pending are Services that were written and not yet given to an API server, with
// the name that diagnostics have for each.
type Pending map[ir.Name]string

// Has reports whether a Service is one of them.
func (p Pending) Has(name ir.Name) bool { _, ok := p[name]; return ok }

// Addresses that stand for those which the API server would allocate: nobody has
// one of 240.0.0.0/4 (RFC 1112) or 100::/64 (RFC 6666).
var standIns = ir.PerFamily[netip.Addr]{IPv4: netip.MustParseAddr("240.0.0.0"), IPv6: netip.MustParseAddr("100::")}

// Complete gives each Service that has no clusterIP yet one that stands for it, so
// that the compiler judges the rest of it, and returns which these are.
func Complete(snap *snapshot.Snapshot, written map[string]snapshot.Written) Pending {
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

// primary is the family that a cluster gives Services which ask for none.
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

// Mend makes of a list what is to be said of Services that the API server has not seen:
// it allocates the health check port that they lack, and that they have no address yet
// is worth knowing, and no more.
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
			d.Msg, d.Hint = "is not given yet: the Service is judged as with one", "the API server allocates it; compile makes no rules without"
		}
		out = append(out, d)
	}
	return out
}
