// Package host is what the daemon and the one-shot verbs need of the machine beneath them: the table of
// the modes that this system supports, its lock and kernel settings, and leftovers of other proxies.
package host

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Root is the root directory of the kernel settings.
const Root = sysctl.Root("/")

// Options returns the dataplane options of a configuration; ipvs contains settings of mode ipvs that
// the configuration lacks.
func Options(cfg *config.Config, ipvs apply.IPVS) apply.Options {
	ipvs.Scheduler, _, _ = ir.ParseScheduler(cfg.Scheduler())
	return apply.Options{IPVS: ipvs, Network: cfg.Winkernel.NetworkName, RootEndpoint: cfg.Winkernel.RootHnsEndpointName}
}

// Liberal reports whether this host treats TCP packets outside the window as valid; see
// compiler.Facts.
func Liberal() bool { return sysctl.Liberal(Root) }

// Settings returns the kernel settings that differ from the required ones, for a configuration on a
// node of this name. It ignores findings of the compilation.
func Settings(cfg *config.Config, nodeName string) ([]sysctl.Setting, error) {
	programs, _ := compiler.Compile(cfg, snapshot.New(), compiler.Facts{NodeName: nodeName})
	return SettingsOf(cfg, &programs.IPv4.Node)
}

// SettingsOf returns the kernel settings that differ from those required by configuration and mode.
func SettingsOf(cfg *config.Config, node *ir.Node) ([]sysctl.Setting, error) {
	if runtime.GOOS != "linux" {
		return nil, nil // only Linux has the settings
	}
	host := sysctl.ReadHost(Root, runtime.NumCPU())
	wanted := append(sysctl.Conntrack(&cfg.Conntrack, host), sysctl.Dataplane(node, host)...)
	return sysctl.Diff(Root, wanted)
}

// Writer returns the proxyc process that writes the node's rules: "process 4711 (proxyc watch)"; ""
// if there is none, or it is unknown.
func Writer() string {
	owner, _ := Writers()
	return owner
}

// Writers returns the Writer, and the last one instead if it was killed.
func Writers() (owner, killed string) { return apply.LockOwner(lockDir) }

// Wrote reports whether proxyc wrote the node's rules since the node started, and did not remove them. bootFile
// is the boot file that contains them; "" if it is unknown.
func Wrote() (bootFile string, ok bool) { return apply.LastNote(lockDir) }

// Socket returns the default path of the status socket; "" if the system has none. Each network namespace
// has its own, like the lock.
func Socket() string {
	namespace, err := os.Readlink("/proc/thread-self/ns/net") // "net:[4026531840]"
	if err != nil {
		return ""
	}
	return filepath.Join(lockDir, "proxyc-"+strings.Trim(namespace, "net:[]")+".sock")
}

// socketFlag matches the path of the status socket in a command line.
var socketFlag = regexp.MustCompile(` --status-socket[= ]([^ )]+)`)

// DaemonSocket returns the status socket of the daemon that writes this node's rules; "" if there is
// none, or it is unknown.
func DaemonSocket() string {
	writer, socket := Writer(), Socket()
	if named := socketFlag.FindStringSubmatch(writer); named != nil {
		socket = named[1]
	}
	if _, err := os.Stat(socket); writer == "" || err != nil {
		return ""
	}
	return socket
}

// CheckLock returns why this node's lock cannot be written; nil if it can, or could if it were
// free.
func CheckLock() error { return apply.CheckLock(lockDir) }

// InheritLock returns the lock that this process acquired before it executed itself again; nil without
// one.
func InheritLock(descriptor uintptr) *apply.Lock { return apply.InheritLock(lockDir, descriptor) }

// AcquireLock waits until no other proxyc writes the node's rules. It calls waiting with the owner
// if that takes longer than a second.
func AcquireLock(ctx context.Context, waiting func(why error)) (*apply.Lock, error) {
	first, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	lock, err := apply.AcquireLock(first, lockDir)
	if err != nil && ctx.Err() == nil && first.Err() != nil {
		waiting(err)
		lock, err = apply.AcquireLock(ctx, lockDir)
	}
	return lock, err
}
