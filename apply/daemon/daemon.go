package daemon

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Options are what a Daemon is told by its command line.
type Options struct {
	// Resolve reads the configuration, and says what is wrong with it. text is that of ConfigFile.
	Resolve func() (resolved *config.Resolved, text []byte, _ diag.List)
	// ConfigFile is the file that Resolve reads; "": there is none that could change.
	ConfigFile string
	// Snapshot are files and directories to follow in place of an API server.
	Snapshot      []string
	SnapshotLimit int64         // bytes; 0: any amount
	AllowEmpty    bool          // take a snapshot that lacks what any cluster has
	Master        string        // of the API server, where no kubeconfig tells
	BootFrom      string        // a file that keeps what was last in force; "": none
	IPTables      string        // the variant, as in apply.Options
	IPVS          apply.IPVS    // what mode ipvs is told beside the configuration
	LockTimeout   time.Duration // how long to wait for the lock of iptables
	StatusSocket  string        // where the status is told, too; "": nowhere
	// ModeFallback takes another mode where the kernel lacks what the configured
	// one needs: iptables for ipvs, userspace for both.
	ModeFallback bool
	// OwnTables has the kernel keep others from the tables of mode nftables.
	OwnTables bool
	// Fastpath is what of the connections takes the fast path, in mode nftables.
	Fastpath apply.Fastpath
	// DrainTimeout is how long connections that the process carries may go on when
	// it ends.
	DrainTimeout time.Duration
	// UnreadyAfter is how long /readyz stays 200 without contact to the API
	// server; 0: as long as that lasts.
	UnreadyAfter time.Duration
	// NodeCondition keeps condition ServicesProgrammed on the Node.
	NodeCondition bool
	Version       string // of the program
	// Flags returns all flags with the values in force, for /flagz.
	Flags func(*config.Config) map[string]string
	// Trace writes what happens to a packet, as /debug/proxyc/trace tells it.
	Trace func(io.Writer, Scene) error
	// Prove holds the rules of a Service, in the Programs' mode, against what they mean, as long
	// as the context allows, and returns what differs; nil: nobody wants that.
	Prove          func(context.Context, ir.Programs) []Unproved
	Hostname       func() (string, error)
	Stdout, Stderr io.Writer
	Files          Files
	// Reload asks for the configuration and the snapshot to be read again at once; nil: nobody does.
	Reload <-chan os.Signal
}

// Files is the part of a file system that a Daemon uses.
type Files interface {
	ReadFile(name string) ([]byte, error)
	Stat(name string) (fs.FileInfo, error)
	// WriteFile writes a file whole or not at all.
	WriteFile(name string, write func(io.Writer) error) error
}

// Scene is what decides about a packet besides the rules of a node, and which
// packet it is.
type Scene struct {
	Snapshot   *snapshot.Snapshot
	Node       string
	Programs   ir.Programs
	Interfaces []compiler.Interface // of the node
	Findings   []Finding            // about objects
	From, To   string               // as proxyc trace takes them
	Output     string               // "text" or "json"
}

// Run keeps the rules of the node until ctx ends. It starts anew in the same
// process when the configuration file changes: rules stay, and what is the same
// is adopted. first is the configuration to begin with.
func Run(ctx context.Context, o *Options, first *config.Resolved) error {
	p := &process{Options: o, started: time.Now()}
	if o.ModeFallback {
		p.fallback = newFallback(ctx, o)
		own := *o
		own.Resolve = p.fallback.resolve(o.Resolve)
		p.Options = &own
		first = p.fallback.settle(first)
	}
	now := p.loaded(first)
	var held *loaded // the one that was in force last; nil: there is none to go back to
	var refused *refusedConfig
	var retry retry
	for lives := 0; ; lives++ {
		smallHeap(garbageAtStart)
		log := newLogger(o.Stdout, o.Stderr, &now.Config.Logging)
		var next *loaded
		wrote := false
		d, err := newDaemon(p, now, log)
		if err == nil {
			d.restarted, d.refused, d.retry = lives > 0, refused, retry
			next, err = d.run(ctx)
			wrote = d.wrote.Load()
		}
		if wrote {
			held, retry.failures = now, 0
		}
		_, ofRules := errors.AsType[*rulesError](err)
		switch {
		case err == nil && next != nil:
			now, refused = next, nil
		case err != nil && held != nil && now != held:
			log.Error("the configuration cannot be put in force: going back to the one before", "err", err)
			if d != nil {
				d.unset()
			}
			now, refused = held, &refusedConfig{now.Config, err}
		case ofRules && now == held && !wrote:
			wait := retry.fail(err, now.Config.SyncPeriod())
			log.Error("the configuration before cannot be put in force either: both are tried again", "after", wait, "err", err)
			refused = nil // the new one may not be the reason
		default:
			p.drain(log)
			return err
		}
	}
}

