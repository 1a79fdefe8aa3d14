package watch

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/apply"
)

// ServicesProgrammed is the Node condition that reports whether the node's rules implement the
// cluster's Services.
const ServicesProgrammed corev1.NodeConditionType = "ServicesProgrammed"

// Statuses of a Condition.
const (
	True    = corev1.ConditionTrue
	False   = corev1.ConditionFalse
	Unknown = corev1.ConditionUnknown
)

// Condition is the content of a ServicesProgrammed condition.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string // a CamelCase reason: "RulesInForce"
	Message string
	// Since is the last transition of Status, in whole seconds.
	Since time.Time
}

// same reports whether two conditions have the same status and reason. Messages are not compared,
// since they contain details that change often.
func (c *Condition) same(o *Condition) bool {
	return c != nil && o != nil && c.Status == o.Status && c.Reason == o.Reason
}

// NodeCondition maintains ServicesProgrammed on this node's Node object. It writes only when the
// object differs from the actual state, and at most every conditionEvery. There is no heartbeat.
// The methods of a nil NodeCondition do nothing.
type NodeCondition struct {
	NodeName string
	Log      *slog.Logger
	Now      func() time.Time
	// BootTime is when the machine started; zero if unknown. Conditions from before are outdated.
	BootTime time.Time
	// Want returns the actual condition, or false if it is not yet known. An earlier process's
	// condition then stays, unless it is from before BootTime.
	Want func() (Condition, bool)

	triggered chan struct{}

	mu      sync.Mutex
	exists  bool       // the Node exists
	current *Condition // the Node's condition; nil if it has none
}

const (
	// conditionEvery is the shortest time between two writes.
	conditionEvery = time.Second
	// conditionRetry is the wait after a failed write. It doubles with each further failure, up to
	// conditionMaxRetry.
	conditionRetry    = 5 * time.Second
	conditionMaxRetry = 5 * time.Minute
	// conditionCheck is how often Want is called without a Trigger, since the condition also depends on
	// time.
	conditionCheck = 5 * time.Second
)

// NewNodeCondition returns a NodeCondition. It writes while API.Run runs.
func NewNodeCondition(nodeName string, log *slog.Logger, booted time.Time, want func() (Condition, bool)) *NodeCondition {
	return &NodeCondition{NodeName: nodeName, Log: log, Now: time.Now, BootTime: booted, Want: want, triggered: make(chan struct{}, 1)}
}

// Trigger triggers a comparison now.
func (c *NodeCondition) Trigger() {
	if c == nil {
		return
	}
	apply.Wake(c.triggered)
}

// observe records whether the Node exists, and its condition or nil.
func (c *NodeCondition) observe(there bool, have *Condition) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.exists, c.current = there, have
	c.mu.Unlock()
	c.Trigger()
}

// conditionOf returns the ServicesProgrammed condition of a Node, or nil.
func conditionOf(n *corev1.Node) *Condition {
	for _, c := range n.Status.Conditions {
		if c.Type == ServicesProgrammed {
			return &Condition{c.Status, c.Reason, c.Message, c.LastTransitionTime.Time}
		}
	}
	return nil
}

// due returns the condition to write, or nil.
func (c *NodeCondition) due() *Condition {
	want, sure := c.Want()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Now()
	booted := now.Add(c.BootTime.Sub(now)) // by the wall clock as it is now: it may have been set since
	old := c.current != nil && c.current.Since.Before(booted)
	switch {
	case !c.exists, c.current == nil && !sure:
		return nil
	case c.current != nil && !old && (!sure || c.current.same(&want)):
		return nil
	case old && c.current.same(&want) && want.Status != True: // it was not true in between either
		return nil
	}
	want.Since = now.Truncate(time.Second)
	if c.current != nil && !old && c.current.Status == want.Status {
		want.Since = c.current.Since
	}
	return &want
}

// run writes conditions until ctx ends.
func (c *NodeCondition) run(ctx context.Context, client rest.Interface) {
	look := time.NewTicker(conditionCheck)
	defer look.Stop()
	wait := conditionRetry
	var next time.Time // earliest time of the next write
	var then <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.triggered:
		case <-look.C:
		case <-then:
		}
		now := c.Now()
		if now.Before(next) {
			then = time.After(next.Sub(now))
			continue
		}
		want := c.due()
		if want == nil {
			continue
		}
		if err := c.write(ctx, client, want); err != nil {
			if ctx.Err() == nil {
				c.Log.Error("condition "+string(ServicesProgrammed)+" cannot be written: retrying", "after", wait, "err", err)
			}
			next = now.Add(wait)
			wait = min(2*wait, conditionMaxRetry)
			continue
		}
		c.Log.Info("condition "+string(ServicesProgrammed), "status", string(want.Status), "reason", want.Reason, "message", want.Message)
		next, wait = now.Add(conditionEvery), conditionRetry
		c.mu.Lock()
		c.current = want
		c.mu.Unlock()
	}
}

// write patches the condition of the Node. Other conditions are unchanged.
func (c *NodeCondition) write(ctx context.Context, client rest.Interface, want *Condition) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: ServicesProgrammed, Status: want.Status, Reason: want.Reason, Message: want.Message,
		LastHeartbeatTime: metav1.NewTime(c.Now()), LastTransitionTime: metav1.NewTime(want.Since),
	}}}})
	if err != nil {
		return err
	}
	return client.Patch(types.StrategicMergePatchType).Resource("nodes").Name(c.NodeName).SubResource("status").Body(patch).Do(ctx).Error()
}
