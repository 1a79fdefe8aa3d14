// Package apply makes a node's kernel hold what the compiler wants: it reads
// what is there, plans the difference, commits it, and checks that it holds.
//
// Each mode's rules are a Dataplane in a package below. Planning is pure;
// reading and committing touch the kernel.
package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Dataplane is one mode's rules on one node. It remembers what it last applied,
// so that a change of a few Services is planned from them alone.
//
// Its methods are called by one goroutine; Compare, Applied, and the channel and
// the counters that it gives, may be used by others.
type Dataplane interface {
	// Read reads what the node has, for Plan to compare with.
	Read(ctx context.Context) error
	// Plan returns what leads from what was read last to want. It costs what the
	// cluster does, reads no kernel and changes nothing.
	Plan(want ir.Programs) Plan
	// PlanChanges returns what leads from what was applied last to what differs
	// from it by changes; their Old is ignored: the Dataplane knows it. It costs
	// what the changes do.
	// The Plan is committed next, or the node is read again.
	PlanChanges(changes ir.Changes) Plan
	// Compare reads what the node has, and returns what leads from there to what
	// was applied last. It costs what the cluster does, or less where Drift told
	// exactly what others touched: then it looks at that alone. It alone may go on while
	// another goroutine calls the other methods: what these have to do with is to
	// be left out of its Plan.
	Compare(ctx context.Context) (Plan, error)
	// Commit carries a Plan of the same Dataplane out, in an order such that no
	// packet meets half a Service. Services that the kernel refuses are left out
	// and the rest is put in force: the Result names them. After an error, and
	// where Services were refused, nobody knows what the node has: Read and Plan
	// come next. With an error, what the Result says is what was done until then.
	Commit(ctx context.Context, p Plan) (Result, error)
	// Applied returns the Programs of the last successful commit: nothing at first. Their
	// pools are in the order in which they are in force.
	Applied() ir.Programs
	// Drift begins to look for changes of the rules by others, until ctx ends,
	// and returns a channel that gives a token when there may be any.
	Drift(ctx context.Context) (<-chan struct{}, error)
	// Leftovers returns what proxies of other modes left on the node, and
	// kube-proxy beside the rules that Plan takes over.
	Leftovers(ctx context.Context) ([]Leftover, error)
	// Counters returns what the kernel counts of packets.
	Counters() Counters
	// Close lets go of the kernel. The rules stay.
	Close() error
}

// Gone is something of ours that is not there, and with it all that was in it.
type Gone struct {
	What   string // "table ip proxyc"
	Within string // what the Objects of operations begin with that make anew what was in it
}

// GoneIn returns what is not there that a Plan makes anew, where it tells.
func GoneIn(p Plan) []Gone {
	if p, ok := p.(interface{ Gone() []Gone }); ok {
		return p.Gone()
	}
	return nil
}

// ChangedBy returns who changed the rules of a Dataplane since it was asked last, where it
// knows: "nft (process 4711)".
func ChangedBy(d any) []string {
	if d, ok := d.(interface{ ChangedBy() []string }); ok {
		return d.ChangedBy()
	}
	return nil
}

// ReadFor has a Dataplane read what the node has, for a Plan of want. Some read a node
// faster that has it already.
func ReadFor(ctx context.Context, d Dataplane, want ir.Programs) error {
	if d, ok := d.(interface {
		ReadFor(context.Context, ir.Programs) error
	}); ok {
		return d.ReadFor(ctx, want)
	}
	return d.Read(ctx)
}

// CompareEvery is how often all that a node has is compared with what it should
// have, if nothing else gives a reason to (DMN-21).
const CompareEvery = time.Hour

// Drainer is a Dataplane that carries connections itself. Once it is closed,
// Drain lets them go on until ctx ends, and returns how many it cut off then.
type Drainer interface {
	Carried() int
	Drain(ctx context.Context) (cut int)
}

