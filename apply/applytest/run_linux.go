package applytest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// An ApplyFunc applies the rules for the files to a node, once.
type ApplyFunc func(ctx context.Context, node *Namespace, configFile, snapshotFile, mode string) error

// A Daemon maintains the rules of a node.
type Daemon interface {
	// Update returns when the rules for the snapshot file are applied.
	Update(ctx context.Context, snapshotFile string) error
	Stop() error
}

// A DaemonFunc starts a daemon on a node, and returns when its first rules are applied.
type DaemonFunc func(ctx context.Context, node *Namespace, configFile, snapshotFile, mode string) (Daemon, error)

// ProxycApply returns the [ApplyFunc] that runs `proxyc apply` of the given binary.
func ProxycApply(binary string, args ...string) ApplyFunc {
	return func(ctx context.Context, node *Namespace, configFile, snapshotFile, mode string) error {
		_, err := node.Run(node.Command(ctx, binary, append([]string{"apply", "-c", configFile, "-s", snapshotFile, "--allow-empty",
			"--hostname-override", "node1", "--mode", mode}, args...)...))
		return err
	}
}

// A Runner runs cases, each in its own topology.
type Runner struct {
	Mode   string
	Apply  ApplyFunc  // nil to run every case through the daemon
	Daemon DaemonFunc // nil to skip cases that require one

	// Timeout is the timeout of a try; 1.5 s if zero. Less than a second is insufficient for TCP over
	// IPv6. Linux handles an ICMP rejection only for the second SYN, since that of the first arrives
	// while connect still owns the socket.
	Timeout time.Duration
	// Answered reports whether every try of a flow gets a reply or a rejection. The timeout of such
	// tries is ten times as long, since a reply may be late on a busy machine. nil if unknown for all
	// flows.
	Answered func(c *Case, key string) bool
	// Parallel bounds the concurrent tries. The default is 100, less on a slow machine.
	Parallel int
	// Log receives how connections without the expected reply are tracked; nil for no log.
	Log func(format string, args ...any)
}

// ErrNeedsDaemon is returned for a case that requires a daemon if the Runner has none.
var ErrNeedsDaemon = errors.New("needs a daemon")

// Run runs a case and returns the outcomes of its flows, in order. After an error it returns those
// so far.
func (r *Runner) Run(ctx context.Context, c *Case) ([]Result, error) {
	if c.Daemon && r.Daemon == nil {
		return nil, ErrNeedsDaemon
	}
	topo, err := NewTopology()
	if err != nil {
		return nil, err
	}
	defer topo.Close()
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p := &play{
		Runner: r,
		c:      c,
		topo:   topo,
		dir:    dir,
		tokens: make(chan struct{}, cmp.Or(r.Parallel, int(100*time.Second/ScaledTimeout(time.Second)))),
		named:  map[string]string{},
		kept:   map[string]net.Conn{},
	}
	defer p.close()
	return p.run(ctx)
}

// A play is one run of a case.
type play struct {
	*Runner
	c      *Case
	topo   *Topology
	dir    string
	store  *Store
	daemon Daemon
	tokens chan struct{}       // one token per concurrent try
	turn   sync.Mutex          // held by the flow that starts its tries
	port   atomic.Uint32       // source port of the last try over TCP, less 11000
	named  map[string]string   // flow name → endpoint
	kept   map[string]net.Conn // open connections by name
}

func (p *play) close() {
	for _, conn := range p.kept {
		conn.Close()
	}
	if p.daemon != nil {
		p.daemon.Stop()
	}
}

func (p *play) run(ctx context.Context) (results []Result, err error) {
	config, err := p.c.ConfigFile(p.Mode)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(p.file("config"), config, 0o644); err != nil {
		return nil, err
	}
	if p.store, err = NewStore(); err != nil {
		return nil, err
	}
	for i, stage := range p.c.Stages() {
		if err := p.change(ctx, stage); err != nil {
			return results, fmt.Errorf("stage %d: %w", i+1, err)
		}
		select {
		case <-ctx.Done():
			return results, ctx.Err()
		case <-time.After(seconds(stage.Pause)):
		}
		results = append(results, p.flows(i+1, stage.Flows)...)
	}
	return results, nil
}

func (p *play) file(name string) string { return filepath.Join(p.dir, name+".yaml") }

