package prove

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Side is a description of how a node handles packets. It must be safe for
// concurrent use.
type Side interface {
	// Outcome returns the outcome of a packet, and records the comparisons with
	// the packet in cuts.
	Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome
	// Destinations calls add with all prefixes with which it compares
	// destinations, possibly with duplicates.
	Destinations(add func(netip.Prefix))
}

// Doubter is a Side with doubts that do not depend on a single packet. They are
// complete after all packets were evaluated.
type Doubter interface {
	Doubts() []string
}

// lastDoubts returns the doubts that do not depend on a single packet.
func lastDoubts(sides ...Side) (all []string) {
	for _, s := range sides {
		if d, ok := s.(Doubter); ok {
			all = append(all, d.Doubts()...)
		}
	}
	return all
}

// Node defines which packets are possible.
type Node struct {
	Family ir.Family
	// Addrs are the node's own addresses except loopback. They are the sources of
	// packets from the node, and never of incoming packets.
	Addrs []netip.Addr
	// Carries, if set, reports whether the node carries an address of a Service,
	// so that packets from the node to it have it as source (mode ipvs).
	Carries func(netip.Addr) bool
	// Cost, if set, estimates the cost of comparing the packets to an address,
	// without a unit. Expensive destinations are compared last, so that a time
	// limit affects them first.
	Cost func(netip.Addr) int
}

// NodeOf returns the Node of a Program.
func NodeOf(p *ir.Program) Node {
	n := Node{Family: p.Family, Addrs: p.Node.Addrs, Cost: costOf(p)}
	if p.Node.Mode.Capabilities().Has(ir.CarriesVIPs) {
		carried := map[netip.Addr]bool{}
		for _, f := range p.Frontends() {
			if !f.Match.IsNodePort() {
				carried[f.Match.Addr] = true
			}
		}
		n.Carries = func(a netip.Addr) bool { return carried[a] }
	}
	return n
}

// costOf estimates the cost of an address by the number of its backends, each of
// which may be a separate client.
func costOf(p *ir.Program) func(netip.Addr) int {
	costs := map[netip.Addr]int{}
	for s, f := range p.Frontends() {
		for _, r := range f.Routes {
			costs[f.Match.Addr] += len(s.Pools[r.Pool].Backends)
		}
	}
	nodePorts := costs[netip.Addr{}]
	for _, a := range p.Node.Addrs {
		costs[a] += nodePorts
	}
	return func(a netip.Addr) int { return costs[a] }
}

// Class is a set of packets with the same outcome on both sides.
type Class struct {
	Dst      Addrs
	Rest     netip.Prefix // if valid, the class covers all addresses of this prefix that no rule names, of which Dst is a part; otherwise exactly Dst
	Protocol ir.Protocol
	Src      Addrs
	Packet   sim.Packet // one of them, to the first port; In is "" for packets from the node
	AnyIn    bool       // Packet.In represents all interfaces that no rule names
	// Named are the interfaces that rules name for these destinations and ports.
	// The packet's interface represents all that match the same ones.
	Named []sim.Interface

	within sim.Ports   // destination ports: those in this range
	kind   []sim.Ports // and in this kind
}

// Addrs are the addresses from First to Last.
type Addrs struct{ First, Last netip.Addr }

// Difference is a Class with different outcomes.
type Difference struct {
	Class
	A, B sim.Outcome
}

// Doubt is a Class whose outcome is unknown.
type Doubt struct {
	Class            // zero if it does not concern single packets
	Unknown []string // the unknown parts of the rules
}

// Result is the result of a comparison.
type Result struct {
	Classes     int          // number of evaluated packets, one for each class
	Differences []Difference // sorted by destination, protocol, port, interface and source
	Doubts      []Doubt      // in the same order; if not empty, nothing is proved
}

// Equal reports whether both sides are proved to be equal.
func (r *Result) Equal() bool { return len(r.Differences)+len(r.Doubts) == 0 }

// Compare compares two sides for every packet of a node. If ctx ends, it returns
// the error of ctx, unless the cause is a Limit.
func Compare(ctx context.Context, n Node, a, b Side) (*Result, error) {
	return compare(ctx, n, a, b, func(Addrs) bool { return true }, nil, false)
}

// WithProgress returns a context whose comparisons report their progress to f:
// the increments of compared destinations and of all destinations. f must be safe
// for concurrent use.
func WithProgress(ctx context.Context, f func(done, all int)) context.Context {
	return context.WithValue(ctx, progressKey{}, f)
}

type progressKey struct{}

func progressOf(ctx context.Context) func(done, all int) {
	if f, ok := ctx.Value(progressKey{}).(func(done, all int)); ok {
		return f
	}
	return func(int, int) {}
}

