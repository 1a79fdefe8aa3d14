package applytest

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/proxyc/proxyc/ir"
)

func TestTwin(t *testing.T) {
	tests := []struct{ in, want string }{
		{"10.244.1.10", "fd00:10:244:1::10"},
		{"10.244.2.105:8080", "fd00:10:244:2::105:8080"},
		{"10.96.0.10:80/udp", "fd00:10:96::10:80/udp"},
		{"203.0.113.10", "2001:db8:203::10"},
		{"198.18.0.5", "2001:db8:198::5"},
		{"192.0.2.11", "2001:db8:0:1::11"},
		{"198.51.100.11:30080", "2001:db8:0:2::11:30080"},
		{"127.0.0.1:30080", "::1:30080"},
		{"192.0.2.0/24", "2001:db8:0:1::/64"},
		{"192.0.2.200/32", "2001:db8:0:1::200/128"},
		{"10.244.0.0/16", "fd00:10:244::/48"},
		{"10.96.0.0/16", "fd00:10:96::/112"},
		{"0.0.0.0/0", "::/0"},
		{"IPv4", "IPv6"},
		{"8.8.8.8", "8.8.8.8"},
		{"web", "web"},
		{"1.1 ext -> 192.0.2.11:30080/tcp", "1.1 ext -> 2001:db8:0:1::11:30080/tcp"},
	}
	for _, tt := range tests {
		if got := Twin(tt.in); got != tt.want {
			t.Errorf("Twin(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestCompare(t *testing.T) {
	const recorded = `{"mode": "nftables", "results": {"ipv6": {"a": {
		"1.1 x": {"reached": {"pod1a:80": ["ext"]}},
		"1.2 x": {"reached": {"pod1a:80": ["ext"]}, "failed": ["timeout"]},
		"1.3 x": {"status": 200},
		"1.4 x": {"failed": ["timeout"]},
		"1.5 ext -> fd00:10:96::10:80/tcp": {"failed": ["timeout"]},
		"1.7 x": {"failed": ["timeout"]}}}}}`
	r := &Records{}
	if err := json.Unmarshal([]byte(recorded), r); err != nil {
		t.Fatal(err)
	}
	refused := Outcome{"failed": []any{"refused"}}
	exceptions := []Exception{
		{Case: "a", Flow: "1.5 ext -> 10.96.0.10:80/tcp", Families: []string{IPv6}, Want: refused},
		{Case: "a", Flow: "1.4 x", Modes: []string{"iptables"}, Want: refused},
	}
	reached := func(source string) map[string][]string { return map[string][]string{"pod1a:80": {source}} }
	results := []Result{
		{Key: "1.1 x", Outcome: Outcome{"reached": reached("ext")}},
		{Key: "1.2 x", Outcome: Outcome{"reached": reached("ext")}},
		{Key: "1.3 x", Outcome: Outcome{"status": 200}},
		{Key: "1.4 x", Outcome: Outcome{"failed": []string{"timeout"}}},
		{Key: "1.5 ext -> fd00:10:96::10:80/tcp", Outcome: Outcome{"failed": []string{"refused"}}},
		{Key: "1.6 unknown", Outcome: Outcome{"status": 200}},
		{Key: "1.7 x", Flow: Flow{Unstable: true}, Outcome: Outcome{"reached": reached("ext")}},
		{Key: "1.1 x", Flow: Flow{Any: true}, Outcome: Outcome{"reached": true}},
		{Key: "1.4 x", Flow: Flow{Any: true}, Outcome: Outcome{"reached": true}},
	}
	var got []string
	for _, d := range r.Compare("nftables", IPv6, &Case{Name: "a"}, results, exceptions) {
		got = append(got, d.Flow)
	}
	if diff := cmp.Diff([]string{"1.2 x", "1.6 unknown", "1.4 x"}, got); diff != "" {
		t.Errorf("differing flows (-want +got):\n%s", diff)
	}
}

// Each difference of userspace from iptables is either documented, or a capability that only one of
// the two has.
func TestDifferencesAreCapabilities(t *testing.T) {
	list, err := LoadModeExceptions(os.DirFS("../../testdata/conformance"), "userspace")
	if err != nil {
		t.Fatal(err)
	}
	differ := strings.Split((ir.ModeUserspace.Capabilities() ^ ir.ModeIPTables.Capabilities()).String(), "|")
	for _, e := range list {
		if e.Why == "" || e.Want == nil || !slices.Equal(e.Modes, []string{"userspace"}) || e.Differs != "" && !slices.Contains(differ, e.Differs) {
			t.Errorf("%s %s: %+v: differs must be one of %v, or empty", e.Case, e.Flow, e, differ)
		}
	}
}