// change applies the objects after a step to the node.
func (p *play) change(ctx context.Context, step Step) error {
	if err := p.store.Step(step); err != nil {
		return err
	}
	snapshot, err := p.store.File()
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file("snapshot"), snapshot, 0o644); err != nil {
		return err
	}
	node := p.topo.Namespace("node1")
	switch {
	case p.daemon != nil:
		return p.daemon.Update(ctx, p.file("snapshot"))
	case p.c.Daemon || p.Apply == nil:
		p.daemon, err = p.Daemon(ctx, node, p.file("config"), p.file("snapshot"), p.Mode)
		return err
	}
	return p.Apply(ctx, node, p.file("config"), p.file("snapshot"), p.Mode)
}

// flows tries the flows of a stage: those that are independent of order concurrently, the others
// one by one.
func (p *play) flows(stage int, flows []Flow) []Result {
	results := make([]Result, len(flows))
	var wg sync.WaitGroup
	for i, f := range flows {
		results[i] = Result{Key: f.Key(stage, i+1), Flow: f}
		if f.Alone() {
			wg.Wait()
			results[i].Outcome = p.flow(results[i].Key, &f)
			continue
		}
		wg.Go(func() { results[i].Outcome = p.flow(results[i].Key, &f) })
	}
	wg.Wait()
	return results
}

// flow makes the tries of one flow. A try that cannot be made is a failure in the outcome.
func (p *play) flow(key string, f *Flow) Outcome {
	timeout := p.timeout(key)
	switch {
	case f.Again != "":
		return p.again(f.Again, timeout)
	case f.HTTP != "":
		return p.http(f, timeout)
	}
	to, proto, err := f.Target()
	if err != nil {
		return failed(err)
	}
	ns, from, err := p.topo.Source(f.From, to.Addr())
	if err != nil {
		return failed(err)
	}
	try := func() (Answer, error) {
		once, sport := timeout, f.Sport
		if proto != "tcp" { // TCP retransmits lost segments; over UDP and SCTP the client has to
			once = p.shortTimeout()
		} else if sport == 0 { // the kernel might select that of an earlier try, whose connection is still tracked without a reply
			sport = uint16(11000 + p.port.Add(1))
		}
		for end := time.Now().Add(timeout - once); ; {
			a, err := ns.Try(proto, netip.AddrPortFrom(from, sport), to, once)
			if err == nil || Failure(err) != TimedOut || !time.Now().Before(end) {
				p.log(key, proto, sport, err)
				return a, err
			}
		}
	}
	if f.Open != "" {
		try = func() (Answer, error) { return p.open(f.Open, ns, netip.AddrPortFrom(from, f.Sport), to, timeout) }
	}
	t := p.tries(f, try)
	if f.Affinity || f.SameAs != "" {
		return p.affinity(f, t)
	}
	if f.Name != "" {
		p.named[f.Name] = t.endpoint()
	}
	return t.outcome(f.Any)
}

// log logs how the node tracks a connection that unexpectedly has no reply.
func (p *play) log(key, proto string, sport uint16, err error) {
	if err == nil || Failure(err) != TimedOut || p.Log == nil || p.Answered == nil || !p.Answered(p.c, key) {
		return
	}
	tracked, _ := p.topo.Namespace("node1").Command(context.Background(), "conntrack", "-L", "-p", proto, "--orig-port-src", fmt.Sprint(sport)).CombinedOutput()
	p.Log("%s %s from port %d: %v: %s", p.c.Name, key, sport, err, tracked)
}

// shortTimeout returns the timeout of a try that may have no reply.
func (p *play) shortTimeout() time.Duration {
	return ScaledTimeout(cmp.Or(p.Timeout, 1500*time.Millisecond))
}

// timeout returns the timeout of a flow's tries.
func (p *play) timeout(key string) time.Duration {
	if p.Answered != nil && p.Answered(p.c, key) {
		return 10 * p.shortTimeout()
	}
	return p.shortTimeout()
}

