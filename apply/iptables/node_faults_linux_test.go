package iptables

import (
	"cmp"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/run"
)

// nodeFaults are events on a node while a tool should run.
var nodeFaults = []struct {
	name string
	run  runner // replaces the tool
}{
	{"missing", func(ctx context.Context, in io.Reader, out io.Writer, name string, _ ...string) error {
		return run.To(ctx, in, out, "no-"+name)
	}},
	{"killed", func(ctx context.Context, in io.Reader, out io.Writer, _ string, _ ...string) error {
		return run.To(ctx, in, out, "sh", "-c", "kill -9 $$")
	}},
	{"hangs", func(ctx context.Context, in io.Reader, out io.Writer, _ string, _ ...string) error {
		return withDeadline(run.To, 100*time.Millisecond)(ctx, in, out, "sleep", "1000")
	}},
	{"without space", func(ctx context.Context, in io.Reader, out io.Writer, _ string, _ ...string) error {
		return run.To(ctx, in, out, "sh", "-c", "cat >/dev/null; echo 'No space left on device' >&2; exit 4")
	}},
	{"ends early", func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
		return run.To(ctx, io.LimitReader(in, 200), out, name, args...)
	}},
	{"flushed before", func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
		return cmp.Or(flush(name), run.To(ctx, in, out, name, args...))
	}},
	{"flushed afterwards", func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
		return cmp.Or(run.To(ctx, in, out, name, args...), flush(name))
	}},
}

// flushing is a flush that waits for the lock of the legacy tools; nil for none.
var flushing *exec.Cmd

// flush makes another program flush table nat when it gets the lock.
func flush(name string) error {
	flushing = exec.Command(strings.TrimSuffix(name, "-restore"), "-w", "60", "-t", "nat", "-F")
	if err := flushing.Start(); err != nil || strings.Contains(name, string(Legacy)) {
		return err
	}
	defer func() { flushing = nil }()
	return flushing.Wait()
}

// After any event during a commit, one of three holds: the commit fails, the rules are as desired,
// or the difference is reported. The steps that the interface documents then suffice.
func TestNodeFaults(t *testing.T) {
	for _, fault := range nodeFaults {
		t.Run(fault.name, func(t *testing.T) {
			inNamespace(t, func(t *testing.T, v Variant) {
				now, next := programs(6), programs(12)
				target, drift := drifting(t, v, now)
				target.maxNFT = 8 // split into several runs
				real, restores := target.run, 0
				target.run = func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
					if strings.HasSuffix(name, "restore") {
						if restores++; restores == 2 {
							return fault.run(ctx, in, out, name, args...)
						}
					}
					return real(ctx, in, out, name, args...)
				}
				_, err := target.Commit(t.Context(), target.PlanChanges(target.Applied().From(changes(now, next))))
				target.run = real
				if flushing != nil {
					if err := flushing.Wait(); err != nil {
						t.Fatal(err)
					}
					flushing = nil
				}
				if restores < 2 {
					t.Fatalf("%d runs, want the second one to be hit", restores)
				}
				if err == nil {
					have, readErr := target.Rulesets(t.Context())
					if readErr != nil {
						t.Fatal(readErr)
					}
					if !target.Difference(have, lower(next)).Empty() {
						target.monitor.Own(func() bool { return true }) // checks immediately
						if !reported(drift, true) {
							t.Error("the rules are not as wanted, and neither is the commit an error nor is a change reported")
						}
					}
				}
				if _, _, err := apply.Once(t.Context(), target, next, func(apply.Plan) bool { return true }); err != nil {
					t.Fatal(err)
				}
				holds(t, target, lower(next))
			})
		})
	}
}

// A lock that another program holds, or that cannot be created, is an error of the commit, which
// changes nothing. The next commit succeeds.
func TestLockFaults(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		if v != Legacy {
			return
		}
		path := os.Getenv("XTABLES_LOCKFILE")
		target := open(t, apply.Options{IPTables: string(v), LockTimeout: time.Second}, 0)
		now := lower(programs(3))
		put(t, target, now)
		fail := func(what string) {
			t.Helper()
			have, err := target.Rulesets(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := target.Commit(t.Context(), target.Difference(have, lower(programs(4)))); err == nil {
				t.Errorf("%s: no error", what)
			} else if t.Log(err); !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v: names no file", what, err)
			}
			holds(t, target, now)
		}
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		fail("held")
		unix.Close(fd)
		os.Remove(path)
		if err := os.Symlink("/proc/nowhere/lock", path); err != nil {
			t.Fatal(err)
		}
		fail("not to be made")
		os.Remove(path)
		put(t, target, lower(programs(4)))
	})
}
