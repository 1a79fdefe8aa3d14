package iptables

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
)

// drifting opens a Dataplane that monitors foreign changes, with applied Programs.
func drifting(t *testing.T, v Variant, want ir.Programs) (*Dataplane, <-chan struct{}) {
	t.Helper()
	target := open(t, apply.Options{IPTables: string(v)}, 0)
	drift, err := target.Drift(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { target.Close() })
	if _, _, err := apply.Once(t.Context(), target, want, func(apply.Plan) bool { return true }); err != nil {
		t.Fatal(err)
	}
	return target, drift
}

// reported reports whether a foreign change is reported within a time, which is short if none is
// expected.
func reported(drift <-chan struct{}, want bool) bool {
	wait := applytest.ScaledTimeout(500 * time.Millisecond)
	if want {
		wait = applytest.ScaledTimeout(20 * time.Second)
	}
	select {
	case <-drift:
		return true
	case <-time.After(wait):
		return false
	}
}

// Foreign changes during a run of our tool are reported, although they use the same tool. Our own
// are not.
func TestForeignChangesDuringOwn(t *testing.T) {
	empty := func(chain string) string { return "*nat\n:" + chain + " - [0:0]\nCOMMIT\n" }
	for _, when := range []string{"never", "before", "after"} {
		t.Run(when, func(t *testing.T) {
			inNamespace(t, func(t *testing.T, v Variant) {
				now, next := programs(20), programs(21)
				target, drift := drifting(t, v, now)
				if reported(drift, false) {
					t.Fatal("our first work is reported as foreign")
				}
				chain := ""
				for _, c := range lower(now).IPv4.Nat.Chains {
					if strings.HasPrefix(c.Name, "KUBE-SVC-") {
						chain = c.Name // of a Service that does not change
						break
					}
				}
				var waiting *exec.Cmd // the foreign tool waits for the lock
				target.run = func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
					if name != tool(ir.IPv4, v, "restore") {
						return run.To(ctx, stdin, stdout, name, args...)
					}
					others := func() {
						cmd := exec.Command(name, "--noflush", "--wait=60") // in our network namespace
						cmd.Stdin = strings.NewReader(empty(chain))
						if v == NFT {
							cmd.Args = cmd.Args[:2]
						}
						if err := cmd.Start(); err != nil {
							t.Error(err)
						}
						if waiting = cmd; v == NFT {
							waiting = nil
							if err := cmd.Wait(); err != nil {
								t.Error(err)
							}
						}
					}
					if when == "before" {
						others()
					}
					err := run.To(ctx, stdin, stdout, name, args...)
					if when == "after" {
						others()
					}
					return err
				}
				result, err := target.Commit(t.Context(), target.PlanChanges(target.Applied().From(changes(now, next))))
				if err != nil || len(result.Refused) > 0 {
					t.Fatal(err, result.Refused)
				}
				if waiting != nil {
					if err := waiting.Wait(); err != nil {
						t.Error(err)
					}
				}
				foreign := when != "never"
				if v == Legacy && foreign {
					target.look(t)
				}
				if got := reported(drift, foreign); got != foreign {
					t.Fatalf("reported %t, want %t", got, foreign)
				}
				plan, err := applytest.Compare(t.Context(), target)
				if err != nil {
					t.Fatal(err)
				}
				if plan.Empty() == foreign {
					t.Errorf("%s is emptied: the comparison finds %v", chain, opsOf(plan.(*Plan)))
				}
			})
		})
	}
}

// look waits for a complete check of the tables.
func (d *Dataplane) look(t *testing.T) {
	t.Helper()
	d.monitor.Own(func() bool { return true })
}

// While we run a legacy tool, no other program has the lock; afterwards it is free.
func TestLegacyLockIsHeld(t *testing.T) {
	applytest.RequireRoot(t)
	t.Setenv("XTABLES_LOCKFILE", t.TempDir()+"/lock")
	applytest.InNamespace(t, func() {
		target := open(t, apply.Options{IPTables: string(Legacy)}, 0)
		free := func() error {
			fd, err := unix.Open(lockFile(), unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		}
		target.run = func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
			if err := free(); strings.HasSuffix(name, "restore") && !errors.Is(err, unix.EWOULDBLOCK) {
				t.Errorf("%s: the lock can be taken: %v", name, err)
			}
			return run.To(ctx, stdin, stdout, name, args...)
		}
		put(t, target, lower(programs(1)))
		if err := free(); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// Older legacy tools acquire the lock themselves. Everything is then compared after our own
// changes.
func TestOlderLegacyTools(t *testing.T) {
	applytest.RequireRoot(t)
	t.Setenv("XTABLES_LOCKFILE", t.TempDir()+"/lock")
	applytest.InNamespace(t, func() {
		target, drift := drifting(t, Legacy, programs(1))
		target.version = version{1, 8, 5}
		if _, err := target.Commit(t.Context(), target.PlanChanges(target.Applied().From(changes(programs(1), programs(2))))); err != nil {
			t.Fatal(err)
		}
		if !reported(drift, true) {
			t.Error("nothing is reported")
		}
	})
}

// A foreign rule in a built-in chain is reported if it jumps to one of our chains: packets would
// pass that chain twice, or too early.
func TestForeignJumpIsReported(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target, drift := drifting(t, v, programs(2))
		reported(drift, false)
		tool := target.tool(ir.IPv4)
		if v == NFT { // the legacy variant reports every change
			shell(t, "", tool, "-t", "nat", "-I", "POSTROUTING", "-j", "ACCEPT")
			if reported(drift, false) {
				t.Error("a rule that has nothing to do with ours is reported")
			}
		}
		shell(t, "", tool, "-w", "5", "-t", "nat", "-I", "POSTROUTING", "-j", "KUBE-MARK-MASQ")
		if !reported(drift, true) {
			t.Error("not reported")
		}
	})
}
