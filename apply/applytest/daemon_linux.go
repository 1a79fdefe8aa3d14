package applytest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// ProxycWatch is the [DaemonFunc] that runs `proxyc watch` from the given
// binary, with the snapshot file in place of an API server.
func ProxycWatch(binary string, args ...string) DaemonFunc {
	return func(ctx context.Context, node *Namespace, configFile, snapshotFile, mode string) (Daemon, error) {
		d := &watch{node: node, binary: binary}
		d.cmd = node.Command(context.WithoutCancel(ctx), binary, append([]string{"watch", "-c", configFile, "--snapshot", snapshotFile,
			"--hostname-override", "node1", "--mode", mode}, args...)...)
		var err error
		if d.wait, err = node.Start(d.cmd); err != nil {
			return nil, err
		}
		if err := d.follow(ctx); err != nil {
			return nil, errors.Join(err, d.Stop())
		}
		return d, nil
	}
}

// watch is a running `proxyc watch`.
type watch struct {
	node       *Namespace
	binary     string
	cmd        *exec.Cmd
	wait       func() error
	generation int // of the rules that are in force
}

// Update waits for the rules after the snapshot file has changed.
func (d *watch) Update(ctx context.Context, _ string) error { return d.follow(ctx) }

// follow waits until newer rules are in force. A change of the file that
// changes no rule makes none: three seconds without news have to do then.
func (d *watch) follow(ctx context.Context) error {
	patience := Patience(3 * time.Second)
	if d.generation == 0 {
		patience = Patience(30 * time.Second)
	}
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		synced, generation, err := d.status(ctx)
		if err == nil && synced && generation > d.generation {
			d.generation = generation
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			if d.generation == 0 {
				return fmt.Errorf("proxyc watch has written no rules within %s: %w", patience, err)
			}
			return err
		case <-tick.C:
		}
	}
}

func (d *watch) status(ctx context.Context) (synced bool, generation int, err error) {
	out, err := d.node.Run(d.node.Command(ctx, d.binary, "status", "-o", "json"))
	if err != nil {
		return false, 0, err
	}
	var s struct {
		Synced     bool
		Generation int
	}
	err = json.Unmarshal(out, &s)
	return s.Synced, s.Generation, err
}

// Stop ends the daemon as a node does; its rules stay.
func (d *watch) Stop() error {
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return d.wait()
}
