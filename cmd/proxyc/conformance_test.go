package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

const conformanceDir = "../../testdata/conformance"

// conformanceDifferences are flows in which proxyc is meant to differ from
// what was recorded of kube-proxy: "mode/family/case/flow" and the reason.
var conformanceDifferences = map[string]string{}

// conformanceCase is a file of testdata/conformance/cases; its README tells
// what the fields mean.
type conformanceCase struct {
	Name       string                    `json:"name"`
	Shows      string                    `json:"shows"`
	Families   []string                  `json:"families"`
	Modes      []ir.Mode                 `json:"modes"`
	Daemon     bool                      `json:"daemon"`
	Config     map[string]any            `json:"config"`
	ModeConfig map[string]map[string]any `json:"mode_config"`
	Objects    []map[string]any          `json:"objects"`
	Flows      []conformanceFlow         `json:"flows"`
	Steps      []struct {
		Delete []string          `json:"delete"`
		Apply  []map[string]any  `json:"apply"`
		Pause  float64           `json:"pause"`
		Flows  []conformanceFlow `json:"flows"`
	} `json:"steps"`
}

type conformanceFlow struct {
	From       string  `json:"from"`
	To         string  `json:"to"`
	Tries      int     `json:"tries"`
	Affinity   bool    `json:"affinity"`
	Name       string  `json:"name"`
	SameAs     string  `json:"same_as"`
	Interval   float64 `json:"interval"`
	SourcePort int     `json:"sport"`
	Open       string  `json:"open"`
	Any        bool    `json:"any"`
	Unstable   bool    `json:"unstable"`
	Again      string  `json:"again"`
	HTTP       string  `json:"http"`
	StatusOnly bool    `json:"status_only"`
}

// predictable reports whether the flow's outcome follows from the rules alone:
// not from connections made before (sport, again), nor from a server (http).
func (f *conformanceFlow) predictable() bool {
	return f.From != "" && f.To != "" && f.SourcePort == 0 && !f.Unstable
}

// find returns the flow's record. A twin's addresses have no brackets there.
func (f *conformanceFlow) find(record map[string]json.RawMessage, step, number int) (key string, raw json.RawMessage, ok bool) {
	key = f.key(step, number)
	if raw, ok = record[key]; !ok {
		key = strings.NewReplacer("[", "", "]", "").Replace(key)
		raw, ok = record[key]
	}
	return key, raw, ok
}

// key is the name of the flow in the record.
func (f *conformanceFlow) key(step, number int) string {
	to := f.To
	if !strings.Contains(to, "/") {
		to += "/tcp"
	}
	k := fmt.Sprintf("%d.%d %s -> %s", step, number, f.From, to)
	if f.Name != "" {
		k += " (" + f.Name + ")"
	}
	return k
}

// conformanceOutcome is the part of a recorded outcome that rules alone decide.
type conformanceOutcome struct {
	Reached     map[string][]string `json:"reached,omitempty"` // endpoint → sources that it saw
	Failed      []string            `json:"failed,omitempty"`
	OneEndpoint bool                `json:"one endpoint,omitempty"`
	Unstable    bool                `json:"unstable,omitempty"`
}

// TestConformance holds the simulator, and the rules of each mode, against
// what real kube-proxy did with real packets.
func TestConformance(t *testing.T) {
	flows := 0
	for _, mode := range []ir.Mode{ir.ModeIPTables, ir.ModeNFTables, ir.ModeIPVS} {
		record := readRecord(t, mode)
		for _, family := range []string{"ipv4", "ipv6"} {
			for name, outcomes := range record[family] {
				t.Run(fmt.Sprintf("%s/%s/%s", mode, family, name), func(t *testing.T) {
					c := readCase(t, name, family == "ipv6")
					if c.Daemon {
						return // health checks only
					}
					flows += c.replay(t, mode, family, outcomes)
				})
			}
		}
	}
	if flows == 0 && !t.Failed() {
		t.Error("no flow was compared")
	}
	t.Logf("%d flows compared", flows)
}

