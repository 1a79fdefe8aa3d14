package apply

import (
	"context"

	"github.com/proxyc/proxyc/ir"
)

// This file declares what only some Dataplanes and Plans can do. Each optional ability is
// an interface and a function that calls it. All callers use the function: it returns
// what holds for a Dataplane or Plan without the ability.
//
//	ability           function        implemented by                         without it
//	LeftoverFinder    Leftovers       nftables, iptables, ipvs, userspace    none
//	Counted           CountersOf      all but kernelspace                    no counters
//	ConcurrentReader  ConcurrentRead  iptables, userspace                    changes wait for Read
//	Attributor        ChangedBy       nftables, iptables, ipvs, userspace    no programs
//	Drainer           DrainerOf       userspace (both OSes)                  nothing to wait for
//	Totaller          First           Plans of nftables                      counts Operations
//	GoneLister        GoneIn          Plans of nftables                      nothing
//	Mender            PlanShared      nftables, iptables, ipvs               nothing to repair
//
// A package declares which of them its types implement in one place, next to
// "var _ apply.Dataplane", so that the compiler checks the signatures.

// LeftoverFinder is a Dataplane that finds what proxies of other modes left on the node,
// and what kube-proxy left in addition to the rules that Plan takes over.
type LeftoverFinder interface {
	Leftovers(ctx context.Context) ([]Leftover, error)
}

// Leftovers returns what other proxies left on the node. There is nothing for a Dataplane
// that takes over everything.
func Leftovers(ctx context.Context, d Dataplane) ([]Leftover, error) {
	if d, ok := d.(LeftoverFinder); ok {
		return d.Leftovers(ctx)
	}
	return nil, nil
}

// Counted is a Dataplane that counts packets or connections.
type Counted interface{ Counters() Counters }

// CountersOf returns the counters of a Dataplane.
func CountersOf(d Dataplane) Counters {
	if d, ok := d.(Counted); ok {
		return d.Counters()
	}
	return Counters{}
}

// Counters read what the kernel counts of packets, and what a process counts of the
// connections that it carries. A nil function is not supported. Any goroutine may call
// them, also while the Dataplane commits.
type Counters struct {
	// InvalidDropped returns how many packets were dropped that connection
	// tracking could not place.
	InvalidDropped func(context.Context) (packets uint64, err error)
	// LocalhostNodePorts returns how many connections to node ports at localhost
	// were accepted.
	LocalhostNodePorts func(context.Context) (packets uint64, err error)
	// LocalhostRejected returns how many packets to node ports at localhost were rejected, since the
	// rules were written.
	LocalhostRejected func(context.Context) ([]Rejected, error)
	// Traffic returns the new connections of service ports. Those of undeclared ports only have the Service,
	// and those of unused addresses are at zero.
	Traffic func(context.Context) (map[ir.ServicePort]Traffic, error)
	// Draining returns the draining backends. It reads their connections from the kernel.
	Draining func() []Drain
	// Proxied counts the connections that the process proxies, for each family and protocol.
	Proxied func() []Proxied
}

// Rejected counts the rejected packets of one family and protocol.
type Rejected struct {
	Family   ir.Family
	Protocol ir.Protocol
	Packets  uint64
}

// Proxied counts the proxied connections of one family and protocol.
type Proxied struct {
	Family   ir.Family
	Protocol ir.Protocol
	// Listeners counts the open listeners that have a backend.
	Listeners int
	// Clients counts open TCP connections, and UDP clients that have a socket.
	Clients int
	// The others count since the start: accepted clients; failed attempts to reach a
	// backend; TCP connections closed since no backend answered; TCP connections that
	// waited for another one to end; and UDP datagrams dropped for lack of a backend,
	// or since there were too many clients.
	Accepted, DialFailures, Unreachable, Waited, Dropped uint64
}

// ConcurrentReader is a Dataplane whose Read takes so long that changes should not wait for it.
type ConcurrentReader interface {
	// ReadConcurrently is Read, but may run while another goroutine calls the other methods. Its result
	// replaces that of the last Read when use is called.
	ReadConcurrently(ctx context.Context) (use func(), err error)
}

// ReadNow is the Read of a ConcurrentReader.
func ReadNow(ctx context.Context, d ConcurrentReader) error {
	use, err := d.ReadConcurrently(ctx)
	if err == nil {
		use()
	}
	return err
}

// ConcurrentRead returns the method of a ConcurrentReader; nil without one.
func ConcurrentRead(d Dataplane) func(context.Context) (use func(), err error) {
	if d, ok := d.(ConcurrentReader); ok {
		return d.ReadConcurrently
	}
	return nil
}

// Attributor is a Dataplane that reports which programs changed its rules.
type Attributor interface {
	// ChangedBy returns the programs that changed the rules since the last call:
	// "nft (process 4711)".
	ChangedBy() []string
}

// ChangedBy returns the programs that changed the rules since the last call, as far as
// they are known.
func ChangedBy(d Dataplane) []string {
	if d, ok := d.(Attributor); ok {
		return d.ChangedBy()
	}
	return nil
}

// Drainer is a Dataplane whose process proxies connections. It keeps them after Close.
type Drainer interface {
	// Carried returns how many connections there are.
	Carried() int
	// Drain waits until the connections have ended. When ctx ends it closes the
	// others, and returns their number.
	Drain(ctx context.Context) (cut int)
}

// DrainerOf returns the Dataplane as a Drainer; false if the process proxies no connections.
func DrainerOf(d Dataplane) (Drainer, bool) {
	dr, ok := d.(Drainer)
	return dr, ok
}

// Totaller is a Plan that counts its operations without naming them. The names of a whole
// cluster's operations need many megabytes.
type Totaller interface{ Total() Count }

// First returns the first n of a Plan's operations, and counts all.
func First(p Plan, n int) (first []Operation, total Count) {
	t, ok := p.(Totaller)
	for op := range p.Operations {
		if len(first) < n {
			first = append(first, op)
		} else if ok {
			return first, t.Total()
		}
		total.Add(op.Verb)
	}
	return first, total
}

// GoneLister is a Plan that reports which missing objects it restores.
type GoneLister interface{ Gone() []Gone }

// Gone is a missing object of proxyc. Its content is missing, too.
type Gone struct {
	What string // "table ip proxyc"
	// Within is the common beginning of the Objects of operations that restore the
	// content.
	Within string
}

// GoneIn returns the missing objects that a Plan restores.
func GoneIn(p Plan) []Gone {
	if p, ok := p.(GoneLister); ok {
		return p.Gone()
	}
	return nil
}

// Mender is a Dataplane that separates rules that no Service decides.
type Mender interface {
	// PlanShared reads the node, and returns the difference of the rules that no Service decides to those
	// that the nodes of Programs require. Rules of Services stay as they are. If there are several Programs, chains
	// about which they differ stay, too, and a family without rules of proxyc.
	PlanShared(ctx context.Context, nodes ...ir.Programs) (Plan, error)
}

// PlanShared returns the repair of the rules that no Service decides; nil if they cannot be separated.
func PlanShared(ctx context.Context, d Dataplane, nodes ...ir.Programs) (Plan, error) {
	if d, ok := d.(Mender); ok {
		return d.PlanShared(ctx, nodes...)
	}
	return nil, nil
}
