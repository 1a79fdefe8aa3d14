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
)

// ServicesProgrammed is the Node condition that says whether the node's rules do what the
// cluster's Services mean.
const ServicesProgrammed corev1.NodeConditionType = "ServicesProgrammed"

// States of a Condition.
const (
	True    = corev1.ConditionTrue
	False   = corev1.ConditionFalse
	Unknown = corev1.ConditionUnknown
)

// Condition is a state of ServicesProgrammed.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string // "RulesInForce"
	Message string
	// Since is when Status last became another, in whole seconds.
	Since time.Time
}

// same reports whether two say the same: a message may have details that change all the time.
func (c *Condition) same(o *Condition) bool {
	return c != nil && o != nil && c.Status == o.Status && c.Reason == o.Reason
}

// NodeCondition keeps ServicesProgrammed on this node's Node object. It writes when that says
// something else than what is true, at most every conditionEvery, and never otherwise: there is no heartbeat. A nil one does nothing.
type NodeCondition struct {
	NodeName string
	Log      *slog.Logger
	Now      func() time.Time
	// Booted is when the machine was started; zero: not known. What was true before is not any more.
	Booted time.Time
	// Want returns what is true now; false: that is not known yet, and what is said may stay, as an
	// earlier process knew it, but for what it said before the machine was started.
	Want func() (Condition, bool)

	poked chan struct{}

	mu    sync.Mutex
	known bool       // there is a Node
	have  *Condition // nil: it has none
}

const (
	// conditionEvery is how long to wait at least between two writes.
	conditionEvery = time.Second
	// conditionAgain is how long to wait after a write that failed, and conditionRarely how long at
	// most after several.
	conditionAgain  = 5 * time.Second
	conditionRarely = 5 * time.Minute
	// conditionLook is how often what is true is asked for, as time alone can change it.
	conditionLook = 5 * time.Second
)

// NewNodeCondition returns a NodeCondition that writes when the API's Run runs.
func NewNodeCondition(nodeName string, log *slog.Logger, booted time.Time, want func() (Condition, bool)) *NodeCondition {
	return &NodeCondition{NodeName: nodeName, Log: log, Now: time.Now, Booted: booted, Want: want, poked: make(chan struct{}, 1)}
}

// Poke has what is true looked at now.
func (c *NodeCondition) Poke() {
	if c == nil {
		return
	}
	select {
	case c.poked <- struct{}{}:
	default: // it will be
	}
}

// seen is told of the Node, which may have none of the condition.
func (c *NodeCondition) seen(there bool, have *Condition) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.known, c.have = there, have
	c.mu.Unlock()
	c.Poke()
}

// conditionOf is what a Node has of the condition; nil: nothing.
func conditionOf(n *corev1.Node) *Condition {
	for _, c := range n.Status.Conditions {
		if c.Type == ServicesProgrammed {
			return &Condition{c.Status, c.Reason, c.Message, c.LastTransitionTime.Time}
		}
	}
	return nil
}

// due returns what is to be written; nil: nothing.
func (c *NodeCondition) due() *Condition {
	want, sure := c.Want()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Now()
	booted := now.Add(c.Booted.Sub(now)) // on the clock as it is now: it may have been set since
	old := c.have != nil && c.have.Since.Before(booted)
	switch {
	case !c.known, c.have == nil && !sure:
		return nil
	case c.have != nil && !old && (!sure || c.have.same(&want)):
		return nil
	case old && c.have.same(&want) && want.Status != True: // it was not true in between either
		return nil
	}
	want.Since = now.Truncate(time.Second)
	if c.have != nil && !old && c.have.Status == want.Status {
		want.Since = c.have.Since
	}
	return &want
}

// run writes until ctx ends.
func (c *NodeCondition) run(ctx context.Context, client rest.Interface) {
	look := time.NewTicker(conditionLook)
	defer look.Stop()
	wait := conditionAgain
	var next time.Time // when the next write may be
	var then <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.poked:
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
				c.Log.Error("condition "+string(ServicesProgrammed)+" cannot be written: will be tried again", "after", wait, "err", err)
			}
			next = now.Add(wait)
			wait = min(2*wait, conditionRarely)
			continue
		}
		c.Log.Info("condition "+string(ServicesProgrammed), "status", string(want.Status), "reason", want.Reason, "message", want.Message)
		next, wait = now.Add(conditionEvery), conditionAgain
		c.mu.Lock()
		c.have = want
		c.mu.Unlock()
	}
}

// write makes the Node have the condition, and leaves the others alone.
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
