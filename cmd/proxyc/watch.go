package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

type watchCmd struct {
	configFlags
	Snapshot    []string      `short:"s" placeholder:"PATH" sep:"none" help:"Follow a file or a directory instead of an API server. The forms are those of compile -s. May be repeated."`
	AllowEmpty  bool          `name:"allow-empty" help:"Accept a --snapshot that looks incomplete. It contains no Service, lacks the EndpointSlices of Services with selectors, or has an empty file, as after a failed kubectl. All rules for Services, or all backends, are then removed."`
	Limit       help.Bytes    `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"Limit of the size of all snapshot files; 0: no limit."`
	BootFrom    string        `name:"boot-from" placeholder:"FILE" help:"Save the last effective state to a file, and restore it at start. The rules are then written before the API server answers."`
	Variant     string        `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Variant of iptables: auto, nft or legacy. auto is the one that the node uses."`
	LockTimeout time.Duration `default:"30s" placeholder:"DURATION" help:"Longest wait for the lock of iptables that another program holds."`
	Socket      string        `name:"status-socket" placeholder:"PATH" help:"Unix socket of the status, which only the owner can open; by default one in /run/proxyc, which the other verbs find."`
	Unready     time.Duration `name:"unready-after" default:"5m" placeholder:"DURATION" help:"Time without API server until /readyz (port 10256) fails; 0: never. A server that is silent but breaks no connection is detected after 3 minutes, even if this time is shorter. /livez does not depend on it."`
	Condition   bool          `name:"node-condition" help:"Maintain condition ServicesProgrammed of the Node. It reports whether the rules implement the Services. It requires permission to patch nodes/status."`
	Drain       time.Duration `name:"drain-timeout" default:"25s" placeholder:"DURATION" help:"Longest drain of connections at exit (mode userspace); 0: none."`
	Fallback    bool          `name:"mode-fallback" help:"Use another mode if the node does not support the configured one. The fallback of ipvs is iptables; that of iptables and kernelspace is userspace. It lasts until the daemon ends. Without this flag, the daemon exits with an error."`
	OwnTables   bool          `name:"nftables-owner" help:"Own the tables of mode nftables (Linux 6.9 or later). The kernel then rejects changes by other programs, and keeps the tables when the process ends."`
	Fastpath    []string      `name:"nftables-fastpath" sep:"none" placeholder:"INTERFACE" help:"Interfaces of the kernel's fast path, such as eth0,veth* (mode nftables). Established connections to Services between them use a flowtable. Foreign forwarding rules do not see the packets of these connections. A star at the end of a name is a wildcard."`
	FastAfter   uint32        `name:"nftables-fastpath-packets" default:"20" placeholder:"N" help:"Packets of a connection before it uses the fast path."`
	Metrics     string        `name:"service-metrics" enum:"off,services" default:"off" placeholder:"WHAT" help:"Count the new connections of each Service, and those that are refused or dropped: off or services (modes nftables, iptables and ipvs; ipvs counts no refused ones). Verb top and the metrics show them. In mode nftables, each first packet of a connection then takes about 0.1 µs longer. Another value than before recreates the tables of mode nftables once, which forgets session affinity."`
	MetricsOf   []string      `name:"service-metrics-namespaces" placeholder:"NAME,..." help:"Namespaces whose Services have metrics; by default all."`
	Priority    string        `name:"windows-priorityclass" enum:",IDLE_PRIORITY_CLASS,BELOW_NORMAL_PRIORITY_CLASS,NORMAL_PRIORITY_CLASS,ABOVE_NORMAL_PRIORITY_CLASS,HIGH_PRIORITY_CLASS,REALTIME_PRIORITY_CLASS" default:"" placeholder:"CLASS" help:"Windows priority class of the process; by default inherited. The names are those of the same flag of kubelet."`
	ipvsFlags
	Rest []string `arg:"" optional:"" hidden:""`
}

// Run runs the daemon.
func (c *watchCmd) Run(e *env, k *kong.Context) error {
	if wrong := c.wrong(e); len(wrong) > 0 {
		e.printErrors(c, wrong)
		return errReported
	}
	ctx, stop := terminal.UntilStopped()
	defer stop()
	follows, checked := daemon.Inherit()
	c.checked = checked
	resolved, err := c.resolve(e)
	c.checked = nil // other contents are read and checked
	if err != nil {
		if c.WindowsService != nil && *c.WindowsService { // a service can only report to its log
			return asService(ctx, e, true, c.Drain, func(context.Context) error {
				_, err := c.resolve(e)
				return err
			})
		}
		return err
	}
	e.report(c.withoutEffect(resolved.Config.ProxyMode()))
	if c.Cleanup {
		return cleanUp(ctx, e, false, false)
	}
	if err := needRoot("watch"); err != nil {
		return err
	}
	o := c.options(e, k)
	o.Follows = follows
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	o.Reload = reload
	if c.InitOnly {
		return daemon.InitOnly(o, resolved)
	}
	if err := setPriority(c.Priority); err != nil {
		return err
	}
	err = asService(ctx, e, resolved.Config.WindowsRunAsService, c.Drain, func(ctx context.Context) error {
		o.Stdout, o.Stderr = e.stdout, e.stderr // which differ in a service
		return daemon.Run(ctx, o, resolved)
	})
	if restart, ok := errors.AsType[*daemon.Restart](err); ok {
		signal.Ignore(syscall.SIGHUP) // the next program reads the files, and receives it then
		if stop() {
			return nil
		}
		return restart.Exec()
	}
	return err
}

