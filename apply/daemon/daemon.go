package daemon

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/logging"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Options are the command line options of a daemon.
type Options struct {
	SourceOptions
	RuleOptions
	ReportOptions
	Hostname       func() (string, error)
	Stdout, Stderr io.Writer
	Files          Files
}

// SourceOptions select the configuration and the objects.
type SourceOptions struct {
	// Resolve reads the configuration and returns its findings. text is the content of ConfigFile.
	Resolve func() (resolved *config.Resolved, text []byte, _ diag.List)
	// ConfigFile is the file that Resolve reads; "" if there is none to watch.
	ConfigFile string
	// Snapshot contains files and directories to read instead of an API server.
	Snapshot      []string
	SnapshotLimit int64  // bytes; 0 for no limit
	AllowEmpty    bool   // accept a snapshot that lacks what every cluster has
	Master        string // address of the API server if no kubeconfig has one
	// Poll is how often the files are examined for changes; 0 for once a second.
	Poll time.Duration
	// Reload requests that configuration and snapshot are read again; optional.
	Reload <-chan os.Signal
}

// RuleOptions control how rules are written and maintained.
type RuleOptions struct {
	BootFrom    string        // file with the last applied Programs; optional
	IPTables    string        // variant, as in apply.Options
	IPVS        apply.IPVS    // settings of mode ipvs that the configuration lacks
	LockTimeout time.Duration // timeout for the lock of iptables
	// ModeFallback selects another mode if the kernel does not support the configured one: iptables
	// for ipvs, userspace for both.
	ModeFallback bool
	// OwnTables sets the owner flag on the tables of mode nftables, so that the kernel rejects changes
	// by other programs.
	OwnTables bool
	// Fastpath selects the connections in the fast path of mode nftables.
	Fastpath apply.Fastpath
	// DrainTimeout is how long proxied connections may continue when the process ends.
	DrainTimeout time.Duration
}

// ReportOptions control what a daemon reports.
type ReportOptions struct {
	Version      string // version of the program
	StatusSocket string // path of a unix socket that also serves the status; optional
	// UnreadyAfter is how long /readyz stays 200 without contact to the API server; 0 for no limit.
	UnreadyAfter time.Duration
	// NodeCondition enables condition ServicesProgrammed on the Node.
	NodeCondition bool
	// Flags returns all flags with their current values, for /flagz.
	Flags func(*config.Config) map[string]string
	// Trace writes the trace of a packet, for /debug/proxyc/trace.
	Trace func(io.Writer, TraceInput) error
}

// Files is the file system interface that a daemon uses.
type Files interface {
	ReadFile(name string) ([]byte, error)
	Stat(name string) (fs.FileInfo, error)
	// WriteFile writes a file atomically.
	WriteFile(name string, write func(io.Writer) error) error
}

// TraceInput is the input of a trace: the packet, and the state besides the node's rules that decides
// about it.
type TraceInput struct {
	Snapshot   *snapshot.Snapshot
	Node       string
	Programs   ir.Programs
	Interfaces []compiler.Interface // of the node
	Findings   []status.Finding     // about objects
	From, To   string               // flags of proxyc trace
	Output     string               // "text" or "json"
}

// Run maintains the rules of the node until ctx ends. When the configuration file changes, it
// starts a new session in the same process: rules stay, and equal ones are adopted. first is the
// initial configuration.
func Run(ctx context.Context, o *Options, first *config.Resolved) error {
	p := &process{Options: o, started: time.Now()}
	if o.ModeFallback {
		p.fallback = newFallback(ctx, o)
		own := *o
		own.Resolve = p.fallback.resolve(o.Resolve)
		p.Options = &own
		first = p.fallback.settle(first)
	}
	return p.run(ctx, p.loaded(first))
}

// InitOnly sets the kernel settings that the configuration requires, and nothing else.
func InitOnly(o *Options, cfg *config.Resolved) error {
	log := logging.New(o.Stdout, o.Stderr, &cfg.Config.Logging)
	defer log.Flush()
	name, err := node.Name(cfg.NodeName, o.Hostname)
	if err != nil {
		return err
	}
	return (&sysctls{cfg: cfg.Config, node: name, log: log.Logger}).write()
}

// process is the state that the sessions of a daemon share.
type process struct {
	*Options
	fallback *fallback // nil if disabled
	started  time.Time

	sessions   int // number of ended sessions
	retry      retry
	cluster    cluster
	handover   handover
	lastHealth *serve.Health      // of the last session; nil before the first
	lastFlows  *conntrack.Cleaner // of the last session; nil before the first
	stuck      bool               // a session did not end, and still uses its resources

	programmed atomic.Bool // rules for an API server's objects were applied once
}

// run runs consecutive sessions until ctx ends or no configuration can be applied. If a
// configuration cannot be applied, run returns to the previous one, and retries. If that fails, too,
// run retries both with increasing waits.
func (p *process) run(ctx context.Context, now *loaded) error {
	var last *loaded // last applied configuration; nil before the first
	var refused *refusedConfig
	for ; ; p.sessions++ {
		setGCPercent(garbageAtStart)
		log := logging.New(p.Stdout, p.Stderr, &now.Config.Logging)
		var next *loaded
		wrote := false
		s, err := newSession(p, now, refused, log)
		if err == nil {
			next, err = s.run(ctx)
			wrote = s.rules.wrote.Load()
		}
		if wrote {
			if now != last {
				refused = nil
			}
			last, p.retry.failures = now, 0
		}
		_, ofRules := errors.AsType[*rulesError](err)
		switch {
		case p.stuck:
			return err
		case err == nil && next != nil:
			now = next
		case err != nil && last != nil && now != last:
			refused = refused.again(now.Config, err)
			log.Error("the configuration cannot be applied: returning to the previous one, and retrying", "after", refused.wait(), "err", err)
			if s != nil {
				s.rules.sysctls.restore()
			}
			now = last
		case ofRules && now == last && !wrote:
			wait := p.retry.fail(err, now.Config.SyncPeriod())
			log.Error("the previous configuration cannot be applied either: retrying both", "after", wait, "err", err)
			refused = nil // the new configuration may not be the cause
		default:
			p.handover.drain(p.DrainTimeout, log)
			return err
		}
	}
}

// rulesError is a failure to apply or maintain rules.
type rulesError struct{ error }

func (e *rulesError) Unwrap() error { return e.error }

// retry schedules the next attempt with the last applied configuration.
type retry struct {
	failures int // consecutive
	at       time.Time
	err      error // of the last attempt
}

// fail records a failure, and returns the wait after it.
func (r *retry) fail(err error, longest time.Duration) time.Duration {
	r.failures++
	wait := apply.Backoff(r.failures, apply.FirstRetry, max(longest, apply.FirstRetry))
	r.at, r.err = time.Now().Add(wait), err
	return wait
}

// wait waits until the next attempt. It returns false if ctx ends before.
func (r *retry) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(r.at)):
		return true
	}
}

// Garbage collection targets (GOGC): while the initial objects arrive, most of which is garbage,
// and afterwards.
const (
	garbageAtStart = 100
	garbageAtRest  = 25
)

// setGCPercent sets the garbage collection target unless the environment does. For a daemon a small
// heap matters more than the duration of a compilation.
func setGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(-1)
	}
}
