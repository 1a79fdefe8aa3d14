package applytest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// nftRules are handwritten rules for 10.96.0.10:80 → pod1a and pod2a, masqueraded for other sources
// than pods, and for 10.96.0.11, which rejects. Port 81 of 10.96.0.10 has session affinity.
const nftRules = `
add table ip byhand
delete table ip byhand
table ip byhand {
	map sticky { type ipv4_addr : ipv4_addr; flags dynamic; size 100; }
	chain service {
		ip daddr 10.96.0.10 ip saddr != 10.244.0.0/16 meta mark set 1
		ip daddr 10.96.0.10 meta l4proto { tcp, udp, sctp } th dport 80 dnat to numgen random mod 2 map { 0 : ENDPOINT0, 1 : ENDPOINT1 } : 8080
		ip daddr 10.96.0.10 tcp dport 81 goto affinity
	}
	chain affinity {
		meta l4proto tcp ip saddr @sticky dnat to ip saddr map @sticky : 8080
		meta l4proto tcp numgen random mod 2 0 update @sticky { ip saddr : 10.244.1.10 } dnat to 10.244.1.10:8080
		meta l4proto tcp update @sticky { ip saddr : 10.244.2.10 } dnat to 10.244.2.10:8080
	}
	chain refuse { ip daddr 10.96.0.11 reject with icmp port-unreachable; }
	chain pre { type nat hook prerouting priority dstnat; jump service; }
	chain out { type nat hook output priority -100; jump service; }
	chain post { type nat hook postrouting priority srcnat; meta mark 1 masquerade; }
	chain forward { type filter hook forward priority 0; jump refuse; }
	chain local { type filter hook output priority 0; jump refuse; }
}
`

// handCase changes its endpoints through a config field that only this test's Apply uses.
const handCase = `
name: by-hand
objects: [{kind: Service, metadata: {name: a}}]
flows:
- {from: pod1a, to: "10.96.0.10:80"}
- {from: ext, to: "10.96.0.10:80/udp"}
- {from: ext.201, to: "10.96.0.10:80/sctp"}
- {from: pod2b, to: "10.96.0.10:80"}
- {from: node1, to: "10.96.0.10:80"}
- {from: ext, to: "10.96.0.11:80"}
- {from: pod1b, to: "10.96.0.11:80/udp"}
- {from: node1, to: "10.96.0.11:80/sctp"}
- {from: node1, to: "10.96.0.11:80/udp"}
- {from: node1, to: "10.96.0.11:80"}
- {from: ext, to: "10.96.0.12:80"}
- {from: ext, to: "10.96.0.10:81", affinity: true, tries: 10, name: first}
- {from: ext, to: "10.96.0.10:81", affinity: true, tries: 10, same_as: first}
- {from: pod1b, to: "10.96.0.10:80", affinity: true}
- {from: pod1b, to: "10.96.0.10:80", any: true}
- {from: pod1b, to: "10.96.0.10:80", open: c1, any: true}
- {from: pod1b, to: "10.96.0.10:80/udp", sport: 40001, tries: 3, any: true}
steps:
- delete: [Service/a]
  flows:
  - {again: c1}
  - {from: pod1c, to: "10.96.0.10:80"}
`

// TestRunner runs a case against known rules, to test the Runner.
func TestRunner(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	c, err := ParseCase([]byte(handCase), IPv4)
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{Mode: "nftables", Apply: func(ctx context.Context, node *Namespace, _, snapshotFile, _ string) error {
		snapshot, err := os.ReadFile(snapshotFile)
		if err != nil {
			return err
		}
		second := "10.244.2.10"
		if !strings.Contains(string(snapshot), "kind: Service\n") {
			second = "10.244.1.10"
		}
		cmd := node.Command(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(strings.NewReplacer("ENDPOINT0", "10.244.1.10", "ENDPOINT1", second).Replace(nftRules))
		_, err = node.Run(cmd)
		return err
	}}
	results, err := r.Run(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	both := func(source1, source2 string) Outcome {
		return Outcome{"reached": map[string][]string{"pod1a:8080": {source1}, "pod2a:8080": {source2}}}
	}
	want := []Outcome{
		{"reached": map[string][]string{"pod2a:8080": {"pod1a"}}, "failed": []string{TimedOut}}, // no hairpin masquerade
		both("node1.cni0", "node1"),
		both("node1.cni0", "node1"),
		{"reached": map[string][]string{"pod1a:8080": {"pod2b"}}, "failed": []string{TimedOut}}, // the reply takes the direct path
		both("node1.cni0", "node1"),
		{"failed": []string{Refused}},
		{"failed": []string{Refused}},
		{"failed": []string{Refused}},
		{"failed": []string{Refused}},
		{"failed": []string{Refused}},
		{"failed": []string{TimedOut}},
		{"one endpoint": true},
		{"one endpoint": true, "same as first": true},
		{"one endpoint": false},
		{"reached": true},
		{"reached": true},
		{"reached": true},
		{"alive": true},
		{"reached": map[string][]string{"pod1a:8080": {"pod1c"}}},
	}
	for i, res := range results {
		if diff := cmp.Diff(want[i], res.Outcome); diff != "" {
			t.Errorf("%s (-want +got):\n%s", res.Key, diff)
		}
	}
	if len(results) != len(want) {
		t.Errorf("%d results, want %d", len(results), len(want))
	}
}

// TestRunnerApplyFails checks that a failed apply ends the case with its error.
func TestRunnerApplyFails(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	broken := errors.New("broken")
	r := &Runner{Mode: "nftables", Apply: func(context.Context, *Namespace, string, string, string) error { return broken }}
	if _, err := r.Run(context.Background(), &Case{Name: "x", Flows: []Flow{{From: "ext", To: "10.96.0.1:80"}}}); !errors.Is(err, broken) {
		t.Errorf("Run = %v, want %v", err, broken)
	}
	if _, err := r.Run(context.Background(), &Case{Daemon: true}); !errors.Is(err, ErrNeedsDaemon) {
		t.Errorf("Run of a daemon case = %v, want %v", err, ErrNeedsDaemon)
	}
}

// TestStartedCommandIsKilledWithItsContext checks that a running command is killed when its context
// ends, and that its end is reported.
func TestStartedCommandIsKilledWithItsContext(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	ns, err := NewNamespace("commands")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ctx, cancel := context.WithCancel(context.Background())
	wait, err := ns.Start(ns.Command(ctx, "tail", "-f", "/dev/null"))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	cancel()
	if err := wait(); err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("ended with %v after %s", err, time.Since(start))
	}
	if _, err := ns.Run(ns.Command(context.Background(), "sh", "-c", "echo reason >&2; exit 3")); err == nil || !strings.Contains(err.Error(), "reason") {
		t.Errorf("error of a failing command: %v; want its output in it", err)
	}
}
