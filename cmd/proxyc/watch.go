package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/signal"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply"
	engine "github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

type watchCmd struct {
	configFlags
	Snapshot    string        `short:"s" placeholder:"PATH" help:"Follow a file, or a directory with .yaml, .yml and .json files, in place of an API server."`
	AllowEmpty  bool          `name:"allow-empty" help:"Accept a --snapshot with neither a Service nor a Node, as a failed kubectl leaves behind; all rules for Services go."`
	Limit       byteSize      `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"How much the files of --snapshot may have together, as 256Mi; 0: any amount."`
	BootFrom    string        `name:"boot-from" placeholder:"FILE" help:"Keep what was last in force in a file, and put it in force at the start, before the API server answers."`
	Variant     string        `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Which iptables to use; auto is the one that the node uses."`
	LockTimeout time.Duration `default:"30s" placeholder:"DURATION" help:"How long to wait while another program holds the lock of iptables."`
	Socket      string        `name:"status-socket" placeholder:"PATH" help:"Tell the status at a unix socket, too, which only the owner can open."`
	Unready     time.Duration `name:"unready-after" default:"5m" placeholder:"DURATION" help:"How long /readyz stays 200 without contact to the API server; 0: as long as that lasts. /livez does not depend on it."`
	Version     bool          `name:"version" help:"Print the version, and exit."`
	Rest        []string      `arg:"" optional:"" hidden:""`

	started time.Time // of the process
	flags   func(*config.Config) map[string]string
}

// Run is the daemon. It starts anew in the same process when the configuration
// file changes: rules stay, and what is the same is adopted.
func (c *watchCmd) Run(e *env, k *kong.Context) error {
	if c.Version {
		return versionCmd{}.Run(e)
	}
	for _, arg := range c.Rest {
		if arg != "" { // kube-proxy lets empty ones pass, as an unset variable gives them
			return fmt.Errorf("watch takes flags alone, got %q", arg)
		}
	}
	now, err := c.load(e)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch {
	case deref(c.WriteConfigTo) != "":
		return writeConfigTo(e, *c.WriteConfigTo, now.Config)
	case c.Cleanup:
		return cleanUp(ctx, e, false)
	}
	if err := needRoot("watch"); err != nil {
		return err
	}
	c.started = time.Now()
	c.flags = func(cfg *config.Config) map[string]string { return flagValues(k, cfg) }
	var before *loaded // what was in force before now; nil: there is nothing to go back to
	var refused *refusedConfig
	for lives := 0; ; lives++ {
		smallHeap(garbageAtStart)
		log := newLogger(e.stdout, e.stderr, &now.Config.Logging)
		var next *loaded
		up := false
		d, err := newDaemon(c, e, now, log)
		if err == nil {
			if c.InitOnly {
				return d.settings()
			}
			d.again, d.refused = lives > 0, refused
			next, err = d.run(ctx)
			up = d.up.Load()
		}
		if up {
			before = nil
		}
		switch {
		case err != nil && before != nil:
			log.Error("the configuration cannot be put in force: going back to the one before", "err", err)
			refused = &refusedConfig{now.Config, err}
			now, before = before, nil
		case err != nil || next == nil:
			return err
		default:
			if up {
				before = now
			}
			now, refused = next, nil
		}
	}
}

// loaded is a configuration, and the file that it is from.
type loaded struct {
	*config.Resolved
	file *statusFile // nil: there is none that could change
}

// refusedConfig is a configuration that is valid, and could not be put in force.
type refusedConfig struct {
	config *config.Config
	err    error
}

// load makes the configuration in force, and prints what there is to say.
func (c *watchCmd) load(e *env) (*loaded, error) {
	var diags diag.List
	resolved, err := c.resolve(e, &diags)
	if err != nil {
		return nil, err
	}
	e.report(diags)
	return c.loaded(e, resolved), nil
}

func (c *watchCmd) loaded(e *env, resolved *config.Resolved) *loaded {
	l := &loaded{Resolved: resolved}
	if path := c.configPath(); path != "" {
		l.file = statFile(e, path)
	}
	return l
}

// Garbage that the heap may hold, in percent of what is in use.
const (
	garbageAtStart = 50
	garbageAtRest  = 25
)

// smallHeap sets the collector for a process that stays, where the environment
// does not: little memory counts for more than a compilation's time.
func smallHeap(percent int) {
	if !isSet("GOGC") {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(-1)
	}
}

