package iptables

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// losing makes the first runs of iptables-save omit the lines that match, and exit with 0.
func losing(d *Dataplane, lines string, runs int) {
	works, omitted := d.run, regexp.MustCompile("(?m)^(?:"+lines+").*\n")
	d.run = func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
		if !strings.HasSuffix(name, "-save") || runs == 0 {
			return works(ctx, in, out, name, args...)
		}
		var saved bytes.Buffer
		err := works(ctx, in, &saved, name, args...)
		if kept := omitted.ReplaceAll(saved.Bytes(), nil); len(kept) < saved.Len() {
			runs--
			out.Write(kept)
		} else {
			out.Write(saved.Bytes())
		}
		return err
	}
}

// iptables-nft-save exits with 0 although one of its requests to the kernel failed. What it omits is
// not missing in the kernel.
func TestPartialSave(t *testing.T) {
	applytest.RequireRoot(t)
	for _, lines := range []string{"-A PREROUTING", "-A KUBE-SERVICES", ":KUBE-NODEPORTS", ":KUBE|-A", "-A", "[*:]nat|[:-].*|COMMIT"} {
		t.Run(lines, func(t *testing.T) {
			applytest.InNamespace(t, func() {
				want := programs(3)
				target, _ := drifting(t, NFT, want)
				losing(target, lines, 1)
				if err := target.Read(t.Context(), want); err != nil {
					t.Fatal(err)
				}
				if plan := target.Plan(want); !plan.Empty() {
					t.Error("what iptables-save omitted is added again")
				}
				losing(target, lines, 1000)
				if err := target.Read(t.Context(), want); err == nil || !strings.Contains(err.Error(), "of the kernel's") {
					t.Errorf("always partial: %v", err)
				}
			})
		})
	}
}

// The real tool, whose requests fail one after the other.
func TestSaveWithoutMemory(t *testing.T) {
	applytest.RequireRoot(t)
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip(err)
	}
	applytest.InNamespace(t, func() {
		want := programs(2)
		target, _ := drifting(t, NFT, want)
		works := target.run
		for n := 1; n <= 12; n++ {
			faults := 1
			target.run = func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
				if faults == 0 || !strings.HasSuffix(name, "-save") {
					return works(ctx, in, out, name, args...)
				}
				faults--
				return works(ctx, in, out, "strace", append([]string{"-qq", "-o", "/dev/null", "-e", "trace=sendto",
					"-e", fmt.Sprintf("inject=sendto:error=ENOMEM:when=%d", n), name}, args...)...)
			}
			if err := target.Read(t.Context(), want); err == nil && !target.Plan(want).Empty() {
				t.Errorf("request %d fails, and what iptables-save omitted is added again", n)
			}
		}
	})
}

// A tool that fails can print the text for a missing chain.
func TestChainExistsWhileAToolFails(t *testing.T) {
	applytest.RequireRoot(t)
	applytest.InNamespace(t, func() {
		target, _ := drifting(t, NFT, programs(1))
		works := target.run
		target.run = func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
			return run.To(ctx, in, out, "sh", "-c", "echo \"chain 'X' in table 'nat' is incompatible, use 'nft' tool.\" >&2; exit 1")
		}
		defer func() { target.run = works }()
		for chain, want := range map[string]bool{rules.ChainServices: true, "KUBE-OTHER": false} {
			if got, err := target.exists(t.Context(), ir.IPv4, "nat", chain); got != want || err != nil {
				t.Errorf("%s exists: %t, %v", chain, got, err)
			}
		}
	})
}

// A tool that exits with 0 without effect is an error.
func TestRestoreWithoutEffect(t *testing.T) {
	applytest.RequireRoot(t)
	applytest.InNamespace(t, func() {
		now, next := programs(1), programs(2)
		target, _ := drifting(t, NFT, now)
		works := target.run
		target.run = func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
			if strings.HasSuffix(name, "-restore") {
				_, err := io.Copy(io.Discard, in)
				return err
			}
			return works(ctx, in, out, name, args...)
		}
		var plan apply.Plan = target.PlanChanges(target.Applied().From(changes(now, next)))
		if _, err := target.Commit(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "changed nothing") {
			t.Errorf("committed: %v", err)
		}
	})
}
