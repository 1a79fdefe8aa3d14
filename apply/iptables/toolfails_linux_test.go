package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
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

// A tool that fails once in Leftovers is an error. They would otherwise remain permanently.
func TestLeftoversWhileAToolFails(t *testing.T) {
	for what, how := range failures {
		for _, f := range ir.Families() {
			t.Run(what+" "+f.String(), func(t *testing.T) {
				inNamespace(t, func(t *testing.T, v Variant) {
					put(t, open(t, apply.Options{IPTables: string(v)}, 0), lower(programs(2)))
					struck := failOnce(t, asking(f, v), how)
					left, err := Leftovers(t.Context(), nil)
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
