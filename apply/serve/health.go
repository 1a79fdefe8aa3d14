package serve

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Health tracks three states: whether the rules follow the cluster in time, whether load balancers
// should send traffic to the node, and whether the kernel matches the desired rules. It is safe for
// concurrent use.
type Health struct {
	// Pending is optional. It returns the number of changes that wait for a sync. While there are
	// any, the proxy is not ready. Set it before use.
	Pending func() int
	// FollowUp is optional. It returns the work that must complete before the rules count as applied,
	// or "". Set it before use.
	FollowUp func() string
	// Outage is optional. It returns why the desired state is unknown, or "". The proxy is then not
	// ready, but still healthy, since a restart would not help. Set it before use.
	Outage func() string

	// OtherProxy is optional. It returns which rules of another proxy may apply to packets, or "". The
	// proxy is then not ready, whatever SetNotReady recorded. Set it before use.
	OtherProxy func() string

	timeout time.Duration
	now     func() time.Time

	mu       sync.Mutex
	progress map[ir.Family]progress
	node     *Node
	waiting  string
}

// progress is the state of one family's rules.
type progress struct {
	queued  time.Time // arrival of the oldest change that is not applied; zero if there is none
	updated time.Time // when all changes were last applied; zero if never
}

// NewHealth returns a Health without any updates. If a change waits for longer than timeout, the
// proxy is unhealthy. kube-proxy uses twice the syncPeriod of the mode.
func NewHealth(timeout time.Duration, now func() time.Time) *Health {
	return &Health{timeout: timeout, now: now, progress: map[ir.Family]progress{}, waiting: "starting"}
}

// Queued records that a change waits to be applied.
func (h *Health) Queued(f ir.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.progress[f]
	if p.queued.IsZero() {
		p.queued = h.now()
	}
	h.progress[f] = p
}

// Updated records that all changes are applied. After a failed sync, changes stay queued.
func (h *Health) Updated(f ir.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progress[f] = progress{updated: h.now()}
}

// Node decides whether load balancers should send traffic to the node (KEP-3836, kube-proxy
// improved ingress connectivity reliability).
type Node struct {
	Terminating bool     // the Node has a deletionTimestamp
	Taints      []string // keys of spec.taints
}

// toBeDeleted is the taint on a node that the cluster autoscaler will remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

func (n *Node) eligible() bool {
	return n != nil && !n.Terminating && !slices.Contains(n.Taints, toBeDeleted)
}

// SetNode records the state of this node's Node object; nil if it is unknown or deleted.
func (h *Health) SetNode(n *Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.node = n
}

// SetNotReady records why the kernel does not match the desired rules: "3 Services are refused";
// "" if it does.
func (h *Health) SetNotReady(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = why
}

// Status is the body of /healthz and /livez.
type Status struct {
	// LastUpdated is when the rules of any family were last applied. In responses with code 200 it is
	// the current time, as in old kube-proxy releases.
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"` // only in /healthz
	// Healthy reports whether no family is late. The node's eligibility does not count.
	Healthy bool `json:"healthy"`
	// Families contains the families whose rules were applied at least once.
	Families map[string]FamilyStatus `json:"status,omitempty"`
}

// FamilyStatus is the state of one family's rules.
type FamilyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Status returns the state of the rules. A family without any update does not count. The proxy is
// thus healthy while it starts; otherwise a kubelet would restart it before a large cluster is
// read. Only /readyz distinguishes the two.
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
		updated := s.CurrentTime.Add(p.updated.Sub(s.CurrentTime)) // by the wall clock as it is now: it may have been set since
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
	Reason string `json:"reason,omitempty"` // empty if ready
}

// Ready reports whether the kernel matches the desired rules.
func (h *Health) Ready() Ready {
	outage, pending := call(h.Outage), ""
	if h.Pending != nil && h.Pending() > 0 {
		pending = "a change is pending"
	}
	h.mu.Lock()
	waiting := h.waiting
	h.mu.Unlock()
	// The reasons were read in the order in which a change passes them: an outage delays it, it is
	// pending, then waiting, and then it has a follow-up. So at least one of them reports it.
	why := cmp.Or(waiting, outage, pending, call(h.FollowUp), call(h.OtherProxy))
	return Ready{Ready: why == "", Reason: why}
}

func call(reason func() string) string {
	if reason == nil {
		return ""
	}
	return reason()
}