// daemon is one life of the daemon, under one configuration.
type daemon struct {
	cmd      *watchCmd
	env      *env
	resolved *config.Resolved
	cfg      *config.Config
	nodeName string
	log      *logger
	started  time.Time

	store    *watch.Store
	follower *follower
	health   *serve.Health
	metrics  *serve.Metrics
	checks   checks
	tallies  ir.PerFamily[tally]
	state    *state
	boot     *bootFile
	events   *watch.Events  // nil without an API server
	contact  *watch.Contact // nil without an API server

	hosts      []string       // names of the node
	configFile *statusFile    // as it is in force
	again      bool           // another configuration was in force before
	refused    *refusedConfig // that came after this one
	up         atomic.Bool    // it came as far as to write rules
}

func newDaemon(c *watchCmd, e *env, from *loaded, log *logger) (*daemon, error) {
	name, err := node.Name(from.NodeName, e.hostname)
	if err != nil {
		return nil, err
	}
	cfg := from.Config
	d := &daemon{cmd: c, env: e, resolved: from.Resolved, configFile: from.file, cfg: cfg, nodeName: name, log: log, started: time.Now()}
	d.store = watch.NewStore(time.Now)
	d.health = serve.NewHealth(2*cfg.SyncPeriod(), time.Now)
	d.health.Untaken = d.store.Pending
	d.metrics = newMetrics(cfg)
	d.measureStore()
	if c.Snapshot == "" {
		d.events = watch.NewEvents(name, d.log.Logger, time.Now)
		d.contact = watch.NewContact(d.log.Logger, time.Now)
		d.health.CutOff = d.cutOff
		d.metrics.MeasureContact(d.lastHeard)
	}
	d.hosts = hosts(name, e.hostname)
	d.checks = newChecks(d.health, d.events, d.log.Logger, d.hosts)
	d.state = newState(cfg.ProxyMode(), name, time.Now)
	d.follower = &follower{cfg: cfg, store: d.store, facts: compiler.Facts{NodeName: name, Liberal: sysctl.Liberal(kernelRoot)}, interfaces: node.Interfaces, log: d.log.Logger,
		findings: newFindings(d.log.Logger, d.events.Send)}
	if c.BootFrom != "" {
		d.boot = &bootFile{env: e, path: c.BootFrom, log: d.log.Logger}
	}
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
	d.events.Send(watch.Event{Reason: "Starting", Action: "StartKubeProxy"})
	run(d.serving(d.healthServer(), "FailedToStartProxierHealthcheck"))
	run(d.serving(d.metricsServer(), "FailedToStartMetricServer"))
	run(d.statusServer().Run)
	run(d.log.flush)
	run(d.watchConfig)
	run(d.proxy)
	<-ctx.Done()
	d.wind(parent, &all)
	cause := context.Cause(ctx)
	if changed, ok := errors.AsType[*configChanged](cause); ok {
		return changed.to, nil
	}
	if errors.Is(cause, context.Canceled) {
		d.log.Info("ended; the rules stay")
		return nil, nil
	}
	return nil, cause
}

// lastWork is how long work that is under way may go on after a signal.
const lastWork = 800 * time.Millisecond

// wind waits for the end of all that runs. After a signal it does not wait for
// long: a commit that is cut short leaves no Service half done, and the next
// start goes on from there.
func (d *daemon) wind(parent context.Context, all *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all.Wait()
		d.checks.close()
	}()
	var limit <-chan time.Time
	if parent.Err() != nil {
		limit = time.After(lastWork)
	}
	select {
	case <-ended:
	case <-limit:
		d.log.Warn("ending in the middle of a sync")
	}
}

// configChanged ends a life of the daemon for another one.
type configChanged struct{ to *loaded }

func (*configChanged) Error() string { return "the configuration changed" }

// watchConfig ends the daemon's life with *configChanged when the file that
// --config names says something else. What is no valid configuration is told,
// and the old one stays in force.
func (d *daemon) watchConfig(ctx context.Context) error {
	path := d.cmd.configPath()
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := watch.Paths(ctx, []string{path}, func() {
		now, diags := d.cmd.Resolve(d.env.readFile, d.cmd.Strict)
		if diags.HasErrors() {
			for _, f := range diags {
				logDiagnostic(d.log.Logger, f)
			}
			d.log.Error("the configuration stays as it is")
			d.state.setKept(path, firstError(diags))
			return
		}
		if r := d.refused; r != nil && reflect.DeepEqual(now.Config, r.config) {
			d.state.setKept(path, r.err.Error())
			return
		}
		d.state.setKept(path, "")
		if !reflect.DeepEqual(now.Config, d.cfg) {
			d.log.Info("the configuration changed: starting anew")
			cancel(&configChanged{d.cmd.loaded(d.env, now)})
		}
	})
	if changed, ok := errors.AsType[*configChanged](context.Cause(ctx)); ok {
		return changed
	}
	if err != nil { // without a watch all else works
		d.log.Error("changes of the configuration will not be seen", "err", err)
	}
	return nil
}

