// Package apply makes a node's kernel equal to the compiled Programs: it reads what the
// node has, plans the difference, commits it, and verifies the result.
//
// Each mode's rules are a Dataplane in a package beneath this one. Planning is pure;
// reading and committing access the kernel.
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

// Dataplane is the rules of one mode on one node. It remembers what it last applied,
// so that the cost of PlanChanges follows the changed Services alone. What only some
// modes can do is declared in optional.go.
//
// One goroutine calls the methods. Other goroutines may call Applied, and use the channel
// that Drift returns.
type Dataplane interface {
	// Read reads what the node has. The next Plan compares with it. want is what the
	// node is expected to have: a Dataplane may read faster, and keep less, where the
	// node has it. The zero value expects nothing.
	Read(ctx context.Context, want ir.Programs) error
	// Plan returns the difference between what was last read and want. Its cost
	// follows the size of the cluster. It reads no kernel and changes nothing.
	Plan(want ir.Programs) Plan
	// PlanChanges returns the difference that changes make to what was last applied.
	// Its cost follows the changes. It may read what they require, and Commit returns the
	// error of that. Old of each Change is the applied Service: see
	// Applied.From. The Dataplane keeps changes, and may alter them. The caller
	// commits the Plan next, or reads the node.
	PlanChanges(changes ir.Changes) Plan
	// Commit carries out a Plan of the same Dataplane, in an order such that no packet
	// meets half a Service. If the kernel refuses Services, the Result lists them, and
	// the rules in force remain; see Converge. A mode without transactions may have
	// changed other Services. After an error or a refusal the kernel's content is
	// unknown: Read and Plan follow. With an error, the Result describes what was done
	// before it.
	Commit(ctx context.Context, p Plan) (Result, error)
	// Applied returns what the last successful commit put in force, with pools in the
	// order that is in force. Before the first commit it is empty. Only the Dataplane
	// changes it.
	Applied() *Applied
	// Drift watches for foreign changes of the rules until ctx ends. The channel it
	// returns has a token when there may be one. A nil channel never reports any.
	Drift(ctx context.Context) (<-chan struct{}, error)
	// Close releases the kernel. The rules remain, except where the process itself
	// carries the connections.
	Close() error
}

// CompareEvery is the interval of full comparisons without another reason (DMN-21, the maximum sync
// interval).
const CompareEvery = time.Hour

// Options configure a Dataplane. The zero value is the default.
type Options struct {
	// IPTables is the variant of iptables: "nft" or "legacy". Empty is the one that
	// the node uses.
	IPTables string
	// LockTimeout is how long to wait for a lock that another program holds. 0 is the
	// Dataplane's default.
	LockTimeout time.Duration
	// ReadOnly forbids any change of the node.
	ReadOnly bool
	// OwnTables makes the tables of mode nftables unwritable for other programs, where
	// the kernel can.
	OwnTables bool
	// ServiceMetrics is what the rules count.
	ServiceMetrics ServiceMetrics
	// Fastpath selects the connections that take the fast path, in mode nftables.
	Fastpath Fastpath
	// Network and RootEndpoint name the HNS network of the cluster and the host's
	// endpoint, in mode kernelspace.
	Network, RootEndpoint string
	// Local, if set, is called with the pod addresses that HNS reports on this node,
	// in mode kernelspace.
	Local func(map[netip.Addr]struct{})
	// Log, if set, receives messages of goroutines of the Dataplane.
	Log  *slog.Logger
	IPVS IPVS
}

// IPVS are the options of mode ipvs.
type IPVS struct {
	// Scheduler must exist in the kernel. It has no flags.
	Scheduler string
	// ManageAll removes every virtual server that no Service needs, including those of other programs,
	// as kube-proxy does.
	ManageAll bool
	// DrainDeadline is how long a removed backend keeps its connections, and a virtual server after a
	// change to another mode. 0 means the constant DrainDeadline.
	DrainDeadline time.Duration
}

// DrainDeadline is how long ip_vs keeps connections to removed backends by default. It is longer than
// the usual termination grace period of pods. Clients that still send afterwards are most likely not
// aware that the pod was removed.
const DrainDeadline = time.Hour

// Drain is a removed backend that serves only existing connections.
type Drain struct {
	Service  ir.Name        `json:"service,omitzero"` // zero where the drain began before this process did
	Frontend ir.Match       `json:"frontend"`
	Backend  netip.AddrPort `json:"backend"`
	// Since is when this process first saw it drain.
	Since       time.Time `json:"since"`
	Connections int       `json:"connections"`
}

// Plan is the difference between a node's content and the desired one. It is immutable.
type Plan interface {
	// Empty reports whether there is nothing to do.
	Empty() bool
	// Operations calls yield for each operation in the order of commit, until
	// it returns false.
	Operations(yield func(Operation) bool)
	// Differences is Operations with Have and Want set, which takes longer.
	Differences(yield func(Operation) bool)
	// RemovedFrontends returns the frontends that the commit removes from the node.
	RemovedFrontends() []ir.Match
}

