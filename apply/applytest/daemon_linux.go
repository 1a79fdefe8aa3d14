package applytest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"time"
)

// ProxycWatch returns the [DaemonFunc] that runs `proxyc watch` of the given binary, with the
// snapshot file instead of an API server.
func ProxycWatch(binary string, args ...string) DaemonFunc {
	return func(ctx context.Context, node *Namespace, configFile, snapshotFile, mode string) (Daemon, error) {
		d := &watch{node: node}
		d.cmd = node.Command(context.WithoutCancel(ctx), binary, append([]string{"watch", "-c", configFile, "--snapshot", snapshotFile, "--allow-empty",
			"--hostname-override", "node1", "--mode", mode}, args...)...)
		var err error
		if d.wait, err = node.Start(d.cmd); err != nil {
			return nil, err
		}
		if err := d.Update(ctx, snapshotFile); err != nil {
			return nil, errors.Join(err, d.Stop())
		}
		return d, nil
	}
}

// watch is a running `proxyc watch`.
type watch struct {
	node *Namespace
	cmd  *exec.Cmd
	wait func() error
}

// Signal sends a signal to the daemon.
func (d *watch) Signal(s os.Signal) error { return d.cmd.Process.Signal(s) }

// Update waits until the current snapshot file is applied.
func (d *watch) Update(ctx context.Context, snapshotFile string) error {
	file, err := os.Stat(snapshotFile)
	if err != nil {
		return err
	}
	timeout := ScaledTimeout(30 * time.Second)
	deadline := time.After(timeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		synced, modified, err := d.status(ctx)
		if err == nil && synced && modified.Equal(file.ModTime()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("proxyc watch has not put the snapshot of %s in force within %s, but that of %s (synced: %t): %v", file.ModTime(), timeout, modified, synced, err)
		case <-tick.C:
		}
	}
}

// status reports whether the kernel matches the desired rules, and returns the modification time of
// the applied snapshot.
func (d *watch) status(ctx context.Context) (synced bool, modified time.Time, err error) {
	code, body, err := d.node.Get(ctx, 10249, "/proxyc/status")
	if err != nil || code != http.StatusOK {
		return false, modified, cmp.Or(err, fmt.Errorf("HTTP status %d", code))
	}
	var s struct {
		Synced   bool
		Snapshot []struct{ Modified time.Time }
	}
	if err = json.Unmarshal([]byte(body), &s); err == nil && len(s.Snapshot) > 0 {
		modified = s.Snapshot[0].Modified
	}
	return s.Synced, modified, err
}

// Stop ends the daemon like a node; its rules stay.
func (d *watch) Stop() error {
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return d.wait()
}