// configPath is the file that --config names; "": there is none that could change.
func (c *watchCmd) configPath() string {
	if file := deref(c.Config); file != "-" {
		return file
	}
	return ""
}

// firstError gives the first error of a list.
func firstError(list diag.List) string {
	list.Sort()
	for _, d := range list {
		if d.Severity == diag.Error {
			return d.String()
		}
	}
	return ""
}

// lastEvent is how long the end waits until the cluster was told why.
const lastEvent = 900 * time.Millisecond

// serving runs a server, and tells in the cluster if that fails for good.
func (d *daemon) serving(s *serve.Server, reason string) func(context.Context) error {
	return func(ctx context.Context) error {
		err := s.Run(ctx)
		if err != nil {
			ctx, cancel := context.WithTimeout(ctx, lastEvent)
			defer cancel()
			d.events.SendLast(ctx, watch.Event{Warning: true, Reason: reason, Action: "StartKubeProxy", Note: err.Error()})
		}
		return err
	}
}

func (d *daemon) healthServer() *serve.Server {
	return &serve.Server{Name: "healthz server", Addr: d.cfg.HealthzBindAddress,
		Handler: d.health.Handler(d.metrics), Hosts: d.hosts, HardFail: d.cfg.BindAddressHardFail, Log: d.log.Logger}
}

// statusServer answers proxyc status alone, where the metrics server cannot be reached.
func (d *daemon) statusServer() *serve.Server {
	s := &serve.Server{Name: "status server", Log: d.log.Logger, Handler: d.statusHandler()}
	if d.cmd.Socket != "" {
		s.Addr = unixPrefix + d.cmd.Socket
	}
	return s
}

func (d *daemon) statusHandler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc(statusPath, func(w http.ResponseWriter, r *http.Request) {
		st := d.status()
		var err error
		if st.MayDrop, err = engine.MayDrop(r.Context()); err != nil {
			d.log.Debug("rules of others", "err", err)
		}
		serveStatus(w, st)
	})
	return mux
}

func (d *daemon) metricsServer() *serve.Server {
	pages := &serve.Debug{
		Name: "proxyc", Version: version(), Mode: d.cfg.ProxyMode(), Metrics: d.metrics,
		Config:    func() any { return d.cfg },
		Started:   d.started,
		Profiling: d.cfg.EnableProfiling,
		SetVerbosity: func(v uint32) error {
			setVerbosity(d.log.level, v)
			return nil
		},
		Pages: map[string]http.Handler{
			"/debug/proxyc/ir":    http.HandlerFunc(d.state.serveIR),
			"/debug/proxyc/plan":  http.HandlerFunc(d.state.servePlan),
			"/debug/proxyc/trace": http.HandlerFunc(d.serveTrace),
		},
	}
	if d.cfg.Enabled(config.GateFlagz) {
		pages.Flags = func() map[string]string { return d.cmd.flags(d.cfg) }
	}
	if d.cfg.Enabled(config.GateStatusz) {
		pages.Now = time.Now
	}
	mux := d.statusHandler()
	mux.Handle("/", pages.Handler())
	return &serve.Server{Name: "metrics server", Addr: d.cfg.MetricsBindAddress, Handler: mux, Hosts: d.hosts, HardFail: d.cfg.BindAddressHardFail, Log: d.log.Logger}
}

// settings brings the kernel's settings to what configuration and mode want,
// and says which were changed.
func (d *daemon) settings() error {
	host := sysctl.ReadHost(kernelRoot, runtime.NumCPU())
	programs, _ := compiler.Compile(d.cfg, snapshot.New(), compiler.Facts{NodeName: d.nodeName})
	wanted := append(sysctl.Conntrack(&d.cfg.Conntrack, host), sysctl.Dataplane(&programs.IPv4.Node, host)...)
	differ, err := sysctl.Diff(kernelRoot, wanted)
	if err := errors.Join(err, sysctl.Write(kernelRoot, differ)); err != nil {
		return err
	}
	for _, s := range differ {
		d.log.Info("set", "setting", s.String(), "why", s.Why.String())
	}
	return nil
}

