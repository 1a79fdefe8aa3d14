package iptables

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// failures are ways in which a tool fails without evidence about the kernel.
var failures = map[string]string{"killed": "kill -9 $$", "without memory": "echo 'Cannot allocate memory' >&2; exit 4",
	"without a socket": "echo 'iptables-save v1.8.9 (legacy): Cannot initialize: No buffer space available' >&2; exit 1"}

// failOnce makes the next run of a tool fail. The returned function fails the test if there was
// none.
func failOnce(t *testing.T, name, how string) (struck func()) {
	t.Helper()
	tool, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	once := filepath.Join(dir, "once")
	script := fmt.Sprintf("#!/bin/sh\nif rm %s 2>/dev/null; then %s; fi\nexec %s \"$@\"\n", once, how, tool)
	if err := os.WriteFile(once, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() {
		t.Helper()
		if _, err := os.Stat(once); err == nil {
			t.Fatalf("%s did not run", name)
		}
	}
}

// asking returns the tool that checks whether a chain exists.
func asking(f ir.Family, v Variant) string {
	if v == Legacy {
		return tool(f, v, "save")
	}
	return rules.Tool(f) + "-" + string(v)
}

// A tool that fails once in Open is an error. Its family would otherwise be omitted permanently.
func TestOpenWhileAToolFails(t *testing.T) {
	for what, how := range failures {
		for _, f := range ir.Families() {
			t.Run(what+" "+f.String(), func(t *testing.T) {
				inNamespace(t, func(t *testing.T, v Variant) {
					struck := failOnce(t, asking(f, v), how)
					target, err := Open(t.Context(), apply.Options{IPTables: string(v)})
					struck()
					if err == nil {
						t.Errorf("no error, and families %v", target.Families())
					}
				})
			})
		}
	}
}

// Tools that fail in a commit for a while exclude no Service: its rules would be removed.
func TestCommitWhileToolsFail(t *testing.T) {
	for _, tt := range []struct {
		say      string
		failures int
	}{
		{"line 3: RULE_APPEND failed (Cannot allocate memory): rule in chain X", 3},
		{"iptables-nft-restore: line 3 failed: Memory allocation problem.", 3},
		{"iptables-restore: line 9 failed", 2}, // without a reason, as the legacy tools fail beside another writer
		{"iptables-restore: line 9 failed", 1000},
	} {
		t.Run(fmt.Sprint(tt.failures, " ", tt.say), func(t *testing.T) {
			inNamespace(t, func(t *testing.T, v Variant) {
				now, next := programs(1), programs(1)
				next.IPv4.Services[0].Pools[0].Backends = next.IPv4.Services[0].Pools[0].Backends[:1]
				target, _ := drifting(t, v, now)
				left, works := tt.failures, target.run
				target.run = func(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
					if strings.HasSuffix(name, "restore") && left > 0 {
						left--
						return run.To(ctx, in, out, "sh", "-c", "cat >/dev/null; echo '"+tt.say+"' >&2; exit 4")
					}
					return works(ctx, in, out, name, args...)
				}
				result, err := target.Commit(t.Context(), target.PlanChanges(target.Applied().From(changes(now, next))))
				if err == nil || len(result.Refused) > 0 {
					t.Errorf("error %v, refused %v, want only an error", err, result.Refused)
				}
				if err := target.Read(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				if plan := target.Plan(now); !plan.Empty() {
					t.Error("the rules changed")
				}
			})
		})
	}
}

// A tool that fails once in Leftovers is an error. They would otherwise remain permanently.
func TestLeftoversWhileAToolFails(t *testing.T) {
	for what, how := range failures {
		for _, f := range ir.Families() {
			t.Run(what+" "+f.String(), func(t *testing.T) {
				inNamespace(t, func(t *testing.T, v Variant) {
					put(t, open(t, apply.Options{IPTables: string(v)}, 0), lower(programs(2)))
					struck := failOnce(t, asking(f, v), how)
					left, err := Leftovers(t.Context(), nil, false)
					struck()
					if err == nil {
						t.Errorf("no error, and %d leftovers", len(left))
					}
				})
			})
		}
	}
}

// A tool that fails once while the variant is detected is an error. The rules would otherwise go
// into the other variant.
func TestVariantWhileAToolFails(t *testing.T) {
	applytest.RequireRoot(t)
	for what, how := range failures {
		t.Run(what, func(t *testing.T) {
			applytest.InNamespace(t, func() {
				shell(t, "", "iptables-nft", "-t", "mangle", "-N", rules.KubeletChains()[0])
				shell(t, "", "iptables-legacy", "-t", "nat", "-N", rules.ChainServices)
				struck := failOnce(t, asking(ir.IPv4, NFT), how)
				target, err := Open(t.Context(), apply.Options{})
				struck()
				if err == nil {
					t.Errorf("no error, and variant %s", target.Variant)
				}
			})
		})
	}
}