// wrong returns the errors of the daemon's own flags.
func (c *watchCmd) wrong(e *env) (wrong []error) {
	// The daemon replaces its boot file, so it must not be the file of another flag.
	if there, err := e.inputs().ReadFile(c.BootFrom); c.BootFrom != "" && err == nil && !ir.IsJSON(there) {
		wrong = append(wrong, fmt.Errorf("--boot-from: must be a new file or a boot file, got %s", c.BootFrom))
	}
	for _, arg := range c.Rest {
		if arg != "" { // kube-proxy accepts empty arguments, as from unset variables
			wrong = append(wrong, fmt.Errorf("watch accepts only flags, got %q", arg))
		}
	}
	if fast := c.fastpath(); fast.Validate() != nil {
		wrong = append(wrong, fmt.Errorf("--nftables-fastpath: %w", fast.Validate()))
	}
	if c.Condition && len(c.Snapshot) > 0 && !c.Cleanup && deref(c.WriteConfigTo) == "" {
		wrong = append(wrong, errors.New("--node-condition: requires an API server, got --snapshot"))
	}
	return wrong
}

// options returns the daemon's options.
func (c *watchCmd) options(e *env, k *kong.Context) *daemon.Options {
	o := &daemon.Options{
		SourceOptions: daemon.SourceOptions{
			Resolve:  func() (*config.Resolved, diag.List) { return c.Resolve(e.inputs().ReadFile, c.Strict) },
			Snapshot: c.Snapshot, SnapshotLimit: int64(c.Limit), AllowEmpty: c.AllowEmpty, Master: deref(c.Master),
			Poll: e.poll,
		},
		RuleOptions: daemon.RuleOptions{
			BootFrom: c.BootFrom, IPTables: c.Variant, LockTimeout: c.LockTimeout, IPVS: c.ipvsFlags.options(),
			ModeFallback: c.Fallback, OwnTables: c.OwnTables, Fastpath: c.fastpath(), DrainTimeout: c.Drain,
			ServiceMetrics: apply.ServiceMetrics(c.Metrics), MetricsNamespaces: c.MetricsOf,
		},
		ReportOptions: daemon.ReportOptions{
			Version: build.Read().Version, StatusSocket: cmp.Or(c.Socket, host.Socket()), UnreadyAfter: c.Unready, NodeCondition: c.Condition,
			Flags: func(cfg *config.Config) map[string]string { return help.Values(k, config.FlagValues(cfg)) },
		},
		Hostname: e.hostname,
		Stdout:   e.stdout, Stderr: e.stderr,
		Files: fileSystem{e},
	}
	if file := deref(c.Config); file != "-" {
		o.ConfigFile = file
	}
	return o
}

// fastpath returns the options of the fast path. An empty item is kept, and rejected later: an
// unset variable must not disable the fast path silently.
func (c *watchCmd) fastpath() apply.Fastpath {
	fast := apply.Fastpath{Packets: c.FastAfter}
	for _, names := range c.Fastpath {
		fast.Interfaces = append(fast.Interfaces, strings.Split(names, ",")...)
	}
	return fast
}

// withoutEffect reports flags for some modes in another mode.
func (c *watchCmd) withoutEffect(mode ir.Mode) (list diag.List) {
	nftables := review.Modes[mode].OwnTable
	for _, f := range [...]struct {
		name           string
		given, applies bool
		to             string
	}{{"--nftables-fastpath", len(c.Fastpath) > 0, nftables, "mode nftables"}, {"--nftables-owner", c.OwnTables, nftables, "mode nftables"},
		{"--service-metrics", c.Metrics != string(apply.MetricsOff), nftables || mode == ir.ModeIPTables || mode == ir.ModeIPVS, "modes nftables, iptables and ipvs"}} {
		if f.given && !f.applies {
			list.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.FlagNoEffect, Object: f.name, Msg: "has no effect in mode " + string(mode) + ": it applies only to " + f.to})
		}
	}
	return list
}

// deref returns the value of a flag; "" if it is not set.
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// fileSystem adapts env for the daemon.
type fileSystem struct{ *env }

func (f fileSystem) ReadFile(name string) ([]byte, error) { return f.files.ReadFile(name) }

func (f fileSystem) Stat(name string) (fs.FileInfo, error) { return f.files.Stat(name) }

func (f fileSystem) WriteFile(name string, write func(io.Writer) error) error {
	return disk.Write(f.files, name, disk.OwnerOnly, write)
}
