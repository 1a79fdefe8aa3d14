package rules

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/proxyc/proxyc/ir/sim"
	ipvseval "github.com/proxyc/proxyc/render/ipvs/eval"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// followTables follows a packet through iptables and foreign nf_tables tables in the order in which
// the kernel calls them: first the chains before nat at the hooks that translate destinations, then
// iptables with the resulting mark, then the other chains with the resulting packet. The first
// translation counts. sent says that a balanced packet leaves like one that the node sends, as in
// ipvs.
func followTables(f *ipvseval.Follower, pkt sim.Packet, sent bool, own *sim.Own, tables *nftables.Ruleset) Path {
	first := func(b *nftables.Base) bool { return b.Destination() && b.Priority < nftables.PriorityDNAT }
	before, mark := nfteval.NewFollower(nfteval.With(tables, first), own).FollowBefore(pkt)
	c := PathOf(before)
	switch c.Outcome.Fate {
	case sim.NotOurs:
		c.then(PathOf(f.FollowMarked(pkt, mark, false)))
		level := followNFT(nfteval.With(tables, func(b *nftables.Base) bool {
			return b.Destination() && b.Priority == nftables.PriorityDNAT
		}), own, pkt, nfteval.Machine{})
		c.Unknown = append(c.Unknown, level.Unknown...)
		if level.Outcome.Fate != sim.NotOurs && c.Outcome.Fate != sim.NotOurs {
			m := level.Met[len(level.Met)-1]
			does := "translates"
			if m.Drops {
				does = "drops"
			}
			c.Unknown = append(c.Unknown, fmt.Sprintf("%s: %s at the priority of iptables, so the order is unknown; if it comes first: %s", m.Where(), does, level.Outcome))
		}
	case sim.Accepted:
		c.each(func(d sim.Destination) Path {
			to := pkt
			to.Dst, to.Port = d.AddrPort.Addr(), d.AddrPort.Port()
			return PathOf(f.FollowMarked(to, mark, true))
		})
	}
	if o := c.Outcome; o.Fate != sim.NotOurs && len(o.Destinations) == 0 {
		return c.sorted()
	}
	late := nfteval.NewFollower(nfteval.With(tables, func(b *nftables.Base) bool { return !first(b) }), own)
	if o := c.Outcome; o.Fate == sim.NotOurs || sent && !pkt.FromNode() {
		c.then(PathOf(late.Follow(pkt)))
		if !sent || o.Fate == sim.NotOurs {
			return c.sorted()
		}
	}
	c.each(func(d sim.Destination) Path {
		of := pkt
		if sent {
			of.In = ""
			if pkt.In != "" && own.Has(d.AddrPort.Addr()) {
				return PathOf(sim.Path{Outcome: sim.NewOutcome(false, []sim.Destination{d})}) // the packet keeps its destination
			}
		}
		return PathOf(late.FollowTranslated(of, d))
	})
	return c.sorted()
}

// then continues the path with next, which overrides the outcome if it has an effect.
func (c *Path) then(next Path) {
	if next.Outcome.Fate != sim.NotOurs {
		c.Outcome = next.Outcome
	}
	c.join(next)
}

// each continues the path separately for each destination.
func (c *Path) each(on func(sim.Destination) Path) {
	was := c.Outcome
	var all []sim.Chance
	for _, way := range was.Chances() {
		if way.Fate != sim.Accepted {
			all = append(all, way)
			continue
		}
		next := on(way.Destination)
		c.join(next)
		for _, to := range next.Outcome.Chances() {
			to.Weight *= way.Weight
			to.Choice = cmp.Or(to.Choice, way.Choice)
			all = append(all, to)
		}
	}
	c.Outcome = sim.Shared(all)
	if len(c.Outcome.Destinations) > 0 {
		c.Outcome.Affinity, c.Outcome.Timeout = was.Affinity, was.Timeout
	}
}

// join adds the rules that another path met.
func (c *Path) join(next Path) {
	c.Unknown = append(c.Unknown, next.Unknown...)
	for _, m := range next.Met {
		if !slices.Contains(c.Met, m) {
			c.Met = append(c.Met, m)
		}
	}
}

func (c Path) sorted() Path {
	slices.Sort(c.Unknown)
	c.Unknown = slices.Compact(c.Unknown)
	return c
}