// rulesError is a failure to put rules in force, or to keep them.
type rulesError struct{ error }

func (e *rulesError) Unwrap() error { return e.error }

// retry says when to try again the configuration that was in force last.
type retry struct {
	failures int // in a row
	at       time.Time
	err      error // the last one
}

// fail notes a failure, and returns how long to wait after it.
func (r *retry) fail(err error, longest time.Duration) time.Duration {
	r.failures++
	wait := apply.Backoff(r.failures, apply.FirstRetry, max(longest, apply.FirstRetry))
	r.at, r.err = time.Now().Add(wait), err
	return wait
}

// wait waits until it is time, and reports false if ctx ends before.
func (r *retry) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(r.at)):
		return true
	}
}

// InitOnly brings the kernel's settings to what the configuration wants, and
// does nothing else.
func InitOnly(o *Options, cfg *config.Resolved) error {
	p := &process{Options: o, started: time.Now()}
	d, err := newDaemon(p, p.loaded(cfg), newLogger(o.Stdout, o.Stderr, &cfg.Config.Logging))
	if err != nil {
		return err
	}
	defer d.log.info.Flush()
	return d.settings()
}

// process is what the lives of a Daemon share.
type process struct {
	*Options
	fallback *fallback // nil: there is none
	started  time.Time

	cluster  cluster
	previous previous        // of the last life; there is one between two lives alone, and until the next one's rules are in force
	draining []apply.Drainer // that are closed, and have connections, perhaps

	localhost userspace.Localhost
	stuck     bool // a life did not end: what it uses is its own

	healthBefore *serve.Health // of the last life; nil: there was none

	programmed atomic.Bool // what an API server's objects mean was in force once
}

// Garbage that the heap may hold, in percent of what is in use: while objects come, of which
// most is garbage, and from when they are there.
const (
	garbageAtStart = 50
	garbageAtRest  = 25
)

// smallHeap sets the collector for a process that stays, where the environment
// does not: little memory counts for more than a compilation's time.
func smallHeap(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(-1)
	}
}

// daemon is one life of the daemon, under one configuration.
type daemon struct {
	*process
	resolved *config.Resolved
	cfg      *config.Config
	nodeName string
	log      *logger
	began    time.Time // this life

	store         *watch.Store
	follower      *follower
	health        *serve.Health
	metrics       *serve.Metrics
	checks        checks
	flows         *conntrack.Cleaner
	tallies       ir.PerFamily[tally]
	followed      bool      // a sync has succeeded: what comes is a change
	requests      uint64    // for a sync, of the last reconcile.State
	waiting       time.Time // of the last reconcile.State
	progress      *progress
	faults        *faults
	drift         *drift
	easing        *easing
	peer          *peer
	untidy        chan func(error)
	broken        *brokenObjects
	status        *status
	snapshotFiles atomic.Pointer[[]*File] // of the snapshot that is in force
	boot          *bootFile
	events        *watch.Events        // nil without an API server
	contact       *watch.Contact       // nil without an API server
	condition     *watch.NodeCondition // nil: nobody asked for it
	neighbors     *neighbors
	proofs        *proofs

	hosts     []string                         // names of the node
	from      *loaded                          // the configuration in force
	restarted bool                             // another configuration was in force before
	refused   *refusedConfig                   // that came after this one
	retry     retry                            // of the lives before
	wrote     atomic.Bool                      // it came as far as to write rules
	set       atomic.Pointer[[]sysctl.Setting] // what settings changed

	// What Reload asks for, once at a time.
	configAgain, snapshotAgain chan struct{}
}

