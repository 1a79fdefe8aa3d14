package serve

import (
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Health knows whether the rules keep up with the cluster, whether the node
// should get traffic from load balancers, and whether the kernel holds what
// was last wanted. It is safe for use by several goroutines.
type Health struct {
	// Pending, if set, returns how many changes nobody has taken yet: while there
	// are any, the kernel does not hold what is wanted. It is set before use.
	Pending func() int
	// Following, if set, says what has to follow before the last SetReady counts;
	// "": nothing. It is set before use.
	Following func() string
	// CutOff, if set, says why what is wanted is not known any more; "": it is.
	// It makes the proxy not ready, and never unhealthy: to end it would help
	// nobody. It is set before use.
	CutOff func() string

	// Beside, if set, says which rules of another proxy packets may follow; "": none.
	// It makes the proxy not ready, whatever SetReady notes. It is set before use.
	Beside func() string

	timeout time.Duration
	now     func() time.Time

	mu       sync.Mutex
	progress map[ir.Family]progress
	node     *Node
	waiting  string
}

// progress is how far one family's rules are.
type progress struct {
	queued  time.Time // of the oldest change that is not in force; zero: there is none
	updated time.Time // when all changes were last in force; zero: never
}

// NewHealth makes a Health that has seen nothing yet. Changes may wait for
// timeout, which is twice the syncPeriod of the mode, before the proxy counts
// as unhealthy.
func NewHealth(timeout time.Duration, now func() time.Time) *Health {
	return &Health{timeout: timeout, now: now, progress: map[ir.Family]progress{}, waiting: "starting"}
}

// GoOn takes over what was in force by a configuration before; nil: there was none. What
// waited there is asked for anew.
func (h *Health) GoOn(before *Health) {
	if before == nil {
		return
	}
	before.mu.Lock()
	defer before.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for f, p := range before.progress {
		h.progress[f] = progress{updated: p.updated}
	}
}

// Queued notes that a change waits to be put in force.
func (h *Health) Queued(f ir.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.progress[f]
	if p.queued.IsZero() {
		p.queued = h.now()
	}
	h.progress[f] = p
}

// Updated notes that all changes are in force. After a sync that failed they
// go on waiting.
func (h *Health) Updated(f ir.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progress[f] = progress{updated: h.now()}
}

// Node is what decides whether load balancers should send traffic to the node
// (KEP-3836).
type Node struct {
	Terminating bool     // has a deletionTimestamp
	Taints      []string // keys of spec.taints
}

// toBeDeleted is the taint of a node that the cluster autoscaler will remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

func (n *Node) eligible() bool {
	return n != nil && !n.Terminating && !slices.Contains(n.Taints, toBeDeleted)
}

// SetNode notes the state of this node's Node object; nil where it is not known, or gone.
func (h *Health) SetNode(n *Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.node = n
}

// SetReady notes that the kernel holds what was last wanted.
func (h *Health) SetReady() { h.setWaiting("") }

// SetNotReady notes that it does not, and why: "3 Services are quarantined".
func (h *Health) SetNotReady(why string) { h.setWaiting(why) }

func (h *Health) setWaiting(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = why
}

// Status is the body of /healthz and /livez.
type Status struct {
	// LastUpdated is when the rules of any family were last in force; in
	// answers of code 200 it is the current time, as old releases had it.
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"` // only in /healthz
	// Healthy reports whether no family is behind; the node does not count.
	Healthy bool `json:"healthy"`
	// Families holds those whose rules were in force at least once.
	Families map[string]FamilyStatus `json:"status,omitempty"`
}

// FamilyStatus is the state of one family's rules.
type FamilyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Status returns the state of the rules. A family that was never in force does
// not count: the proxy is healthy while it starts, else a kubelet would end it
// before a large cluster is read. /readyz tells those two apart.
func (h *Health) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Status{CurrentTime: h.now(), Healthy: true, Families: map[string]FamilyStatus{}}
	for _, f := range ir.Families() {
		p := h.progress[f]
		if p.updated.IsZero() {
			continue
		}
		late := !p.queued.IsZero() && s.CurrentTime.Sub(p.queued) >= h.timeout
		updated := s.CurrentTime.Add(p.updated.Sub(s.CurrentTime)) // on the clock as it is now: it may have been set since
		s.Families[f.String()] = FamilyStatus{LastUpdated: updated, Healthy: !late}
		s.Healthy = s.Healthy && !late
		if updated.After(s.LastUpdated) {
			s.LastUpdated = updated
		}
	}
	return s
}

// Eligible reports whether load balancers should send traffic to the node.
func (h *Health) Eligible() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node.eligible()
}

// Ready is the body of /readyz.
type Ready struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why not
}

// Ready reports whether the kernel holds what was last wanted.
func (h *Health) Ready() Ready {
	pending := h.Pending != nil && h.Pending() > 0
	cutOff := ""
	if h.CutOff != nil {
		cutOff = h.CutOff()
	}
	h.mu.Lock()
	waiting := h.waiting
	h.mu.Unlock()
	beside := ""
	if h.Beside != nil {
		beside = h.Beside()
	}
	following := ""
	if h.Following != nil {
		following = h.Following() // after waiting: what follows a sync is known when that ends
	}
	switch {
	case waiting != "":
		return Ready{Reason: waiting}
	case cutOff != "":
		return Ready{Reason: cutOff}
	case pending:
		return Ready{Reason: "a change is waiting"}
	case following != "":
		return Ready{Reason: following}
	case beside != "":
		return Ready{Reason: beside}
	}
	return Ready{Ready: true}
}
