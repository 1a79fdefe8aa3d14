package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// toolChecks are the commands by which the real tools judge a file, in the
// order in which the files depend on each other: iptables rules name ipsets.
// They run in a network namespace of their own.
var toolChecks = []struct {
	file     string
	commands []string
}{
	{"nftables.nft", []string{"nft -c -f nftables.nft"}},
	{"ipset.rules", []string{"ipset restore -file ipset.rules"}},
	{"iptables.rules", []string{
		"iptables-nft-restore --test --noflush iptables.rules",
		"iptables-legacy-restore --test --noflush iptables.rules",
	}},
	{"ip6tables.rules", []string{
		"ip6tables-nft-restore --test --noflush ip6tables.rules",
		"ip6tables-legacy-restore --test --noflush ip6tables.rules",
	}},
}

// checkWithTools fails the test for outputs that the real tools reject. Without
// root they cannot be asked, and then nothing can be recorded.
func checkWithTools(t *testing.T, mode ir.Mode, outputs []render.Output) {
	t.Helper()
	if err := applytest.HaveRoot(t); err != nil {
		if *update {
			t.Fatalf("-update needs root, to ask the real tools: %v", err)
		}
		return
	}
	dir := t.TempDir()
	files := map[string]bool{}
	for _, o := range outputs {
		files[o.File] = true
		must(t, os.WriteFile(filepath.Join(dir, o.File), []byte(outputText(t, o)), 0o644))
	}
	var script []string
	for _, check := range toolChecks {
		if files[check.file] {
			script = append(script, check.commands...)
		}
	}
	if len(script) == 0 {
		return
	}
	cmd := exec.Command("sh", "-ec", strings.Join(script, "\n"))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("mode %s: the tools reject the rules: %v\n%s", mode, err, bytes.TrimSpace(out))
	}
}
