package e2e

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/e2e/kube"
)

// A churn changes the Services in a range of numbers at random. It adds, removes and changes
// them, their endpoints, and the readiness of these.
type churn struct {
	t        *testing.T
	cluster  *kube.Cluster
	r        *rand.Rand
	first    int
	services []numbered
	absent   []bool

	working sync.Mutex // held during a change
	changes int
}

var churnPods = []string{"pod1a", "pod1b", "pod1c", "pod2a", "pod2b", "pod2c", "pod1c.100", "pod1c.101", "pod2c.100", "pod2c.101"}

// newChurn creates the Services first to last-1.
func newChurn(s *testEnv, seed uint64, first, last int) *churn {
	c := &churn{t: s.t, cluster: s.cluster, r: rand.New(rand.NewPCG(seed, 0)), first: first, absent: make([]bool, last-first)}
	for n := first; n < last; n++ {
		c.services = append(c.services, numbered{n: n, pods: c.pods(), nodePort: n%10 == 3, affinity: n%10 == 5, udp: n%10 == 7})
	}
	s.set(c.services...)
	return c
}

// pods picks some pods, none in one of ten cases.
func (c *churn) pods() []string {
	if c.r.IntN(10) == 0 {
		return nil
	}
	picked := slices.Clone(churnPods)
	c.r.Shuffle(len(picked), func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
	return picked[:1+c.r.IntN(5)]
}

// run makes a change per interval until ctx ends.
func (c *churn) run(ctx context.Context, every time.Duration) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		c.working.Lock()
		err := c.step(context.WithoutCancel(ctx))
		c.changes++
		c.working.Unlock()
		if err != nil {
			c.t.Error(err)
			return
		}
	}
}

// pause waits until no change is in progress, and prevents the next one.
func (c *churn) pause() (resume func()) {
	c.working.Lock()
	return c.working.Unlock
}

func (c *churn) step(ctx context.Context) error {
	i := c.r.IntN(len(c.services))
	n := &c.services[i]
	if c.absent[i] {
		c.absent[i] = false
		return c.cluster.Apply(ctx, n.objects()...)
	}
	objects := func() []kube.Object { return n.objects() } // in their later state
	service := func() kube.Object { return objects()[0] }
	slice := func() kube.Object { return objects()[1] }
	switch c.r.IntN(8) {
	case 0:
		c.absent[i] = true
		return c.cluster.Delete(ctx, objects()...)
	case 1:
		n.nodePort = !n.nodePort
		return c.cluster.Update(ctx, service())
	case 2:
		n.affinity = !n.affinity
		return c.cluster.Update(ctx, service())
	case 3, 4: // flaps: ready ones become unready, and the reverse
		n.pods, n.busy = n.busy, n.pods
	case 5: // one is no longer ready
		if len(n.pods) > 0 {
			n.pods, n.busy = n.pods[1:], append(slices.Clone(n.busy), n.pods[0])
		}
	default:
		n.pods, n.busy = c.pods(), nil
	}
	return c.cluster.Update(ctx, slice())
}