// tries makes the tries of the flow, concurrently if allowed. No other flow starts one in between.
// Flows that alternate at a round-robin virtual server of ipvs would otherwise each see the same
// endpoint always.
func (p *play) tries(f *Flow, try func() (Answer, error)) *tally {
	t := &tally{topo: p.topo, reached: map[string]map[string]bool{}, failed: map[string]bool{}}
	if f.Sequential() {
		for i := range f.TryCount() {
			if i > 0 {
				time.Sleep(seconds(f.Interval))
			}
			t.add(try())
		}
		return t
	}
	var wg sync.WaitGroup
	p.turn.Lock()
	for range f.TryCount() {
		p.tokens <- struct{}{}
		wg.Go(func() {
			defer func() { <-p.tokens }()
			t.add(try())
		})
	}
	p.turn.Unlock()
	wg.Wait()
	return t
}

// open opens a connection that is kept under a name.
func (p *play) open(name string, ns *Namespace, from, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := ns.Dial(ctx, "tcp", from, to)
	if err != nil {
		return Answer{}, err
	}
	p.kept[name] = conn
	return Query(conn, timeout)
}

func (p *play) again(name string, timeout time.Duration) Outcome {
	conn := p.kept[name]
	if conn == nil {
		return Outcome{"alive": false}
	}
	_, err := Query(conn, timeout)
	return Outcome{"alive": err == nil}
}

// affinity compares the endpoint of a flow among its own tries, and with that of an earlier flow.
func (p *play) affinity(f *Flow, t *tally) Outcome {
	o := Outcome{}
	if f.Affinity {
		o["one endpoint"] = t.endpoint() != ""
	}
	if len(t.failed) > 0 {
		o["failed"] = sorted(t.failed)
	}
	if f.SameAs != "" {
		o["same as "+f.SameAs] = t.endpoint() != "" && t.endpoint() == p.named[f.SameAs]
	}
	if f.Name != "" {
		p.named[f.Name] = t.endpoint()
	}
	return o
}

// http queries a health server. Its response is JSON or text.
func (p *play) http(f *Flow, timeout time.Duration) Outcome {
	hostport, path, _ := strings.Cut(f.HTTP, "/")
	to, err := parseAddrPort(hostport)
	if err != nil {
		return failed(err)
	}
	ns, from, err := p.topo.Source(f.From, to.Addr())
	if err != nil {
		return failed(err)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return ns.Dial(ctx, "tcp", netip.AddrPortFrom(from, f.Sport), to)
		},
	}, Timeout: timeout + ScaledTimeout(5*time.Second)}
	resp, err := client.Get("http://" + to.String() + "/" + path)
	if err != nil {
		return failed(err)
	}
	defer resp.Body.Close()
	o := Outcome{"status": resp.StatusCode}
	if f.StatusOnly {
		return o
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return failed(err)
	}
	var body any
	if json.Unmarshal(text, &body) != nil {
		body = strings.TrimSpace(string(text))
	}
	o["body"] = body
	if weight := resp.Header.Get("X-Load-Balancing-Endpoint-Weight"); weight != "" {
		o["weight header"] = weight
	}
	return o
}

func failed(err error) Outcome { return Outcome{"failed": []string{Failure(err)}} }

// A tally counts the results of the tries of one flow.
type tally struct {
	topo    *Topology
	mu      sync.Mutex
	reached map[string]map[string]bool // sources by endpoint
	failed  map[string]bool
}

func (t *tally) add(a Answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed[Failure(err)] = true
		return
	}
	endpoint := fmt.Sprintf("%s:%d", t.topo.Name(a.Server.Addr()), a.Server.Port())
	if t.reached[endpoint] == nil {
		t.reached[endpoint] = map[string]bool{}
	}
	t.reached[endpoint][t.topo.Name(a.Client.Addr())] = true
}

// endpoint returns the endpoint that every try reached, or "".
func (t *tally) endpoint() string {
	if len(t.reached) != 1 || len(t.failed) > 0 {
		return ""
	}
	return slices.Collect(maps.Keys(t.reached))[0]
}

func (t *tally) outcome(anyEndpoint bool) Outcome {
	o := Outcome{}
	if len(t.failed) > 0 {
		o["failed"] = sorted(t.failed)
	}
	switch {
	case len(t.reached) == 0:
	case anyEndpoint:
		o["reached"] = true
	default:
		reached := map[string][]string{}
		for endpoint, sources := range t.reached {
			reached[endpoint] = sorted(sources)
		}
		o["reached"] = reached
	}
	return o
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
