package prove

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Side is one description of what a node does. It may be asked by several
// goroutines at once.
type Side interface {
	// Outcome returns what becomes of a packet, and tells cuts what it was
	// compared with.
	Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome
	// Destinations calls yield for all prefixes that destinations of packets are
	// compared with. One may come several times.
	Destinations(yield func(netip.Prefix) bool)
}

// Doubter is a Side that knows more doubts once it was asked about all packets.
type Doubter interface {
	Doubts() []string
}

// lastDoubts are those of all packets together.
func lastDoubts(sides ...Side) (all []string) {
	for _, s := range sides {
		if d, ok := s.(Doubter); ok {
			all = append(all, d.Doubts()...)
		}
	}
	return all
}

// Node is what decides which packets there are.
type Node struct {
	Family ir.Family
	// Addrs are the node's own addresses, but loopback: the sources of what it
	// sends, and of nothing that comes in.
	Addrs []netip.Addr
	// Carries reports whether the node has the addresses of Services, too, so that
	// what it sends to them has the destination as its source (mode ipvs); nil: no.
	Carries func(netip.Addr) bool
	// Cost estimates what it takes to compare the packets to an address, in no unit; nil: all
	// the same. Where time ends a comparison, what costs most is what is not known.
	Cost func(netip.Addr) int
}

// NodeOf returns what decides which packets a Program's node meets.
func NodeOf(p *ir.Program) Node {
	n := Node{Family: p.Family, Addrs: p.Node.Addrs, Cost: costOf(p)}
	if p.Node.Mode.Capabilities().Has(ir.CarriesVIPs) {
		carried := map[netip.Addr]bool{}
		for i := range p.Services {
			for _, f := range p.Services[i].Frontends {
				if !f.Match.IsNodePort() {
					carried[f.Match.Addr] = true
				}
			}
		}
		n.Carries = func(a netip.Addr) bool { return carried[a] }
	}
	return n
}

// costOf estimates by how many backends the frontends of an address lead to: each of them is a client
// of its own.
func costOf(p *ir.Program) func(netip.Addr) int {
	costs := map[netip.Addr]int{}
	for i := range p.Services {
		s := &p.Services[i]
		for j := range s.Frontends {
			f := &s.Frontends[j]
			for _, r := range f.Routes {
				costs[f.Match.Addr] += len(s.Pools[r.Pool].Backends)
			}
		}
	}
	nodePorts := costs[netip.Addr{}]
	for _, a := range p.Node.Addrs {
		costs[a] += nodePorts
	}
	return func(a netip.Addr) int { return costs[a] }
}

// Class is a set of packets that meet the same fate on both sides.
type Class struct {
	Dst      Addrs
	Rest     netip.Prefix // what the rules do not name in this prefix is meant, of which Dst is some; zero: Dst is all
	Protocol ir.Protocol
	Src      Addrs
	Packet   sim.Packet // one of them, that to the first of the ports; its In is "" for what the node sends
	AnyIn    bool       // In stands for all interfaces that no rule names
	// Named are the interfaces that rules name for these destinations and ports: the
	// packet's stands for those that the same ones of them hold.
	Named []sim.Interface

	within sim.Ports   // destination ports: those that are in it
	kind   []sim.Ports // and of this kind
}

// Addrs are the addresses First to Last.
type Addrs struct{ First, Last netip.Addr }

// Difference is a Class with different fates.
type Difference struct {
	Class
	A, B sim.Outcome
}

// Doubt is a Class whose fate is not known.
type Doubt struct {
	Class            // zero: not of single packets
	Unknown []string // what is not understood
}

// Result is what a comparison came to.
type Result struct {
	Classes     int          // how many packets were asked about, each for its class
	Differences []Difference // in order of destination, protocol, port, interface and source
	Doubts      []Doubt      // likewise; where there are any, nothing is proved
}

// Equal reports whether both sides were shown to be the same.
func (r *Result) Equal() bool { return len(r.Differences)+len(r.Doubts) == 0 }

// Compare holds two sides against each other for every packet of a node. It
// ends early with the error of ctx, unless its cause is a Limit.
func Compare(ctx context.Context, n Node, a, b Side) (*Result, error) {
	return compare(ctx, n, a, b, func(Addrs) bool { return true }, nil, false)
}

// WithProgress returns a context whose comparisons tell f how far they are: how many more
// destinations were compared, and how many more there are to compare. f is called by
// several goroutines at once.
func WithProgress(ctx context.Context, f func(done, all int)) context.Context {
	return context.WithValue(ctx, progressKey{}, f)
}

type progressKey struct{}

// WithWorkers returns a context whose comparisons take no more than n processors.
func WithWorkers(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, workersKey{}, n)
}

type workersKey struct{}

// Limit is the cause with which a context ends a comparison that is to give what it found
// until then, and the cause as a doubt, in place of an error.
type Limit string

func (l Limit) Error() string { return string(l) }

// CompareAt is Compare for the destinations that the caller does not know to be the
// same on both sides. Where take is not nil it gets the differences of the i-th of these as soon
// as they are found, in order, and the Result has none: they need not all be there at once. They
// are its own until it returns. It is called by several goroutines at once.
//
// A client that is a backend is in the class of others where no more depends on it than
// whether it is masqueraded on its way to itself, and that is the same on both sides. So a frontend with
// many backends has few classes.
func CompareAt(ctx context.Context, n Node, a, b Side, at func(Addrs) bool, take func(i int, of []Difference)) (*Result, error) {
	return compare(ctx, n, a, b, at, take, true)
}

func compare(ctx context.Context, n Node, a, b Side, at func(Addrs) bool, take func(i int, of []Difference), joinSelves bool) (*Result, error) {
	all := slices.DeleteFunc(destinations(n, a, b), func(d destination) bool { return !at(d.Addrs) })
	order := cheapFirst(n, all)
	parts := make([]found, len(all))
	progress, _ := ctx.Value(progressKey{}).(func(done, all int))
	if progress == nil {
		progress = func(int, int) {}
	}
	progress(0, len(all))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wait sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	if most, ok := ctx.Value(workersKey{}).(int); ok {
		workers = min(workers, most)
	}
	for w := range workers {
		wait.Go(func() {
			ended := func() bool { return ctx.Err() != nil }
			e := newExplorer(n, a, b, ended)
			e.cuts.TellSelves = joinSelves
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

// cheapFirst returns the numbers of destinations in the order in which they are compared. So
// a Service that takes all the time hides nothing of the others'.
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

// endless is why a comparison was given up.
type endless string

func (e endless) Error() string { return string(e) }

// destination is one class of destinations.
type destination struct {
	Addrs
	rest netip.Prefix // as in Class
}

// destinations cuts the addresses at all prefixes that a side names. Addresses
// between them are alike if the innermost prefix that holds them is the same.
func destinations(n Node, sides ...Side) []destination {
	known := map[netip.Prefix]bool{n.Family.Any(): true}
	for _, s := range sides {
		for p := range s.Destinations {
			if n.Family.Has(p.Addr()) {
				known[p.Masked()] = true
			}
		}
	}
	prefixes := make([]netip.Prefix, 0, len(known))
	for p := range known {
		prefixes = append(prefixes, p)
	}
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []destination
	var open []netip.Prefix // those that hold the place where we are, the innermost last
	seen := map[netip.Prefix]bool{}
	at := prefixes[0].Addr()
	// gap is what lies between at and the address before end, or the end of what is open.
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
