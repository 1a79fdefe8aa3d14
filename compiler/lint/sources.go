package lint

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

const rangesField = "spec.loadBalancerSourceRanges"

// source is an entry of spec.loadBalancerSourceRanges.
type source struct {
	netip.Prefix
	index int
}

// sourceRanges reports source ranges that are ineffective, or that admit clients
// by another path. The compiler reports ranges that cannot be parsed.
func sourceRanges(c *cluster, s *service) {
	if len(s.SourceRanges) == 0 || !c.caps.Has(ir.SourceRanges) {
		return
	}
	if !s.isBalancer() {
		c.warn(s, diag.RangesNoEffect, rangesField, "has no effect: the Service is of type "+cmp.Or(s.Type, "ClusterIP")+", and has no address of a load balancer")
		return
	}
	var list []source
	var has, everybody ir.PerFamily[bool]
	for i, text := range s.SourceRanges {
		p, ok := inet.ParsePrefix(strings.TrimSpace(text))
		if !ok {
			continue
		}
		list = append(list, source{p, i})
		f := ir.FamilyOf(p.Addr())
		*has.At(f) = true
		if p.Bits() == 0 {
			*everybody.At(f) = true
			c.allowAll(s, i, p)
		}
	}
	if len(list) == 0 || len(list) < len(s.SourceRanges) {
		return // unreadable ranges change which clients are admitted
	}
	c.covered(s, list)
	for f, in := range s.inFam.All() {
		if in && !has.Of(f) && s.reached(f) {
			c.warn(s, diag.RangesOneFamily, rangesField, "has no "+f.String()+" range: every "+f.String()+" client is admitted")
		}
	}
	if !everybody.IPv4 || !everybody.IPv6 {
		c.otherPaths(s)
	}
}

// otherPaths reports paths of clients to which source ranges do not apply.
func (c *cluster) otherPaths(s *service) {
	if i := slices.IndexFunc(s.Ports, func(p snapshot.ServicePort) bool { return p.NodePort != 0 }); i >= 0 {
		c.warn(s, diag.RangesNodePort, at("spec.ports", i)+".nodePort", "admits every client, regardless of "+rangesField+", which applies only to the load balancer's addresses")
	}
	if len(s.ExternalIPs) > 0 {
		c.warn(s, diag.RangesExternalIP, "spec.externalIPs", "admits every client, regardless of "+rangesField+", which applies only to the load balancer's addresses")
	}
}

// reached reports whether the load balancer has, or may get, an address of the
// family.
func (s *service) reached(f ir.Family) bool {
	addrs := s.balancers()
	return len(addrs) == 0 || slices.ContainsFunc(addrs, f.Has)
}

func (c *cluster) allowAll(s *service, i int, p netip.Prefix) {
	if c.config.ProxyMode() == ir.ModeIPVS {
		c.warn(s, diag.RangeAllIPVS, at(rangesField, i), p.String()+" admits all clients here, but none with kube-proxy in mode ipvs, because its sets cannot contain it")
		return
	}
	c.info(s, diag.RangeAll, at(rangesField, i), p.String()+" admits all clients: the other ranges of the family have no effect")
}

// covered reports ranges within other ranges, except within a range of length 0,
// which allowAll reports.
func (c *cluster) covered(s *service, list []source) {
	slices.SortStableFunc(list, func(a, b source) int { return a.Prefix.Compare(b.Prefix) })
	var last source
	for i, r := range list {
		if i > 0 && last.Bits() > 0 && last.Overlaps(r.Prefix) {
			c.info(s, diag.RangeCovered, at(rangesField, r.index), r.String()+" is inside "+last.String()+" of "+at(rangesField, last.index)+": it admits no additional client")
			continue
		}
		if i == 0 || !last.Overlaps(r.Prefix) {
			last = r
		}
	}
}