func newDaemon(p *process, from *loaded, log *logger) (*daemon, error) {
	name, err := node.Name(from.NodeName, p.Hostname)
	if err != nil {
		return nil, err
	}
	cfg := from.Config
	d := &daemon{process: p, resolved: from.Resolved, from: from, cfg: cfg, nodeName: name, log: log, began: time.Now()}
	d.goOn()
	d.configAgain, d.snapshotAgain = make(chan struct{}, 1), make(chan struct{}, 1)
	d.health = serve.NewHealth(2*cfg.SyncPeriod(), time.Now)
	d.health.GoOn(p.healthBefore)
	p.healthBefore = d.health
	d.health.SetNode(d.cluster.state)
	d.health.Pending = d.store.Pending
	d.flows = conntrack.NewCleaner(cfg.SyncPeriod(), d.cleaned)
	d.health.Following = d.following
	d.neighbors = newNeighbors(func(ctx context.Context) (apply.Interference, error) {
		return Interference(ctx, 1<<cfg.MasqueradeBit())
	}, d.log.Logger, time.Now)
	d.progress, d.broken, d.drift, d.faults = &progress{}, &brokenObjects{}, &drift{log: d.log.Logger, now: time.Now}, &faults{log: d.log.Logger, now: time.Now}
	d.easing = newEasing(cmp.Or(p.IPVS.DrainDeadline, apply.DrainDeadline), d.log.Logger, d.faults)
	d.untidy = make(chan func(error))
	d.metrics = newMetrics(cfg, p.Version)
	d.measureStore()
	d.measureConntrack()
	d.measureTroubles()
	if len(p.Snapshot) == 0 {
		d.events = watch.NewEvents(name, d.log.Logger, time.Now)
		d.contact = watch.NewContact(d.log.Logger, time.Now)
		d.contact.GoOn(d.cluster.contact)
		d.cluster.contact = d.contact
		d.health.CutOff = d.cutOff
		d.condition = d.newCondition()
		d.metrics.MeasureContact(d.lastHeard)
	}
	d.hosts = hosts(name, p.Hostname)
	d.peer = newPeer(cfg.ProxyMode(), d.drift, d.easing, d.log.Logger, d.events.Send, func(ctx context.Context) error { return ask(ctx, d.untidy) })
	d.health.Beside = d.peer.beside
	d.status = &status{now: time.Now, process: Process{Version: p.Version, PID: os.Getpid(), Started: p.started, Node: name, Mode: cfg.ProxyMode()}}
	d.checks = newChecks(d.health, d.faults, d.events, d.log.Logger, d.hosts)
	d.proofs = newProofs(p.Prove, d.log.Logger, d.metrics.ProofDifferences.Inc)
	d.localhost.Follow(d.log.Logger, d.localhostTold)
	if wanted, reason := p.fallback.insteadOf(cfg.ProxyMode()); wanted != "" {
		d.status.process.InsteadOf, d.status.process.InsteadOfReason = wanted, reason
		d.log.Warn("this node cannot run the mode of the configuration: another one is taken, until the daemon ends",
			"wanted", string(wanted), "mode", string(cfg.ProxyMode()), "err", reason)
	}
	d.follower = newFollower(cfg, d.store, compiler.Facts{NodeName: name, TCPBeLiberal: sysctl.Liberal(kernelRoot)}, d.log.Logger, d.events.Send)
	d.follower.interfaces = Interfaces
	if p.BootFrom != "" {
		d.boot = &bootFile{files: p.Files, path: p.BootFrom, log: d.log.Logger}
	}
	d.status.parts = []func(*Status){d.reportInputs, d.progress.report, d.reportAfter, d.drift.report, d.faults.report, d.broken.report, d.easing.report, d.peer.report, d.proofs.report, d.boot.report, d.follower.findings.report}
	return d, nil
}

