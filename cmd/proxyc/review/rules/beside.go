package rules

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/proxyc/proxyc/ir/sim"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// follower follows packets through rules of iptables, and what belongs to them.
type follower interface {
	Follow(pkt sim.Packet, mark uint32) (o sim.Outcome, met []ipteval.Met, unknown []string)
	FollowTranslated(pkt sim.Packet, mark uint32) (o sim.Outcome, met []ipteval.Met, unknown []string)
}

// beside follows a packet through iptables and tables of nf_tables of others, in the order in
// which the kernel calls them: what stands before nat at the hooks where destinations are
// translated, then iptables with the mark that the packet has then, then the others with what it
// has become. Whoever translates
// first decides. sent says that what is balanced leaves as what the node sends, as ipvs does.
func beside(f follower, pkt sim.Packet, sent bool, own *sim.Own, tables *nftables.Ruleset) Path {
	first := func(b *nftables.Base) bool { return b.Destination() && b.Priority < nftables.PriorityDNAT }
	o, rules, unknown, mark := nfteval.NewFollower(nfteval.With(tables, first), own).FollowBefore(pkt)
	c := pathNFT(o, rules, unknown)
	switch c.outcome.Fate {
	case sim.NotOurs:
		c.then(PathOf(f.Follow(pkt, mark)))
		level := followNFT(nfteval.With(tables, func(b *nftables.Base) bool {
			return b.Destination() && b.Priority == nftables.PriorityDNAT
		}), own, pkt, nfteval.Machine{})
		c.unknown = append(c.unknown, level.unknown...)
		if level.outcome.Fate != sim.NotOurs && c.outcome.Fate != sim.NotOurs {
			m := level.Met[len(level.Met)-1]
			does := "translates"
			if m.Drops {
				does = "drops"
			}
			c.unknown = append(c.unknown, fmt.Sprintf("%s: %s at the priority of iptables, so that nobody knows who is first; if it is: %s", m.Where(), does, level.outcome))
		}
	case sim.Accepted:
		c.each(func(d sim.Destination) Path {
			to := pkt
			to.Dst, to.Port = d.AddrPort.Addr(), d.AddrPort.Port()
			return PathOf(f.FollowTranslated(to, mark))
		})
	}
	if o := c.outcome; o.Fate != sim.NotOurs && len(o.Destinations) == 0 {
		return c.sorted()
	}
	late := nfteval.NewFollower(nfteval.With(tables, func(b *nftables.Base) bool { return !first(b) }), own)
	if o := c.outcome; o.Fate == sim.NotOurs || sent && !pkt.FromNode() {
		c.then(pathNFT(late.Follow(pkt)))
		if !sent || o.Fate == sim.NotOurs {
			return c.sorted()
		}
	}
	c.each(func(d sim.Destination) Path {
		of := pkt
		if sent {
			of.In = ""
			if pkt.In != "" && own.Has(d.AddrPort.Addr()) {
				return Path{outcome: sim.NewOutcome(false, []sim.Destination{d})} // it is where it was to go
			}
		}
		return pathNFT(late.FollowTranslated(of, d))
	})
	return c.sorted()
}

// then goes on with another course, which decides where it does anything.
func (c *Path) then(next Path) {
	if next.outcome.Fate != sim.NotOurs {
		c.outcome = next.outcome
	}
	c.join(next)
}

// each goes on with a course for each of the destinations.
func (c *Path) each(on func(sim.Destination) Path) {
	was := c.outcome
	var all []sim.Chance
	for _, way := range was.Chances() {
		if way.Fate != sim.Accepted {
			all = append(all, way)
			continue
		}
		next := on(way.Destination)
		c.join(next)
		for _, to := range next.outcome.Chances() {
			to.Weight *= way.Weight
			to.Choice = cmp.Or(to.Choice, way.Choice)
			all = append(all, to)
		}
	}
	c.outcome = sim.Shared(all)
	if len(c.outcome.Destinations) > 0 {
		c.outcome.Affinity, c.outcome.Timeout = was.Affinity, was.Timeout
	}
}

// join adds what another course met.
func (c *Path) join(next Path) {
	c.unknown = append(c.unknown, next.unknown...)
	for _, m := range next.Met {
		if !slices.Contains(c.Met, m) {
			c.Met = append(c.Met, m)
		}
	}
}

func (c Path) sorted() Path {
	slices.Sort(c.unknown)
	c.unknown = slices.Compact(c.unknown)
	return c
}
