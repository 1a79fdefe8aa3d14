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
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Options are what the command line asks of a daemon.
type Options struct {
	SourceOptions
	RuleOptions
	ReportOptions
	Hostname       func() (string, error)
	Stdout, Stderr io.Writer
	Files          Files
}

// SourceOptions are where configuration and objects come from.
type SourceOptions struct {
	// Resolve reads the configuration, and returns what is wrong with it. text is that of ConfigFile.
	Resolve func() (resolved *config.Resolved, text []byte, _ diag.List)
	// ConfigFile is the file that Resolve reads; "": there is none that could change.
	ConfigFile string
	// Snapshot are files and directories to follow in place of an API server.
	Snapshot      []string
	SnapshotLimit int64  // bytes; 0: any amount
	AllowEmpty    bool   // accept a snapshot that lacks what any cluster has
	Master        string // the API server's address, where no kubeconfig has one
	// Reload asks for the configuration and the snapshot to be read again now; nil: nothing does.
	Reload <-chan os.Signal
}

// RuleOptions are how rules are written and kept.
type RuleOptions struct {
	BootFrom    string        // a file that keeps what was last in force; "": none
	IPTables    string        // the variant, as in apply.Options
	IPVS        apply.IPVS    // settings of mode ipvs that no configuration has
	LockTimeout time.Duration // how long to wait for the lock of iptables
	// ModeFallback takes another mode where the kernel lacks what the configured
	// one needs: iptables for ipvs, userspace for both.
	ModeFallback bool
	// OwnTables has the kernel keep other programs from the tables of mode nftables.
	OwnTables bool
	// Fastpath selects the connections that take the fast path, in mode nftables.
	Fastpath apply.Fastpath
	// DrainTimeout is how long connections that the process carries may last when
	// it ends.
	DrainTimeout time.Duration
}

// ReportOptions are what a daemon reports, and where.
type ReportOptions struct {
	Version      string // of the program
	StatusSocket string // a unix socket that serves the status, too; "": none
	// UnreadyAfter is how long /readyz stays 200 without contact to the API
	// server; 0: as long as that lasts.
	UnreadyAfter time.Duration
	// NodeCondition keeps condition ServicesProgrammed on the Node.
	NodeCondition bool
	// Flags returns all flags with the values in force, for /flagz.
	Flags func(*config.Config) map[string]string
	// Trace writes what happens to a packet, for /debug/proxyc/trace.
	Trace func(io.Writer, Scene) error
	// Prove compares the rules of a Service, in the Programs' mode, with what they mean, as long
	// as the context allows, and returns what differs; nil: nothing is proved.
	Prove func(context.Context, ir.Programs) []Unproved
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

// Run keeps the rules of the node until ctx ends. It starts a new session in the same
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
	return p.run(ctx, p.loaded(first))
}

// InitOnly brings the kernel's settings to what the configuration wants, and
// does nothing else.
func InitOnly(o *Options, cfg *config.Resolved) error {
	log := newLogger(o.Stdout, o.Stderr, &cfg.Config.Logging)
	defer log.info.Flush()
	name, err := node.Name(cfg.NodeName, o.Hostname)
	if err != nil {
		return err
	}
	return (&sysctls{cfg: cfg.Config, node: name, log: log.Logger}).write()
}

// process is what the sessions of a daemon share.
type process struct {
	*Options
	fallback *fallback // nil: there is none
	started  time.Time

	sessions   int // that have ended
	retry      retry
	cluster    cluster
	handover   handover
	lastHealth *serve.Health // of the last session; nil: there was none
	stuck      bool          // a session did not end: what it uses is its own

	programmed atomic.Bool // what an API server's objects mean was in force once
}

// run runs one session after the other, until ctx ends or no configuration can be put in
// force. If a configuration cannot be put in force, the one that was in force before it
// replaces it. If that one fails, too, it is tried again, later each time.
func (p *process) run(ctx context.Context, now *loaded) error {
	var held *loaded // the one that was in force last; nil: there is none to go back to
	var refused *refusedConfig
	for ; ; p.sessions++ {
		smallHeap(garbageAtStart)
		log := newLogger(p.Stdout, p.Stderr, &now.Config.Logging)
		var next *loaded
		wrote := false
		s, err := newSession(p, now, refused, log)
		if err == nil {
			next, err = s.run(ctx)
			wrote = s.rules.wrote.Load()
		}
		if wrote {
			held, p.retry.failures = now, 0
		}
		_, ofRules := errors.AsType[*rulesError](err)
		switch {
		case err == nil && next != nil:
			now, refused = next, nil
		case err != nil && held != nil && now != held:
			log.Error("the configuration cannot be put in force: going back to the one before", "err", err)
			if s != nil {
				s.rules.sysctls.restore()
			}
			now, refused = held, &refusedConfig{now.Config, err}
		case ofRules && now == held && !wrote:
			wait := p.retry.fail(err, now.Config.SyncPeriod())
			log.Error("the configuration before cannot be put in force either: both are tried again", "after", wait, "err", err)
			refused = nil // the new one may not be the reason
		default:
			if !p.stuck {
				p.handover.drain(p.DrainTimeout, log)
			}
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
