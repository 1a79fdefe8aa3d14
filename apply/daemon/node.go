package daemon

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Operations on a node besides its rules, shared by a daemon and a OneShot.

// kernelRoot is the root directory of the kernel settings.
const kernelRoot = sysctl.Root("/")

// Liberal reports whether this host treats TCP packets outside the window as valid; see
// compiler.Facts.
func Liberal() bool { return sysctl.Liberal(kernelRoot) }

// Settings returns the kernel settings that differ from the required ones, for a configuration on a
// node of this name. It ignores findings of the compilation.
func Settings(cfg *config.Config, nodeName string) ([]sysctl.Setting, error) {
	programs, _ := compiler.Compile(cfg, snapshot.New(), compiler.Facts{NodeName: nodeName})
	return settings(cfg, &programs.IPv4.Node)
}

// settings returns the kernel settings that differ from those required by configuration and mode.
func settings(cfg *config.Config, node *ir.Node) ([]sysctl.Setting, error) {
	if runtime.GOOS != "linux" {
		return nil, nil // only Linux has the settings
	}
	host := sysctl.ReadHost(kernelRoot, runtime.NumCPU())
	wanted := append(sysctl.Conntrack(&cfg.Conntrack, host), sysctl.Dataplane(node, host)...)
	return sysctl.Diff(kernelRoot, wanted)
}

// lockToWrite acquires the node's lock. Read-only commands do not need it, so they can check a node
// whose daemon holds it: the kernel returns each table as it is between two commits. waiting is as
// in acquireLock.
func lockToWrite(ctx context.Context, timeout time.Duration, lookOnly bool, waiting func(why error)) (release func() error, err error) {
	if lookOnly {
		return func() error { return nil }, nil
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	lock, err := acquireLock(ctx, waiting)
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

// Writer returns the proxyc process that writes the node's rules: "process 4711 (proxyc watch)"; ""
// if there is none, or it is unknown.
func Writer() string { return apply.LockOwner(lockDir) }

// CheckLock returns why this node's lock cannot be written; nil if it can, or could if it were
// free.
func CheckLock() error { return apply.CheckLock(lockDir) }

// acquireLock waits until no other proxyc writes the node's rules. It calls waiting with the owner
// if that takes longer than a second.
func acquireLock(ctx context.Context, waiting func(why error)) (*apply.Lock, error) {
	first, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	lock, err := apply.AcquireLock(first, lockDir)
	if err != nil && ctx.Err() == nil && first.Err() != nil {
		waiting(err)
		lock, err = apply.AcquireLock(ctx, lockDir)
	}
	return lock, err
}

// errNoPeer prevents the removal of the only rules of a node.
var errNoPeer = errors.New("--keep-kube-proxy: kube-proxy has written no rules here, and there would be none: start it first")

// cleanupTimeout is how long Cleanup waits for another proxyc to end.
const cleanupTimeout = 5 * time.Second

// Cleanup removes what proxyc or kube-proxy left on the node, in every mode and family. With
// keepPeer it removes what proxyc left on a node that kube-proxy manages again. With lookOnly it
// removes nothing. It calls found with the leftovers before it removes them.
func Cleanup(ctx context.Context, keepPeer, lookOnly bool, found func([]apply.Leftover)) error {
	release, err := lockToWrite(ctx, cleanupTimeout, lookOnly, func(error) {})
	if err != nil {
		return err
	}
	defer release()
	leftovers, err := Leftovers(ctx, "", nil)
	if keepPeer {
		if err == nil {
			leftovers, err = beside(ctx, len(peers(leftovers)) > 0)
		}
		if err != nil {
			return err
		}
	}
	if err == nil || len(leftovers) > 0 {
		found(leftovers)
	}
	if lookOnly {
		return err
	}
	return errors.Join(err, remove(ctx, leftovers))
}
