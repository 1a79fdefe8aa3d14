package compiler

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// sourceRanges parses loadBalancerSourceRanges into the views of their families.
// A family without a range is unrestricted (SNAP-24). A family with ranges of
// which none can be parsed admits no client. kube-proxy would admit every client,
// against the intent of the field.
func (c *cluster) sourceRanges(s *service) {
	if len(s.SourceRanges) == 0 || !c.caps.Has(ir.SourceRanges) {
		return
	}
	meant := func(text string) ir.Family {
		if strings.Contains(text, ":") {
			return ir.IPv6
		}
		return ir.IPv4
	}
	var unread ir.PerFamily[bool]
	for i, text := range s.SourceRanges {
		text = strings.TrimSpace(text)
		p, ok := inet.ParsePrefix(text)
		if !ok {
			s.report(diag.RangeValue, c.names.ranges.at(i), "must be a CIDR, got "+diag.Quote(text))
			*unread.At(meant(text)) = true
			continue
		}
		v := s.view(p.Addr())
		v.ranges = append(v.ranges, ir.SourceRange{Prefix: p, Origin: ir.Origin{Object: s.object, Field: c.names.ranges.at(i)}})
	}
	none := len(s.views.IPv4.ranges)+len(s.views.IPv6.ranges) == 0
	for _, f := range ir.Families() {
		v := s.views.At(f)
		if v.closed = len(v.ranges) == 0 && (none || unread.Of(f)); v.closed {
			v.ranges = []ir.SourceRange{emptyRange(s.object, f)}
		}
		v.ranges = sortRanges(v.ranges)
	}
}

// emptyRange returns a range with only the unspecified address, which no client uses.
func emptyRange(object string, f ir.Family) ir.SourceRange {
	a := f.Any().Addr()
	return ir.SourceRange{Prefix: netip.PrefixFrom(a, a.BitLen()),
		Origin: ir.Origin{Object: object, Field: sourceRangesField, Reason: "no range is valid: no client is admitted"}}
}

// warnClosed warns of load balancers that admit no client.
func (s *service) warnClosed() {
	for f, v := range s.views.All() {
		if v.closed && v.has(ir.LoadBalancer) {
			s.warn(diag.RangesClosed, sourceRangesField, "no "+f.String()+" range is valid: the load balancer's "+f.String()+" addresses admit no client, while kube-proxy admits all")
		}
	}
}

const sourceRangesField = "spec.loadBalancerSourceRanges"

func sortRanges(ranges []ir.SourceRange) []ir.SourceRange {
	slices.SortStableFunc(ranges, func(a, b ir.SourceRange) int { return a.Prefix.Compare(b.Prefix) })
	return slices.CompactFunc(ranges, func(a, b ir.SourceRange) bool { return a.Prefix == b.Prefix })
}

// firewallPass returns the source ranges that the load balancer addresses of a
// service admit on this node. If the node's address is in a range, the load
// balancer addresses are admitted as sources too, because the node may carry and
// use them (PKT-11). As in kube-proxy, each address admits all of them, since a
// client may bind any of them. Modes nftables and ipvs keep ranges per address,
// so their number grows quadratically.
func (t *nodeTarget) firewallPass(v *view) []ir.SourceRange {
	if !t.node.IP.IsValid() || !slices.ContainsFunc(v.ranges, func(r ir.SourceRange) bool { return r.Prefix.Contains(t.node.IP) }) {
		return v.ranges
	}
	ranges := slices.Clone(v.ranges)
	for _, a := range v.addrs {
		if a.kind == ir.LoadBalancer {
			ranges = append(ranges, ir.SourceRange{
				Prefix: netip.PrefixFrom(a.Addr, a.BitLen()),
				Origin: ir.Origin{Object: ranges[0].Origin.Object, Field: a.field, Reason: "the node is within a range: it may use the address as its source address"},
			})
		}
	}
	return sortRanges(ranges)
}
