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

// What a daemon and a OneShot do to a node beside its rules.

// kernelRoot is where the kernel's settings are.
const kernelRoot = sysctl.Root("/")

// Liberal reports whether this host takes packets out of window for valid; see
// compiler.Facts.
func Liberal() bool { return sysctl.Liberal(kernelRoot) }

// Settings returns the kernel settings that are not as a configuration wants them on a
// node of this name. What compiling it finds is lint's matter.
func Settings(cfg *config.Config, nodeName string) ([]sysctl.Setting, error) {
	programs, _ := compiler.Compile(cfg, snapshot.New(), compiler.Facts{NodeName: nodeName})
	return settings(cfg, &programs.IPv4.Node)
}

// settings returns the kernel settings that are not as configuration and mode
// want them.
func settings(cfg *config.Config, node *ir.Node) ([]sysctl.Setting, error) {
	if runtime.GOOS != "linux" {
		return nil, nil // the settings are Linux's
	}
	host := sysctl.ReadHost(kernelRoot, runtime.NumCPU())
	wanted := append(sysctl.Conntrack(&cfg.Conntrack, host), sysctl.Dataplane(node, host)...)
	return sysctl.Diff(kernelRoot, wanted)
}

// lockToWrite takes the node's lock. Who only looks goes without it, so that a
// daemon, which holds it as long as it runs, can be checked: the kernel gives
// each table as it is between two commits. waiting is told as for acquireLock.
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

// Writer returns which proxyc writes the node's rules: "process 4711 (proxyc watch)"; "" where
// none does, or that cannot be read.
func Writer() string { return apply.LockOwner(lockDir) }

// CheckLock returns why this node's lock could not be written; nil: it could, if nobody
// holds it.
func CheckLock() error { return apply.CheckLock(lockDir) }

// acquireLock waits until no other proxyc writes the node's rules. waiting is told who
// does, when that takes longer than a second.
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

// errNoPeer keeps the rules of a node that has no others.
var errNoPeer = errors.New("--keep-kube-proxy: kube-proxy has written no rules here, and there would be none: start it first")

// cleanupTimeout is how long Cleanup waits for another proxyc to end.
const cleanupTimeout = 5 * time.Second

// Cleanup removes what proxyc or kube-proxy left on the node, in every mode and
// family, unless only to look; with keepPeer, what proxyc left on a node to which
// kube-proxy is back. found is told what there is, before it goes.
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
