package applytest

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/proxyc/proxyc/ir"
	"sigs.k8s.io/yaml"
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

const sampleCase = `
name: sample
families: [ipv4, ipv6]
shows: much
modes: [nftables]
config: {clusterCIDR: 10.244.1.0/24, nftables: {masqueradeAll: true}}
mode_config: {nftables: {detectLocal: {bridgeInterface: cni0}}}
objects:
- {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.10, ipFamilies: [IPv4]}}
flows:
- {from: pod1a, to: "10.96.0.10:80/udp", sport: 40001}
- {from: ext, http: "192.0.2.11:31000/healthz"}
steps:
- delete: [Service/web]
  pause: 1.5
  flows:
  - {again: c1}
  - {from: pod1b, to: "10.96.0.10:80", name: first}
`

func TestParseCase(t *testing.T) {
	c, err := ParseCase([]byte(sampleCase), IPv6)
	if err != nil {
		t.Fatal(err)
	}
	want := &Case{
		Name: "sample", Shows: "much", Families: []string{IPv4, IPv6}, Modes: []string{"nftables"},
		Config:     Object{"clusterCIDR": "fd00:10:244:1::/64", "nftables": map[string]any{"masqueradeAll": true}},
		ModeConfig: map[string]Object{"nftables": {"detectLocal": map[string]any{"bridgeInterface": "cni0"}}},
		Objects: []Object{{
			"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "web"},
			"spec": map[string]any{"clusterIP": "fd00:10:96::10", "ipFamilies": []any{"IPv6"}},
		}},
		Flows: []Flow{
			{From: "pod1a", To: "fd00:10:96::10:80/udp", Sport: 40001},
			{From: "ext", HTTP: "2001:db8:0:1::11:31000/healthz"},
		},
		Steps: []Step{{Delete: []string{"Service/web"}, Pause: 1.5, Flows: []Flow{
			{Again: "c1"},
			{From: "pod1b", To: "fd00:10:96::10:80", Name: "first"},
		}}},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("case (-want +got):\n%s", diff)
	}
	var keys []string
	for i, s := range c.Stages() {
		for j, f := range s.Flows {
			keys = append(keys, f.Key(i+1, j+1))
		}
	}
	wantKeys := []string{
		"1.1 pod1a -> fd00:10:96::10:80/udp", "1.2 ext http 2001:db8:0:1::11:31000/healthz",
		"2.1 connection c1 again", "2.2 pod1b -> fd00:10:96::10:80/tcp (first)",
	}
	if diff := cmp.Diff(wantKeys, keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	to, proto, err := c.Flows[0].Target()
	if err != nil || proto != "udp" || to.String() != "[fd00:10:96::10]:80" {
		t.Errorf("Target = %s, %q, %v; want [fd00:10:96::10]:80, udp", to, proto, err)
	}
	if _, err := ParseCase([]byte("name: x\nflow: []\n"), IPv4); err == nil {
		t.Error("an unknown field was accepted")
	}
}

func TestConfigFile(t *testing.T) {
	c, err := ParseCase([]byte(sampleCase), IPv4)
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.ConfigFile("nftables")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Mode, ClusterCIDR string
		Nftables          Object
		DetectLocal       Object
	}
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := got
	want.Mode, want.ClusterCIDR = "nftables", "10.244.1.0/24"
	want.Nftables = Object{"masqueradeAll": true, "minSyncPeriod": "10ms", "syncPeriod": "30s"}
	want.DetectLocal = Object{"bridgeInterface": "cni0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

func TestStore(t *testing.T) {
	s, err := NewStore()
	if err != nil {
		t.Fatal(err)
	}
	web := func(ip string) Object {
		return Object{"kind": "Service", "metadata": map[string]any{"name": "web"}, "ip": ip}
	}
	slice := Object{"kind": "EndpointSlice", "metadata": map[string]any{"name": "a", "namespace": "other"}}
	steps := []Step{
		{Apply: []Object{web("1"), slice}},
		{Apply: []Object{web("2")}},
		{Delete: []string{"EndpointSlice/other/a", "Node/node2"}},
	}
	for _, step := range steps {
		if err := s.Step(step); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Step(Step{Delete: []string{"Service/gone"}}); err == nil {
		t.Error("deleting a missing object is no error")
	}
	text, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Items []struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
			IP       string
		}
	}
	if err := yaml.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list.Items {
		got = append(got, i.Kind+" "+i.Metadata.Namespace+"/"+i.Metadata.Name+" "+i.IP)
	}
	want := []string{"Node /node1 ", "ServiceCIDR /kubernetes ", "Service default/web 2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
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
