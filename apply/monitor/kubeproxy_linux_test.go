package monitor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// The digest changes only with kube-proxy's rules.
func TestKubeProxyDigest(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	var last [2]uint64
	for _, step := range []struct {
		nft    string
		differ [2]bool // without and with the chains of iptables-nft
	}{
		{"table ip proxyc { chain services { }; }", [2]bool{false, false}},
		{"table ip kube-proxy { chain services { }; }", [2]bool{true, true}},
		{"table ip6 kube-proxy { chain services { }; }", [2]bool{true, true}},
		{"add rule ip kube-proxy services counter", [2]bool{true, true}},
		{"add rule ip proxyc services counter", [2]bool{false, false}},
		{"table ip nat { chain KUBE-SERVICES { }; chain CNI { }; }", [2]bool{false, true}},
		{"add rule ip nat CNI counter", [2]bool{false, false}},
		{"add rule ip nat KUBE-SERVICES counter", [2]bool{false, true}},
		{"flush chain ip kube-proxy services; add rule ip kube-proxy services accept", [2]bool{false, false}}, // the number of rules is unchanged
		{"add chain ip kube-proxy endpoint", [2]bool{true, true}},
		{"delete table ip kube-proxy", [2]bool{true, true}},
	} {
		cmd := ns.Command(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(step.nft + "\n")
		if out, err := ns.Run(cmd); err != nil {
			t.Fatalf("%s: %v\n%s", step.nft, err, out)
		}
		var is [2]uint64
		if err := ns.Do(func() error {
			is = [2]uint64{KubeProxyDigest(false), KubeProxyDigest(true)}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		differ := [2]bool{is[0] != last[0], is[1] != last[1]}
		if last != [2]uint64{} && differ != step.differ {
			t.Errorf("%s: differ %v, want %v", step.nft, differ, step.differ)
		}
		last = is
	}
}

// A process is kube-proxy by its name and network namespace.
func TestKubeProxyProcess(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	process := func() (is string) {
		if err := ns.Do(func() error { is = KubeProxyProcess(); return nil }); err != nil {
			t.Fatal(err)
		}
		return is
	}
	if is := process(); is != "" {
		t.Errorf("in an empty namespace: %s", is)
	}
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.WriteFile(name, sleep, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := ns.Command(context.Background(), name, "3600")
	wait, err := ns.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	is := ""
	for end := time.Now().Add(applytest.ScaledTimeout(10 * time.Second)); is == "" && time.Now().Before(end); { // until exec has run
		is = process()
	}
	cmd.Process.Kill()
	wait()
	if is == "" {
		t.Error("the process is not seen")
	}
	if is := process(); is != "" {
		t.Errorf("after its end: %s", is)
	}
}