// Options say how a Dataplane is opened. The zero value is the default.
type Options struct {
	// IPTables is the variant of iptables to use, "nft" or "legacy"; empty: the
	// one that the node uses.
	IPTables string
	// LockTimeout is how long to wait for a lock that another program holds; 0
	// means the dataplane's default.
	LockTimeout time.Duration
	// ReadOnly tells that nothing is to be changed, whatever reading meets.
	ReadOnly bool
	// OwnTables has the kernel keep others from the tables of mode nftables, where it can.
	OwnTables bool
	// Fastpath is what of the connections takes the fast path, in mode nftables.
	Fastpath Fastpath
	// Network and RootEndpoint name the HNS network of the cluster, and the host's
	// endpoint, in mode kernelspace.
	Network, RootEndpoint string
	// Local is told which addresses HNS has of the node's own pods, in mode
	// kernelspace; nil: nobody wants to know.
	Local func(map[netip.Addr]struct{})
	// Log is told what the dataplane finds by itself; nil: nobody is.
	Log  *slog.Logger
	IPVS IPVS
	// Previous is the dataplane of the same or another mode that is in force, and is
	// closed when this one is; nil: none. One of the same mode may have what it
	// holds in the process taken over.
	Previous Dataplane
}

// IPVS are the options of mode ipvs.
type IPVS struct {
	// Scheduler is the one that has to be there, without flags.
	Scheduler string
	// ManageAll removes virtual servers of anybody that no Service wants, as
	// kube-proxy does.
	ManageAll bool
	// DrainDeadline is how long a backend that is wanted no longer keeps its
	// connections, and so a virtual server when the mode is left; 0 means
	// apply.DrainDeadline.
	DrainDeadline time.Duration
}

// DrainDeadline is how long ip_vs keeps connections to what is wanted no longer,
// by default. It is longer than pods are commonly given to end; after it, who
// still sends is most likely a client that does not know that its pod is gone.
const DrainDeadline = time.Hour

// Drain is a backend that serves the connections that it has, and gets no new
// ones.
type Drain struct {
	Service  ir.Name        `json:"service,omitzero"` // zero where the drain began before this process did
	Frontend ir.Match       `json:"frontend"`
	Backend  netip.AddrPort `json:"backend"`
	// Since is when this process saw it first.
	Since       time.Time `json:"since"`
	Connections int       `json:"connections"`
}

// Counters read what the kernel counts of packets, and a process of what it
// carries; nil where they do not. They may be called while the Dataplane is at work.
type Counters struct {
	// InvalidDropped returns how many packets were dropped that connection
	// tracking could not place.
	InvalidDropped func(context.Context) (packets uint64, err error)
	// LocalhostNodePorts returns how many connections to node ports at localhost
	// were accepted.
	LocalhostNodePorts func(context.Context) (packets uint64, err error)
	// Draining returns the backends that drain, where the kernel has to be asked
	// about their connections.
	Draining func() []Drain
	// Proxied returns what the process carries itself, for each family and protocol.
	Proxied func() []Proxied
}

// Proxied counts what a process carries of one family and protocol.
type Proxied struct {
	Family   ir.Family
	Protocol ir.Protocol
	// Listeners are those that have a backend.
	Listeners int
	// Clients are those under way: TCP connections, UDP clients that have a socket.
	Clients int
	// The others are of all the time: clients that came; attempts to reach a backend
	// that failed; TCP connections hung up on, as no backend answered; TCP
	// connections that waited for the end of another one; and UDP datagrams that
	// were dropped, for want of a backend or as there are too many clients.
	Accepted, DialFailures, Unreachable, Waited, Dropped uint64
}

// Plan is the difference between what a node has and what it should have. It
// never changes.
type Plan interface {
	// Empty reports whether there is nothing to do.
	Empty() bool
	// Operations calls yield for each operation in the order of commit, until
	// it returns false.
	Operations(yield func(Operation) bool)
	// Differences is Operations, each with what the node has and should have,
	// which takes longer.
	Differences(yield func(Operation) bool)
	// RemovedFrontends returns the frontends that the node has and will not have any longer.
	RemovedFrontends() []ir.Match
	// Without returns the Plan without the operations on some objects. ok is false
	// where they cannot be told from the others.
	Without(objects map[string]bool) (rest Plan, ok bool)
}