func readRecord(t *testing.T, mode ir.Mode) map[string]map[string]map[string]json.RawMessage {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(conformanceDir, "expected", string(mode)+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var record struct {
		Results map[string]map[string]map[string]json.RawMessage `json:"results"`
	}
	if err := json.Unmarshal(data, &record); err != nil {
		t.Fatal(err)
	}
	return record.Results
}

func readCase(t *testing.T, name string, twin bool) *conformanceCase {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(conformanceDir, "cases", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	if twin {
		tree = ipv6Twin(tree)
	}
	if data, err = json.Marshal(tree); err != nil {
		t.Fatal(err)
	}
	c := new(conformanceCase)
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// replay compiles the case step by step, and compares each flow. It returns
// how many it compared.
func (c *conformanceCase) replay(t *testing.T, mode ir.Mode, family string, want map[string]json.RawMessage) (compared int) {
	offline := &conformanceNode{mode: mode, files: memFiles{"config.json": c.config(t, mode)}}
	cfg := parseConfig(t, mode, offline.files["config.json"])
	cluster := newCluster(c.Objects)
	check := func(step int, flows []conformanceFlow) {
		data := cluster.encode(t)
		snap, diags := decode(data)
		if diags.HasErrors() {
			t.Fatalf("snapshot: %v", diags)
		}
		offline.files["cluster.json"] = data
		programs, _ := compile(t, cfg, snap, topologyFacts())
		for i := range flows {
			f := &flows[i]
			key, raw, ok := f.find(want, step, i+1)
			if !f.predictable() {
				continue
			}
			if !ok {
				t.Errorf("%s: not in the record", key)
				continue
			}
			var recorded conformanceOutcome
			if err := json.Unmarshal(raw, &recorded); err != nil {
				t.Fatal(err)
			}
			if _, meant := conformanceDifferences[strings.Join([]string{string(mode), family, c.Name, key}, "/")]; meant {
				continue
			}
			if recorded.Unstable {
				continue
			}
			compared++
			offline.compare(t, programs, f, key, recorded)
		}
	}
	check(1, c.Flows)
	for i, s := range c.Steps {
		cluster.delete(s.Delete)
		cluster.apply(s.Apply)
		check(i+2, s.Flows)
	}
	return compared
}

// conformanceNode is node1 as proxyc trace knows it offline: a configuration, a
// snapshot, and which addresses it has by which interface.
type conformanceNode struct {
	mode  ir.Mode
	files memFiles
}

// trace runs proxyc trace.
func (n *conformanceNode) trace(t *testing.T, from, to string) traceJSON {
	t.Helper()
	args := []string{"trace", "-c", "config.json", "-s", "cluster.json", "--mode", string(n.mode), "--hostname-override", "node1",
		"--from", from, "--to", to, "-o", "json"}
	for _, i := range topologyFacts().Interfaces {
		for _, a := range i.Addrs {
			args = append(args, "--node-address", a.String()+"@"+i.Name)
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(&env{args: args, stdout: &stdout, stderr: &stderr, files: n.files}); code != exitDone {
		t.Fatalf("%v: exit code %d: %s", args, code, &stderr)
	}
	var out traceJSON
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// compare holds what proxyc trace says, and the lowered rules, against one record.
func (n *conformanceNode) compare(t *testing.T, programs ir.Programs, f *conformanceFlow, key string, want conformanceOutcome) {
	t.Helper()
	told := n.trace(t, sourceOf(t, f), f.To)
	src := told.From
	if told.Interface != "" {
		src += "@" + told.Interface
	}
	pkt, err := sim.ParsePacket(src, f.To)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	outcome := told.outcome(t)
	if got := predict(f, pkt, outcome); !sameOutcome(f, got, want) {
		steps, _ := json.MarshalIndent(told, "", "  ")
		t.Errorf("%s: prediction differs (-record +predicted):\n%s%s", key, cmp.Diff(want, got), steps)
	}
	p := programFor(programs, pkt.Dst)
	if got := evaluators[p.Node.Mode](p).Eval(pkt, p.Node.HasAddr); !got.Equal(outcome) {
		t.Errorf("%s: rules give %s, want %s", key, got, outcome)
	}
}

// outcome is what a trace says, as the simulator has it.
func (j *traceJSON) outcome(t *testing.T) sim.Outcome {
	t.Helper()
	fates := []sim.Fate{sim.NotOurs, sim.Accepted, sim.Rejected, sim.Dropped}
	i := slices.IndexFunc(fates, func(f sim.Fate) bool { return f.String() == j.Fate })
	if i < 0 {
		t.Fatalf("fate %q", j.Fate)
	}
	out := sim.Outcome{Fate: fates[i], Affinity: j.Affinity}
	for _, d := range j.Destinations {
		out.Destinations = append(out.Destinations, sim.Destination{AddrPort: d.Address, SNAT: d.Masquerade})
	}
	return out
}

// sameOutcome compares as far as the flow records anything.
func sameOutcome(f *conformanceFlow, got, want conformanceOutcome) bool {
	switch {
	case f.Affinity:
		return got.OneEndpoint == want.OneEndpoint
	case f.Any:
		return (len(got.Reached) > 0) == (len(want.Reached) > 0) || want.Reached == nil
	}
	return cmp.Equal(want, got)
}

// predict turns an outcome into what the topology makes of it.
func predict(f *conformanceFlow, pkt sim.Packet, outcome sim.Outcome) conformanceOutcome {
	var out conformanceOutcome
	fail := func(word string) {
		if !slices.Contains(out.Failed, word) {
			out.Failed = append(out.Failed, word)
			slices.Sort(out.Failed)
		}
	}
	switch outcome.Fate {
	case sim.Rejected:
		fail("refused")
		return out
	case sim.Dropped:
		fail("timeout")
		return out
	case sim.NotOurs:
		outcome.Destinations = []sim.Destination{{AddrPort: netip.AddrPortFrom(pkt.Dst, pkt.Port)}}
	}
	if f.Affinity && outcome.Affinity {
		out.OneEndpoint = true
		return out
	}
	for _, d := range outcome.Destinations {
		endpoint, source, failure := deliver(f, pkt, d)
		if failure != "" {
			fail(failure)
			continue
		}
		if out.Reached == nil {
			out.Reached = map[string][]string{}
		}
		out.Reached[endpoint] = append(out.Reached[endpoint], source)
		slices.Sort(out.Reached[endpoint])
	}
	return out
}

// deliver says what the topology does with a packet that left the rules of
// node1 for a destination: the endpoint that answers and the source that it
// sees, or how it fails.
func deliver(f *conformanceFlow, pkt sim.Packet, d sim.Destination) (endpoint, source, failure string) {
	addr := d.AddrPort.Addr()
	host, known := topologyName(addr)
	switch {
	case !known:
		return "", "", "timeout" // the default gateway forwards nothing
	case !slices.Contains(servedPorts, d.AddrPort.Port()):
		return "", "", "refused"
	}
	endpoint = fmt.Sprintf("%s:%d", host, d.AddrPort.Port())
	onNode1 := strings.HasPrefix(host, "pod1")
	switch {
	case host == "loopback":
		return endpoint, host, ""
	case host == "node1":
		return endpoint, f.From, "" // delivered here, which passes no masquerade
	case d.SNAT && onNode1:
		return endpoint, "node1.cni0", ""
	case d.SNAT:
		return endpoint, "node1", ""
	case !onNode1 && pkt.In != "cni0" && pkt.In != "":
		return "", "", "timeout" // the answer takes the direct way, and is not recognised
	}
	if _, known := topologyName(pkt.Src); !known {
		return endpoint, pkt.Src.String(), "" // the node, by a VIP that it has
	}
	return endpoint, f.From, ""
}

// Topology: see testdata/conformance/README.md.

var servedPorts = []uint16{53, 80, 443, 8080, 8081, 9090}

func topologyFacts() compiler.Facts {
	return compiler.Facts{NodeName: "node1", Interfaces: []compiler.Interface{
		{Name: "lo", Addrs: prefixes("127.0.0.1/8", "::1/128")},
		{Name: "eth0", Addrs: prefixes("192.0.2.11/24", "2001:db8:0:1::11/64")},
		{Name: "eth1", Addrs: prefixes("198.51.100.11/24", "2001:db8:0:2::11/64")},
		{Name: "cni0", Addrs: prefixes("10.244.1.1/24", "fd00:10:244:1::1/64")},
	}}
}

// topologyHosts has the last parts of addresses: of 10.244.1.x, of
// 10.244.2.x, and of the lan.
var topologyHosts = map[string]map[string]string{
	"10.244.1.":       {"1": "node1.cni0", "10": "pod1a", "11": "pod1b", "12": "pod1c"},
	"fd00:10:244:1::": {"1": "node1.cni0", "10": "pod1a", "11": "pod1b", "12": "pod1c"},
	"10.244.2.":       {"1": "node2.cni0", "10": "pod2a", "11": "pod2b", "12": "pod2c"},
	"fd00:10:244:2::": {"1": "node2.cni0", "10": "pod2a", "11": "pod2b", "12": "pod2c"},
	"192.0.2.":        {"11": "node1", "12": "node2", "200": "ext", "201": "ext.201", "202": "ext.202"},
	"2001:db8:0:1::":  {"11": "node1", "12": "node2", "200": "ext", "201": "ext.201", "202": "ext.202"},
	"198.51.100.":     {"11": "node1", "200": "ext"},
	"2001:db8:0:2::":  {"11": "node1", "200": "ext"},
	"127.0.0.":        {"1": "loopback"},
	"::":              {"1": "loopback"},
}

// topologyName names the owner of an address. The further addresses of
// pod1c are pod1c.100 and so on.
func topologyName(addr netip.Addr) (string, bool) {
	text := addr.String()
	i := strings.LastIndexAny(text, ".:") + 1
	net, host := text[:i], text[i:]
	if name, ok := topologyHosts[net][host]; ok {
		return name, true
	}
	var n int
	if _, err := fmt.Sscan(host, &n); err != nil || n < 100 || n > 109 {
		return "", false
	}
	switch net {
	case "10.244.1.", "fd00:10:244:1::":
		return "pod1c." + host, true
	case "10.244.2.", "fd00:10:244:2::":
		return "pod2c." + host, true
	}
	return "", false
}

// sourceOf returns a flow's source as people give it to proxyc trace: node1
// itself, or the address from which others send to the destination. They have
// no proxy of their own: what they send to others than node1 comes by it, too.
func sourceOf(t *testing.T, f *conformanceFlow) string {
	t.Helper()
	if f.From == "node1" {
		return "node"
	}
	dst := strings.Trim(f.To[:strings.LastIndex(f.To, ":")], "[]")
	found := ""
	for _, prefix := range slices.Sorted(maps.Keys(topologyHosts)) {
		for host, name := range topologyHosts[prefix] {
			if name != f.From || strings.Contains(prefix, ":") != strings.Contains(dst, ":") {
				continue
			}
			if second := strings.HasPrefix(prefix, "198.51.100.") || strings.HasPrefix(prefix, "2001:db8:0:2::"); !second || strings.HasPrefix(dst, prefix) {
				found = prefix + host
			}
		}
	}
	if found != "" {
		return found
	}
	t.Fatalf("no source %q", f.From)
	return ""
}

// ipv6Twin replaces every address, CIDR and family name in the strings of a
// tree by its twin.
func ipv6Twin(tree any) any {
	switch v := tree.(type) {
	case string:
		return twinText(v)
	case []any:
		for i := range v {
			v[i] = ipv6Twin(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = ipv6Twin(v[k])
		}
	}
	return tree
}

// twinPrefixes maps the first part of each network to its twin's.
var twinPrefixes = []struct{ v4, v6 string }{
	{"10.244.1.", "fd00:10:244:1::"}, {"10.244.2.", "fd00:10:244:2::"}, {"10.96.0.", "fd00:10:96::"},
	{"203.0.113.", "2001:db8:203::"}, {"198.18.0.", "2001:db8:198::"},
	{"192.0.2.", "2001:db8:0:1::"}, {"198.51.100.", "2001:db8:0:2::"}, {"127.0.0.", "::"},
}

var twinCIDRs = map[string]string{
	"10.244.0.0/16": "fd00:10:244::/48", "10.96.0.0/16": "fd00:10:96::/112", "127.0.0.0/8": "::1/128",
	"0.0.0.0/0": "::/0", "0.0.0.0": "::", "IPv4": "IPv6",
}

func twinText(s string) string {
	if twin, ok := twinCIDRs[s]; ok {
		return twin
	}
	for _, p := range twinPrefixes {
		rest, ok := strings.CutPrefix(s, p.v4)
		if !ok {
			continue
		}
		host, length, isCIDR := strings.Cut(rest, "/")
		if isCIDR && (length == "24" || length == "32") {
			return p.v6 + strings.TrimPrefix(host, "0") + map[string]string{"24": "/64", "32": "/128"}[length]
		}
		if host, port, ok := strings.Cut(rest, ":"); ok {
			return "[" + p.v6 + host + "]:" + port
		}
		return p.v6 + rest
	}
	return s
}

// config returns the base configuration with the case's merged over it.
func (c *conformanceCase) config(t *testing.T, mode ir.Mode) []byte {
	t.Helper()
	base := map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"clusterCIDR": "10.244.0.0/16,fd00:10:244::/48", "detectLocalMode": "ClusterCIDR",
		"metricsBindAddress": "127.0.0.1:10249", "healthzBindAddress": "0.0.0.0:10256",
	}
	merge(base, c.Config)
	merge(base, c.ModeConfig[string(mode)])
	data, err := json.Marshal(base)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func merge(into, from map[string]any) {
	for k, v := range from {
		section, ok := v.(map[string]any)
		if old, both := into[k].(map[string]any); ok && both {
			merge(old, section)
			continue
		}
		into[k] = v
	}
}

// cluster is the objects of a case, by kind, namespace and name.
type cluster map[string]map[string]any

func newCluster(objects []map[string]any) cluster {
	c := cluster{}
	for i := 1; i <= 2; i++ {
		c.apply([]map[string]any{{
			"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": fmt.Sprintf("node%d", i), "labels": map[string]any{
				"topology.kubernetes.io/zone": "zone-" + string("ab"[i-1])}},
			"spec": map[string]any{"podCIDRs": []any{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:10:244:%d::/64", i)}},
			"status": map[string]any{"addresses": []any{
				map[string]any{"type": "InternalIP", "address": fmt.Sprintf("192.0.2.1%d", i)},
				map[string]any{"type": "InternalIP", "address": fmt.Sprintf("2001:db8:0:1::1%d", i)}}},
		}})
	}
	c.apply([]map[string]any{{
		"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": map[string]any{"name": "kubernetes"},
		"spec": map[string]any{"cidrs": []any{"10.96.0.0/16", "fd00:10:96::/112"}},
	}})
	c.apply(objects)
	return c
}

func (c cluster) apply(objects []map[string]any) {
	for _, o := range objects {
		meta := o["metadata"].(map[string]any)
		kind := o["kind"].(string)
		if _, ok := meta["namespace"]; !ok && (kind == "Service" || kind == "EndpointSlice") {
			meta["namespace"] = "default"
		}
		c[fmt.Sprintf("%s/%v/%s", kind, meta["namespace"], meta["name"])] = o
	}
}

// delete takes Kind/[namespace/]name.
func (c cluster) delete(names []string) {
	for _, name := range names {
		parts := strings.Split(name, "/")
		if len(parts) == 2 {
			parts = []string{parts[0], "default", parts[1]}
		}
		delete(c, strings.Join(parts, "/"))
	}
}

func (c cluster) encode(t *testing.T) []byte {
	t.Helper()
	items := make([]any, 0, len(c))
	for _, o := range c {
		items = append(items, o)
	}
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (t traced) String() string {
	var b strings.Builder
	t.writeText(&b)
	return b.String()
}