// hosts are the names that clients on the node may know it by.
func hosts(nodeName string, hostname func() (string, error)) []string {
	names := []string{strings.ToLower(nodeName)}
	if hostname != nil {
		if host, err := hostname(); err == nil {
			names = append(names, strings.ToLower(host))
		}
	}
	return names
}

// inputs reports what the rules are made from.

func (d *daemon) reportInputs(st *Status) {
	st.Pending = d.store.Pending()
	d.store.View(func(s *snapshot.Snapshot) {
		st.Objects.Services, st.Objects.EndpointSlices, st.Objects.Nodes = s.Count()
	})
	if d.contact != nil {
		st.APIServer = &APIServer{Server: d.contact.Server(), Resources: d.contact.Resources()}
		if lost := d.contact.Outage(); !lost.Since.IsZero() {
			st.APIServer.Lost, st.APIServer.Cause = lost.Since, lost.Resource+": "+lost.Cause
			st.APIServer.Fix = lost.Fix
		}
	}
	st.Config = d.from.file
	if files := d.snapshotFiles.Load(); files != nil {
		st.Snapshot = *files
	}
}

func (d *daemon) reportAfter(st *Status) {
	st.Synced = st.Synced && !d.flows.Busy() // asked after it: flows follow a sync
	st.Reason = d.health.Ready().Reason
}

// run lives until ctx ends, or something ends it: an error, or another
// configuration, which it gives back.
func (d *daemon) run(parent context.Context) (next *loaded, err error) {
	defer d.log.info.Flush()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var all sync.WaitGroup
	run := func(f func(context.Context) error) {
		all.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	if d.retry.failures == 0 { // events are sent once
		for _, e := range startEvents(d.resolved) {
			d.events.Send(e)
			if e.Warning {
				d.log.Warn(e.Note)
			}
		}
	}
	run(d.serving(d.healthServer(), "FailedToStartProxierHealthcheck"))
	run(d.serving(d.metricsServer(), "FailedToStartMetricServer"))
	run(d.neighbors.run)
	run(d.neighbors.follow)
	run(d.statusServer().Run)
	run(d.log.flush)
	run(d.watchConfig)
	run(d.reload)
	run(d.proofs.run)
	for _, of := range d.checks.All() {
		all.Go(func() { of.Run(ctx, nil) })
	}
	run(func(ctx context.Context) error {
		if d.retry.failures > 0 {
			d.health.SetNotReady("no configuration can be put in force: " + d.retry.err.Error())
			if !d.retry.wait(ctx) {
				return nil
			}
		}
		if err := d.proxy(ctx); err != nil {
			return &rulesError{err}
		}
		return nil
	})
	<-ctx.Done()
	d.shutdown(parent, &all)
	cause := context.Cause(ctx)
	if changed, ok := errors.AsType[*configChanged](cause); ok {
		return changed.to, nil
	}
	if errors.Is(cause, context.Canceled) {
		if dataplaneOf(d.cfg.ProxyMode()).process {
			d.log.Info("ended; no rule leads anywhere, as the connections went through this process")
		} else {
			d.log.Info("ended; the rules stay")
		}
		return nil, nil
	}
	return nil, cause
}

// shutdown waits for the end of all that runs. After a signal it does not wait for
// long: a commit that is cut short leaves no Service half done, and the next
// start goes on from there.
func (d *daemon) shutdown(parent context.Context, all *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all.Wait()
		d.checks.close()
	}()
	var limit <-chan time.Time
	if parent.Err() != nil {
		limit = time.After(lastWorkOf(d.cfg.ProxyMode()))
	}
	select {
	case <-ended:
	case <-limit:
		d.stuck = true
		d.log.Warn("ending in the middle of a sync")
	}
}

// reload hands on what Reload asks for until ctx ends.
func (d *daemon) reload(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-d.Reload:
			d.log.Info("reading configuration and snapshot again", "signal", s)
			for _, again := range []chan struct{}{d.configAgain, d.snapshotAgain} {
				select {
				case again <- struct{}{}:
				default: // it is asked for already
				}
			}
		}
	}
}
