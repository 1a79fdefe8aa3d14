package compiler

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// sourceRanges reads loadBalancerSourceRanges, each into the view of its
// family. A family without a range of its own is unrestricted (SNAP-24).
func (c *cluster) sourceRanges(s *service) {
	if len(s.SourceRanges) == 0 || !c.caps.Has(ir.SourceRanges) {
		return
	}
	for i, text := range s.SourceRanges {
		p, ok := parsePrefix(text)
		if !ok {
			s.report(c.names.ranges.at(i), "must be a CIDR, got "+strconv.Quote(strings.TrimSpace(text)))
			continue
		}
		v := s.view(p.Addr())
		v.ranges = append(v.ranges, ir.SourceRange{Prefix: p, Origin: ir.Origin{Object: s.object, Field: c.names.ranges.at(i)}})
	}
	for _, f := range ir.Families() {
		v := s.views.At(f)
		v.ranges = sortRanges(v.ranges)
	}
}

func sortRanges(ranges []ir.SourceRange) []ir.SourceRange {
	slices.SortStableFunc(ranges, func(a, b ir.SourceRange) int { return a.Prefix.Compare(b.Prefix) })
	return slices.CompactFunc(ranges, func(a, b ir.SourceRange) bool { return a.Prefix == b.Prefix })
}

// firewallPass gives the ranges that a service's load balancer addresses
// admit on this node. Where the node itself is within one, so are those
// addresses: the node may carry them and take one as its source (PKT-11).
func (t *target) firewallPass(v *view) []ir.SourceRange {
	if !t.node.IP.IsValid() || !slices.ContainsFunc(v.ranges, func(r ir.SourceRange) bool { return r.Prefix.Contains(t.node.IP) }) {
		return v.ranges
	}
	ranges := slices.Clone(v.ranges)
	for _, a := range v.addrs {
		if a.kind == ir.LoadBalancer {
			ranges = append(ranges, ir.SourceRange{
				Prefix: netip.PrefixFrom(a.Addr, a.BitLen()),
				Origin: ir.Origin{Object: ranges[0].Origin.Object, Field: a.field, Reason: "the node is within a range: it may use the address as its source"},
			})
		}
	}
	return sortRanges(ranges)
}