// oomScore asks the kernel to spare the process.
func (d *daemon) oomScore() {
	differ, err := sysctl.Diff(kernelRoot, sysctl.OOMScore(d.cfg))
	if err := errors.Join(err, sysctl.Write(kernelRoot, differ)); err != nil {
		d.log.Warn("oomScoreAdj", "err", err)
	}
}

// lock waits until no other proxyc writes the node's rules.
func (d *daemon) lock(ctx context.Context) (*apply.Lock, error) {
	first, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	lock, err := apply.AcquireLock(first, lockDir)
	if err != nil && ctx.Err() == nil && first.Err() != nil {
		d.log.Warn("waiting for another proxyc to end", "err", err)
		d.health.SetNotReady("waiting for another proxyc to end: " + err.Error())
		lock, err = apply.AcquireLock(ctx, lockDir)
	}
	return lock, err
}

// source starts to fill the Store, and gives a channel that is closed when all
// that there is at first is in it.
func (d *daemon) source(ctx context.Context, all *sync.WaitGroup) (<-chan struct{}, error) {
	synced := make(chan struct{})
	if path := d.cmd.Snapshot; path != "" {
		files := &watch.Files{Path: path, Store: d.store, Log: d.log.Logger, Limit: int64(d.cmd.Limit), AllowEmpty: d.cmd.AllowEmpty,
			Report: func(l diag.List) {
				for _, f := range l {
					logDiagnostic(d.log.Logger, f)
				}
			}}
		first, told := make(chan error, 1), false
		inForce := sync.OnceFunc(func() { close(synced) })
		all.Go(func() {
			err := files.Run(ctx, func(err error) {
				switch {
				case err == nil:
					inForce()
					d.state.setKept(path, "")
				case told || d.again: // what is in force stays
					d.log.Error("the snapshot stays as it is", "err", err)
					d.state.setKept(path, err.Error())
					err = nil
				}
				if !told {
					told = true
					first <- err
				}
			})
			if err != nil {
				d.log.Error("changes of the snapshot will not be seen", "err", err)
			}
		})
		if err := <-first; err != nil {
			return nil, err
		}
		d.health.SetNode(&serve.Node{}) // nobody says that it is not eligible
		return synced, nil
	}
	api := &watch.API{NodeName: d.nodeName, Store: d.store, Log: d.log.Logger, NodeState: d.nodeState, Broken: d.state.setBroken,
		Resync: d.cfg.ConfigSyncPeriod.Duration, Events: d.events, Contact: d.contact}
	watch.Measure(&d.metrics.Client)
	if err := api.Connect(d.cfg.ClientConnection, deref(d.cmd.Master), "proxyc/"+version()); err != nil {
		return nil, err
	}
	all.Go(func() { api.Run(ctx, func() { close(synced) }) })
	return synced, nil
}

// cutOff says why the daemon is not ready any more, if it could not hear the
// API server for too long.
func (d *daemon) cutOff() string {
	lost := d.contact.Silence()
	after := d.cmd.Unready
	if ago := time.Since(lost.Since); !lost.Since.IsZero() && after > 0 && ago >= after {
		return fmt.Sprintf("no contact with the API server for %s: %s: %s", ago.Round(time.Second), lost.Resource, lost.Cause)
	}
	return ""
}

// lastHeard is what is heard of the API server, for the metrics.
func (d *daemon) lastHeard() []serve.LastHeard {
	var all []serve.LastHeard
	for _, r := range d.contact.Resources() {
		all = append(all, serve.LastHeard{Resource: r.Resource, At: r.Last, Lost: !r.Lost.IsZero()})
	}
	return all
}

func (d *daemon) nodeState(n *watch.NodeState) {
	if n == nil {
		d.health.SetNode(nil)
		return
	}
	d.health.SetNode(&serve.Node{Terminating: n.Terminating, Taints: n.Taints})
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// version is the program's, as far as the Go tool knows it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return cmp.Or(info.Main.Version, "unknown")
}

// removeLeftovers takes away what proxies of other modes left. It is no reason
// to stop if some of that fails.
func (d *daemon) removeLeftovers(ctx context.Context, dataplane apply.Dataplane) {
	leftovers, err := engine.Leftovers(ctx, d.cfg.ProxyMode(), dataplane)
	for _, l := range leftovers {
		d.log.Info("removing", "object", l.Object)
	}
	if err := errors.Join(err, engine.Remove(ctx, leftovers)); err != nil {
		d.log.Error("what other proxies left", "err", err)
	}
}