// Limit is a cancellation cause with which a comparison returns the result so
// far, and the cause as a doubt, instead of an error.
type Limit string

func (l Limit) Error() string { return string(l) }

// CompareAt is Compare for the destinations that at selects; the caller
// guarantees that the sides are equal at others. take is optional. If set, it is
// called with the sorted differences of the i-th destination as soon as they are
// found, and the Result contains none, which saves memory. take must be safe for
// concurrent use and must not keep the slice.
//
// A client that is a backend shares the class of other clients if only the
// masquerading of its hairpin connections differs from them, and that equally on
// both sides. A frontend with many backends thus has few classes.
func CompareAt(ctx context.Context, n Node, a, b Side, at func(Addrs) bool, take func(i int, of []Difference)) (*Result, error) {
	return compare(ctx, n, a, b, at, take, true)
}

func compare(ctx context.Context, n Node, a, b Side, at func(Addrs) bool, take func(i int, of []Difference), joinSelves bool) (*Result, error) {
	all := slices.DeleteFunc(destinations(n, a, b), func(d destination) bool { return !at(d.Addrs) })
	order := cheapFirst(n, all)
	parts := make([]found, len(all))
	progress := progressOf(ctx)
	progress(0, len(all))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wait sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wait.Go(func() {
			ended := func() bool { return ctx.Err() != nil }
			e := newExplorer(n, a, b, ended)
			e.cuts.SplitHairpins = joinSelves
			for at := w; at < len(order) && !ended(); at += workers {
				i := order[at]
				of := e.explore(all[i])
				if of.endless == "" && ended() {
					break
				}
				of.whole = 1
				parts[i] = of
				if take != nil {
					if e.sure = parts[i].handOver(e); len(e.sure) > 0 {
						take(i, e.sure)
					}
				}
				progress(1, 0)
				if parts[i].endless != "" {
					stop(endless(parts[i].endless))
				}
			}
		})
	}
	wait.Wait()
	if why, ok := context.Cause(ctx).(endless); ok {
		return &Result{Doubts: []Doubt{{Unknown: []string{string(why)}}}}, nil
	}
	over, limited := context.Cause(ctx).(Limit)
	if err := ctx.Err(); err != nil && !limited {
		return nil, err
	}
	var whole found
	for i := range parts {
		whole.add(parts[i])
	}
	r := whole.result(a, b)
	if limited && whole.whole < len(all) {
		r.Doubts = append(r.Doubts, Doubt{Unknown: []string{fmt.Sprintf("%s: %d of %d destinations are compared", over, whole.whole, len(all))}})
	}
	return r, nil
}

// cheapFirst returns the order in which destinations are compared. An expensive
// Service thus does not prevent the comparison of others.
func cheapFirst(n Node, all []destination) []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	if n.Cost != nil {
		slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(n.Cost(all[i].First), n.Cost(all[j].First)) })
	}
	return order
}

// endless is the reason for giving up a comparison.
type endless string

func (e endless) Error() string { return string(e) }

// destination is a class of destinations.
type destination struct {
	Addrs
	rest netip.Prefix // as in Class
}

// destinations divides the addresses at all prefixes that a side uses. Addresses
// between them are equivalent if their innermost prefix is the same.
func destinations(n Node, sides ...Side) []destination {
	known := map[netip.Prefix]bool{n.Family.Any(): true}
	for _, s := range sides {
		s.Destinations(func(p netip.Prefix) {
			if n.Family.Has(p.Addr()) {
				known[p.Masked()] = true
			}
		})
	}
	prefixes := slices.SortedFunc(maps.Keys(known), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
	})
	var out []destination
	var open []netip.Prefix // the prefixes that contain at, the innermost last
	seen := map[netip.Prefix]bool{}
	at := prefixes[0].Addr()
	// gap adds the addresses from at to last, which belong to the innermost open
	// prefix.
	gap := func(last netip.Addr) {
		inner := open[len(open)-1]
		if !at.IsValid() || at.Compare(last) > 0 {
			return
		}
		if !seen[inner] {
			seen[inner] = true
			d := destination{Addrs: Addrs{at, last}}
			if !inner.IsSingleIP() {
				d.rest = inner
			}
			out = append(out, d)
		}
	}
	closeTo := func(next netip.Prefix, end bool) {
		for len(open) > 0 && (end || !open[len(open)-1].Contains(next.Addr())) {
			last := ir.LastOf(open[len(open)-1])
			gap(last)
			at = last.Next()
			open = open[:len(open)-1]
		}
	}
	for _, p := range prefixes {
		closeTo(p, false)
		if len(open) > 0 && at.Compare(p.Addr()) < 0 {
			gap(p.Addr().Prev())
		}
		at = p.Addr()
		open = append(open, p)
	}
	closeTo(netip.Prefix{}, true)
	return out
}
