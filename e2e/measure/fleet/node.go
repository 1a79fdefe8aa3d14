package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/ir"
)

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// node is a simulated node.
type node struct {
	api  *watch.API
	loop *reconcile.Reconciler
}

func newNode(i int, o options, dir string, gate *kube.Gate, t *tracker) (*node, error) {
	file, err := writeKubeconfig(dir, nodeName(i), gate)
	if err != nil {
		return nil, err
	}
	cfg := config.Default()
	cfg.Mode, cfg.ClusterCIDR = "nftables", "10.128.0.0/9"
	log := slog.New(slog.DiscardHandler)
	store := watch.NewStore(time.Now)
	n := &node{api: &watch.API{NodeName: nodeName(i), Store: store, Log: log, NodeState: func(*watch.NodeState) {}}}
	client := cfg.ClientConnection
	client.Kubeconfig = file
	if err := n.api.Connect(client, "", "proxyc/fleet"); err != nil {
		return nil, err
	}
	facts := compiler.Facts{NodeName: nodeName(i), Interfaces: []compiler.Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24")}}}}
	n.loop = &reconcile.Reconciler{
		Writer:   reconcile.Writer{Dataplane: &apply.Memory{Committed: func(d apply.Desired) { t.committed(i, d) }}},
		Schedule: reconcile.Schedule{Min: o.min, Retry: 30 * time.Second, Full: apply.CompareEvery},
		Source:   daemon.NewSource(cfg, store, facts, log),
		Report:   func(reconcile.State) {},
		Synced:   func(*reconcile.Sync) {},
		Now:      time.Now, After: time.After,
	}
	return n, nil
}

// run follows the API server like the daemon, until ctx ends.
func (n *node) run(ctx context.Context) {
	filled := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { n.api.Run(ctx, func() { close(filled) }) })
	select {
	case <-ctx.Done():
		return
	case <-filled:
	}
	n.loop.Run(ctx)
}

// tracker tracks which node has which change.
type tracker struct {
	nodes int

	mu      sync.Mutex
	full    map[int]bool // nodes that have begun
	started chan struct{}
	pending map[ir.Name]*pending
	left    sync.WaitGroup // changes that some node does not have
	each    []time.Duration
	last    []time.Duration
}

// pending is a change that some node does not have yet.
type pending struct {
	sent   time.Time
	marker netip.Addr // an endpoint's address; zero for no endpoints
	have   map[int]bool
}

func newTracker(nodes int) *tracker {
	return &tracker{nodes: nodes, full: map[int]bool{}, started: make(chan struct{}), pending: map[ir.Name]*pending{}}
}

// begun waits until all nodes have all Services in force.
func (t *tracker) begun(ctx context.Context) error { return wait(ctx, t.started) }

// done waits until all nodes have all changes.
func (t *tracker) done(ctx context.Context) error {
	all := make(chan struct{})
	go func() { t.left.Wait(); close(all) }()
	return wait(ctx, all)
}

func wait(ctx context.Context, end <-chan struct{}) error {
	select {
	case <-end:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send records a change that is about to be made. It returns false if one of the same Service is
// pending.
func (t *tracker) send(service ir.Name, marker netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending[service] != nil {
		return false
	}
	t.left.Add(1)
	t.pending[service] = &pending{time.Now(), marker, map[int]bool{}}
	return true
}

// committed records what a node has in force.
func (t *tracker) committed(node int, d apply.Desired) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Full && !t.full[node] {
		if t.full[node] = true; len(t.full) == t.nodes {
			close(t.started)
		}
	}
	for _, c := range d.Changes.IPv4 {
		p := t.pending[c.Name]
		if p == nil || p.have[node] || !p.is(c.New) {
			continue
		}
		p.have[node] = true
		t.each = append(t.each, now.Sub(p.sent))
		if len(p.have) == t.nodes {
			t.last = append(t.last, now.Sub(p.sent))
			delete(t.pending, c.Name)
			t.left.Done()
		}
	}
}

// is reports whether a Service is in the state after the change.
func (p *pending) is(s *ir.Service) bool {
	if s == nil {
		return false
	}
	for _, pool := range s.Pools {
		for _, b := range pool.Backends {
			if b.AddrPort.Addr() == p.marker {
				return true
			}
		}
	}
	return len(s.Pools) == 0 && !p.marker.IsValid()
}

func (t *tracker) quantiles() (each, last quantiles) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return quantilesOf(t.each), quantilesOf(t.last)
}
