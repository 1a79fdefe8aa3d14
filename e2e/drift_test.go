package e2e

import (
	"testing"
	"time"
)

// flushes are what other programs do to the rules, by plane.
var flushes = map[string][]string{
	"nftables": {
		"nft flush ruleset",
		"nft delete table ip proxyc",
		"nft delete table ip6 proxyc",
		"nft flush table ip proxyc",
	},
	"iptables-nft": {
		"nft flush ruleset",
		"iptables-nft -t nat -F",
		"iptables-nft -t filter -F",
		"iptables-nft -t nat -D PREROUTING 1",
		"ip6tables-nft -t nat -F",
	},
	"iptables-legacy": {
		"iptables-legacy -t nat -F",
		"iptables-legacy -t filter -F",
		"iptables-legacy -t nat -D PREROUTING 1",
		"ip6tables-legacy -t nat -F",
		// As many rules of the same sizes, which lead elsewhere:
		"iptables-legacy-save -t nat | sed s/10.244.1.10:8080/10.244.1.77:8080/ | iptables-legacy-restore",
	},
}

// TestFlushed: what another program takes away is back, within two seconds where
// the machine has them, and is counted. (Open connections are not asked: while no rule of a namespace
// translates addresses, the kernel does not translate theirs, either.)
func TestFlushed(t *testing.T) {
	for plane, commands := range flushes {
		t.Run(plane, func(t *testing.T) {
			s := newScene(t, plane)
			services := some(0, 20, "pod1a", "pod2a")
			s.set(services...)
			s.start()
			s.converges(10*time.Second, "start")
			for _, command := range commands {
				const counter = "proxyc_drift_repaired_total"
				before := s.metric(counter)
				if _, err := s.Run(s.Command(t.Context(), "sh", "-c", command)); err != nil {
					t.Fatal(err)
				}
				took := s.converges(time.Minute, command)
				repaired := s.metric(counter) - before
				t.Logf("%s: %v operations put back within %s", command, repaired, took.Round(10*time.Millisecond))
				if repaired < 1 {
					t.Errorf("%s: was not counted", command)
				}
				if a, err := s.topo.Try("pod1b", "tcp", 0, services[7].vip(), time.Second); err != nil {
					t.Errorf("%s: %s does not answer: %v %v", command, services[7].vip(), a, err)
				}
			}
		})
	}
}
