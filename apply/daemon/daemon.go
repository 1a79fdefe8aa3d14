package daemon

import (
	"context"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/logging"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// Options are the command line options of a daemon.
type Options struct {
	SourceOptions
	RuleOptions
	ReportOptions
	Follows        *Restart // that started this program; nil if it is the first
	Hostname       func() (string, error)
	Stdout, Stderr io.Writer
	Files          Files
}

// SourceOptions select the configuration and the objects.
type SourceOptions struct {
	// Resolve reads the configuration and returns its findings.
	Resolve func() (*config.Resolved, diag.List)
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
	// ServiceMetrics is what the rules count. Only Services of MetricsNamespaces have metrics, unless it is empty.
	ServiceMetrics    apply.ServiceMetrics
	MetricsNamespaces []string
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
}

// Files is the file system interface that a daemon uses.
type Files interface {
	ReadFile(name string) ([]byte, error)
	Stat(name string) (fs.FileInfo, error)
	// WriteFile writes a file atomically.
	WriteFile(name string, write func(io.Writer) error) error
}

// Run maintains the rules of the node until ctx ends. If the configuration file changes, or the
// configuration could not be applied after that, it returns a *Restart. first is the configuration.
func Run(ctx context.Context, o *Options, first *config.Resolved) error {
	setGCPercent(garbageAtStart)
	s, err := newSession(ctx, o, first)
	if err != nil {
		return err
	}
	return s.run(ctx)
}

// InitOnly sets the kernel settings that the configuration requires, and nothing else.
func InitOnly(o *Options, cfg *config.Resolved) error {
	log := logging.New(o.Stdout, o.Stderr, &cfg.Config.Logging)
	defer log.Flush()
	name, err := node.Name(cfg.NodeName, o.Hostname)
	if err != nil {
		return err
	}
	return writeSettings(cfg.Config, name, log.Logger)
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