// Result is what a Commit did.
type Result struct {
	// Refused are the Services that the kernel did not take, by name.
	Refused []Refusal
	// Busy is how many objects could not be removed, since the kernel still uses
	// them. They do no harm, and go with a later Commit.
	Busy ir.PerFamily[int]
	// Tables count the rules of dataplanes that have them in tables.
	Tables []TableCount
	// Failed are the families whose rules gave rise to the error; none: to both,
	// or it is not known.
	Failed []ir.Family
}

// Refusal is one Service that the kernel did not take.
type Refusal struct {
	Service ir.Name
	Reason  error // the kernel's
}

// Refusals are the Services that a commit leaves out, with the first reason of each.
type Refusals map[ir.Name]error

// Add leaves a Service out.
func (r Refusals) Add(service ir.Name, reason error) {
	if r[service] == nil {
		r[service] = reason
	}
}

// List returns them by name.
func (r Refusals) List() (all []Refusal) {
	for _, name := range slices.SortedFunc(maps.Keys(r), ir.Name.Compare) {
		all = append(all, Refusal{Service: name, Reason: r[name]})
	}
	return all
}

// Error joins the Refusals into one error; nil if there are none.
func (r *Result) Error() error {
	var errs []error
	for _, one := range r.Refused {
		errs = append(errs, fmt.Errorf("%s: the kernel refuses its rules: %w", "Service "+one.Service.String(), one.Reason))
	}
	return errors.Join(errs...)
}

// TableCount is how many rules one table of a family has.
type TableCount struct {
	Family  ir.Family
	Table   string
	Rules   int // after the Plan
	Written int // by it, those that are written again included
}

// Verb is what an operation does.
type Verb uint8

const (
	Add Verb = iota
	Change
	Remove
)

// String returns add, change or remove.
func (v Verb) String() string { return [...]string{"add", "change", "remove"}[v] }

// MarshalText returns String.
func (v Verb) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads what String gives.
func (v *Verb) UnmarshalText(text []byte) error {
	for _, one := range [...]Verb{Add, Change, Remove} {
		if one.String() == string(text) {
			*v = one
			return nil
		}
	}
	return fmt.Errorf("verb: must be add, change or remove, got %q", text)
}

// Operation is one change of one rule, chain or element.
type Operation struct {
	Verb    Verb      `json:"verb"`
	Object  string    `json:"object"`           // as the dataplane's tool lists it
	Service ir.Name   `json:"service,omitzero"` // zero: the fixed part, shared by all
	Origin  ir.Origin `json:"origin,omitzero"`  // of what is wanted; zero for what goes
	// Have and Want are what the node has of the object and should not have, and
	// what it lacks: rules, an element, or words of a declaration, as the
	// dataplane's tool lists them. Both have the same lines where only their order
	// is not alike. Only Differences gives them.
	Have []string `json:"have,omitempty"`
	Want []string `json:"want,omitempty"`
}

// LinesShown is how many lines Have and Want of an Operation have at most, but
// for one that tells how many more there are.
const LinesShown = 20

// Lines returns the lines as Have and Want have them.
func Lines(all []string) []string {
	if more := len(all) - LinesShown; more > 0 {
		return append(all[:LinesShown:LinesShown], fmt.Sprintf("and %d more", more))
	}
	return all
}

// LinesOf sets Have and Want to the lines that only one side has; to all, where
// both have the same in another order.
func (o *Operation) LinesOf(have, want []string) {
	count := make(map[string]int, len(want))
	for _, l := range want {
		count[l]++
	}
	only := func(lines []string) (some []string) {
		for _, l := range lines {
			if count[l]--; count[l] < 0 {
				some = append(some, l)
			}
		}
		return some
	}
	gone := only(have)
	clear(count)
	for _, l := range have {
		count[l]++
	}
	if come := only(want); len(gone)+len(come) > 0 {
		have, want = gone, come
	}
	o.Have, o.Want = Lines(have), Lines(want)
}

// Foreign is the error of a Read that met an object under proxyc's name which
// somebody else owns.
type Foreign struct {
	Object string // "table ip proxyc"
	Why    string
}

func (f *Foreign) Error() string { return f.Object + ": belongs to somebody else: " + f.Why }
