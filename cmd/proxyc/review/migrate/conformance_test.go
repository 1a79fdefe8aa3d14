package migrate_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

const conformanceDir = "../../../../testdata/conformance"

// conformanceOutcome is the part of a recorded outcome that depends only on rules.
type conformanceOutcome struct {
	Reached     map[string][]string `json:"reached,omitempty"` // endpoint → sources that it saw
	Failed      []string            `json:"failed,omitempty"`
	OneEndpoint bool                `json:"one endpoint,omitempty"`
}

// TestConformance compares the simulator, and the rules of each mode, with recorded packets under
// real kube-proxy.
func TestConformance(t *testing.T) {
	chosen := applytest.Cases(t, conformanceDir)
	flows := 0
	for _, mode := range []ir.Mode{ir.ModeIPTables, ir.ModeNFTables, ir.ModeIPVS} {
		records, err := applytest.LoadRecords(os.DirFS(conformanceDir), "expected/"+string(mode)+".json")
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range []string{applytest.IPv4, applytest.IPv6} {
			cases, err := applytest.LoadCases(os.DirFS(conformanceDir+"/cases"), family)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cases {
				if records.Results[family][c.Name] == nil || c.Daemon || // not recorded, or health checks only
					!chosen(string(mode), family, c.Name) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", mode, family, c.Name), func(t *testing.T) {
					flows += replayCase(t, c, mode, func(key string) applytest.Outcome {
						return records.Recorded(family, c.Name, key)
					})
				})
			}
		}
	}
	if flows == 0 && !t.Failed() {
		t.Error("no flow was compared")
	}
	t.Logf("%d flows compared", flows)
}

// replayCase compiles the case step by step, and compares each flow with the expected outcome. It
// returns the number of compared flows.
func replayCase(t *testing.T, c *applytest.Case, mode ir.Mode, want func(key string) applytest.Outcome) (compared int) {
	configFile, err := c.ConfigFile(string(mode))
	if err != nil {
		t.Fatal(err)
	}
	cfg := reviewtest.ParseConfig(t, mode, configFile)
	c.Each(t, func(n int, stage applytest.Step, cluster []byte) {
		snap, diags := reviewtest.Decode(cluster)
		if diags.HasErrors() {
			t.Fatalf("snapshot: %v", diags)
		}
		programs, _ := reviewtest.Compile(t, cfg, snap, topologyFacts())
		for j := range stage.Flows {
			f := &stage.Flows[j]
			key := f.Key(n, j+1)
			if !predictable(f) {
				continue
			}
			switch wanted := want(key); {
			case wanted == nil:
				t.Errorf("%s: not in the record", key)
			case wanted["unstable"] == nil: // the same in each run
				compared++
				compare(t, programs, traceOf(t, f, snap, programs), f, key, ofRules(t, wanted))
			}
		}
	})
	return compared
}

// predictable reports whether the flow's outcome depends only on the rules, and not on earlier
// connections (sport, again) or on a server (http).
func predictable(f *applytest.Flow) bool {
	return f.From != "" && f.To != "" && f.Sport == 0 && !f.Unstable
}

// ofRules returns the part of an outcome that rules alone decide.
func ofRules(t *testing.T, o applytest.Outcome) (out conformanceOutcome) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// compare compares the simulator and the lowered rules with one record.
func compare(t *testing.T, programs ir.Programs, traced trace.Trace, f *applytest.Flow, key string, want conformanceOutcome) {
	t.Helper()
	pkt, outcome := traced.Packet, traced.Outcome
	p := programs.Of(ir.FamilyOf(pkt.Dst))
	if got := predict(f, pkt, outcome); !sameOutcome(f, got, want) {
		t.Errorf("%s: prediction of %+v differs (-record +predicted):\n%s", key, pkt, cmp.Diff(want, got))
	}
	if got := review.Modes[p.Node.Mode].Evaluate(p).Outcome(pkt, nil); !got.Equal(outcome) {
		t.Errorf("%s: rules give %s, want %s", key, got, outcome)
	}
}

// sameOutcome compares as far as the flow records anything.
func sameOutcome(f *applytest.Flow, got, want conformanceOutcome) bool {
	switch {
	case f.Affinity:
		return got.OneEndpoint == want.OneEndpoint
	case f.Any:
		return (len(got.Reached) > 0) == (len(want.Reached) > 0) || want.Reached == nil
	}
	return cmp.Equal(want, got)
}

// predict returns the effect of an outcome in the topology.
func predict(f *applytest.Flow, pkt sim.Packet, outcome sim.Outcome) conformanceOutcome {
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

// deliver returns the fate in the topology of a packet that left the rules of node1 for a
// destination: the endpoint that answers and the source address that it sees, or the failure.
func deliver(f *applytest.Flow, pkt sim.Packet, d sim.Destination) (endpoint, source, failure string) {
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
		{Name: "lo", Addrs: reviewtest.Prefixes("127.0.0.1/8", "::1/128")},
		{Name: "eth0", Addrs: reviewtest.Prefixes("192.0.2.11/24", "2001:db8:0:1::11/64")},
		{Name: "eth1", Addrs: reviewtest.Prefixes("198.51.100.11/24", "2001:db8:0:2::11/64")},
		{Name: "cni0", Addrs: reviewtest.Prefixes("10.244.1.1/24", "fd00:10:244:1::1/64")},
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

// sourceOf returns a flow's source in the syntax of proxyc trace: node1 itself, or the address from
// which another host sends to the destination. Other hosts have no proxy, so they send Service
// traffic through node1.
func sourceOf(t *testing.T, from string, dst netip.Addr) string {
	t.Helper()
	if from == "node1" {
		return "node"
	}
	found := ""
	for _, prefix := range slices.Sorted(maps.Keys(topologyHosts)) {
		for host, name := range topologyHosts[prefix] {
			if name != from || strings.Contains(prefix, ":") != dst.Is6() {
				continue
			}
			if second := strings.HasPrefix(prefix, "198.51.100.") || strings.HasPrefix(prefix, "2001:db8:0:2::"); !second || strings.HasPrefix(dst.String(), prefix) {
				found = prefix + host
			}
		}
	}
	if found != "" {
		return found
	}
	t.Fatalf("no source %q", from)
	return ""
}