// Emitter passes operations to a consumer until it stops.
type Emitter struct {
	Yield   func(Operation) bool
	Stopped bool
}

// Emit passes an operation. It does nothing after the consumer has stopped.
func (e *Emitter) Emit(op Operation) { e.Stopped = e.Stopped || !e.Yield(op) }

// Result is the result of a Commit.
type Result struct {
	// Refused are the Services whose rules the kernel refused, by name.
	Refused []Refusal
	// Pending is the number of objects that the kernel still uses, so that their removal is pending. They
	// have no effect, and a later Commit removes them.
	Pending ir.PerFamily[int]
	// RefusedRemovals are the objects that no Service needs, and that the kernel refused to remove in
	// this or an earlier Commit. Clients still reach them. Later Commits retry.
	RefusedRemovals []Refusal
	// Tables count the rules of dataplanes that have them in tables.
	Tables []TableCount
	// Failed are the families whose rules caused the error. It is empty if both did,
	// or if the family is unknown.
	Failed []ir.Family
	// Balancers are the failed calls about load balancers (Windows).
	Balancers []BalancerFailure
}

// BalancerFailure is a call that did not add, change or remove a load balancer. Type and Cause are
// the labels of kube-proxy's metrics: lb_type and error.
type BalancerFailure struct {
	Verb        Verb
	Family      ir.Family
	Type, Cause string
}

// Refusal is one Service whose rules the kernel refused, or one object whose removal it refused.
type Refusal struct {
	Service ir.Name  // zero if the Service of the object is unknown
	Reason  error    // the kernel's
	Object  string   // to remove; "" for rules
	Uses    []string // objects that remain with it
}

// Subject is what the kernel refuses.
func (r *Refusal) Subject() string {
	switch {
	case r.Object == "":
		return "Service " + r.Service.String()
	case r.Service == (ir.Name{}):
		return "removal of " + r.Object
	}
	return "removal of " + r.Object + " of Service " + r.Service.String()
}

func (r *Refusal) Error() string {
	what := "it"
	if r.Object == "" {
		what = "its rules"
	}
	return r.Subject() + ": the kernel refuses " + what + ": " + r.Reason.Error()
}

// RefusedObjects returns the objects that the kernel did not remove, and those that they use. They are no foreign change.
func RefusedObjects(all []Refusal) map[string]bool {
	objects := map[string]bool{}
	for _, r := range all {
		for _, object := range append(r.Uses, r.Object) {
			objects[object] = true
		}
	}
	return objects
}

// Refusals are the Services that the kernel refuses, with the first reason of each.
type Refusals map[ir.Name]error

// Add adds a Service, unless it has a reason already.
func (r Refusals) Add(service ir.Name, reason error) {
	if r[service] == nil {
		r[service] = reason
	}
}

// List returns the Refusals by name.
func (r Refusals) List() (all []Refusal) {
	for _, name := range slices.SortedFunc(maps.Keys(r), ir.Name.Compare) {
		all = append(all, Refusal{Service: name, Reason: r[name]})
	}
	return all
}

// Error joins all Refusals into one error; nil if there are none.
func (r *Result) Error() error {
	var errs []error
	for _, one := range slices.Concat(r.Refused, r.RefusedRemovals) {
		errs = append(errs, &one)
	}
	return errors.Join(errs...)
}

// TableCount is how many rules one table of a family has.
type TableCount struct {
	Family  ir.Family
	Table   string
	Rules   int // after the commit
	Written int // by the commit, rewritten ones included
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

// UnmarshalText reads the text that String returns.
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
	Origin  ir.Origin `json:"origin,omitzero"`  // of what is wanted; zero if Verb is Remove
	// Have is surplus content of the object, and Want is missing content: rules, an element, or words of
	// a declaration, as the dataplane's tool lists them. If only the order differs, both contain all
	// lines. Only Differences sets them.
	Have []string `json:"have,omitempty"`
	Want []string `json:"want,omitempty"`
}

// LinesShown is the maximum number of lines in Have and Want of an Operation. If there are more, a
// further line contains their number.
const LinesShown = 20

// Lines returns at most LinesShown lines, and one with the number of those it omits.
func Lines(all []string) []string {
	if more := len(all) - LinesShown; more > 0 {
		return append(all[:LinesShown:LinesShown], fmt.Sprintf("and %d more", more))
	}
	return all
}

// LinesOf sets Have and Want to the lines that only one side has. If both sides have the
// same lines in another order, it sets them to all lines.
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

// Foreign is the error of a Read that found an object with proxyc's name that another
// program owns.
type Foreign struct {
	Object string // "table ip proxyc"
	Why    string
}

func (f *Foreign) Error() string { return f.Object + ": belongs to another program: " + f.Why }
