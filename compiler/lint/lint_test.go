package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

func TestRanges(t *testing.T) {
	var list []netip.Prefix
	for _, text := range strings.Fields("10.0.1.0/24 10.0.0.0/16 10.2.0.0/16 fd00::/64 10.0.0.0/24") {
		list = append(list, netip.MustParsePrefix(text))
	}
	r := newRanges(list)
	if len(r) != 3 {
		t.Errorf("%d ranges, want those that are in no other: %v", len(r), r)
	}
	for addr, want := range map[string]bool{"9.255.255.255": false, "10.0.0.0": true, "10.0.255.255": true, "10.1.0.0": false,
		"10.2.255.255": true, "10.3.0.0": false, "fd00::1": true, "fd00:0:0:1::": false} {
		if got := r.contains(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: within: %t", addr, got)
		}
	}
	for prefix, want := range map[string]bool{"10.1.0.0/16": false, "10.0.0.0/8": true, "10.2.3.0/24": true, "10.1.255.0/24": false, "fd00::/48": true} {
		if _, got := r.overlapping(netip.MustParsePrefix(prefix)); got != want {
			t.Errorf("%s: overlaps: %t", prefix, got)
		}
	}
}

func TestSuppressions(t *testing.T) {
	d := diag.Diagnostic{Severity: diag.Warning, Code: diag.RangesNodePort, Object: "Service shop/edge", Path: "spec.ports[0].nodePort", Msg: "m"}
	file := diag.Diagnostic{Severity: diag.Info, Code: diag.ModeUnset, File: "a/config.yaml", Line: 3, Path: "mode", Msg: "m"}
	for line, want := range map[string][2]bool{
		"PX604":                    {true, false},
		"PX604 # why":              {true, false},
		"PX604 Service shop/edge":  {true, false},
		"PX604 Service shop/edge:": {true, false},
		"PX604 Service shop/edge: spec.ports[0].nodePort":   {true, false},
		"PX604   Service shop/edge: spec.ports[0].nodePort": {true, false},
		"PX604 Service shop/edge: spec.ports[1].nodePort":   {},
		"PX604 Service shop/edg":                            {},
		"PX604 Service shop/*":                              {true, false},
		"PX604 Service *: spec.ports[*].nodePort":           {true, false},
		"PX6*":                      {true, false},
		"PX60":                      {},
		"PX603 *":                   {},
		"PX801 a/config.yaml: mode": {false, true},
		"PX801 *config.yaml":        {false, true},
		"PX* *":                     {true, true},
	} {
		var s Suppressions
		if errs := s.Read("f", line); len(errs) > 0 {
			t.Fatal(errs)
		}
		left, out := s.Apply(diag.List{d, file}, nil)
		for i, of := range []diag.Diagnostic{d, file} {
			if slices.Contains(left, of) == want[i] {
				t.Errorf("%q: %s: suppressed: %t", line, of, !want[i])
			}
		}
		reported := slices.ContainsFunc(left, func(d diag.Diagnostic) bool { return d.Code == diag.NotSuppressing && d.Line == 1 && d.File == "f" })
		if reported != (len(out) == 0) {
			t.Errorf("%q: suppresses %d, and is reported to suppress nothing: %t", line, len(out), reported)
		}
	}
}

// An annotation suppresses findings about its own object only.
func TestAnnotations(t *testing.T) {
	of := func(object string, code diag.Code) diag.Diagnostic {
		return diag.Diagnostic{Severity: diag.Warning, Code: code, Object: object, Msg: "m"}
	}
	written := map[string]manifest.Written{"Service a/b": {Ignore: "PX604, PX803,PX501"}}
	var s Suppressions
	left, out := s.Apply(diag.List{of("Service a/b", diag.RangesNodePort), of("Service a/c", diag.RangesNodePort), of("Service a/b", diag.ExternalIPsEnd)}, written)
	grave := of("Service a/b", diag.RangesNodePort)
	grave.Severity = diag.Error
	if kept, hidden := s.Apply(diag.List{grave}, written); len(hidden) > 0 || !slices.Contains(kept, grave) {
		t.Errorf("an error is suppressed by an annotation: %v", hidden)
	}
	var text bytes.Buffer
	if err := (&Report{Suppressed: out}).Write(&text, "text"); err != nil || text.String() != "suppressed: 2\nsuppressed by an annotation of Service a/b: PX604, PX803\n" {
		t.Errorf("%v\n%s", err, &text)
	}
	if len(out) != 2 || !out[0].InSource || len(left) != 2 {
		t.Errorf("left %v, suppressed %v", left, out)
	}
	if !slices.ContainsFunc(left, func(d diag.Diagnostic) bool {
		return d.Code == diag.NotSuppressing && strings.Contains(d.Msg, "PX501")
	}) {
		t.Errorf("PX501 suppresses nothing, which is not reported: %v", left)
	}
}

// A baseline suppresses the findings that it was made from, and none of its lines
// is unused.
func TestBaseline(t *testing.T) {
	list := diag.List{
		{Severity: diag.Warning, Code: diag.RangesNodePort, Object: "Service shop/edge", Path: "spec.ports[0].nodePort", Msg: "m"},
		{Severity: diag.Warning, Code: diag.NoneReady, Object: "Service shop/edge", Msg: "m"},
		{Severity: diag.Info, Code: diag.ModeUnset, File: "c.yaml", Line: 3, Path: "mode", Msg: "m"},
		{Severity: diag.Warning, Code: diag.NoServices, Msg: "m"},
	}
	var s Suppressions
	if errs := s.Read("known", Baseline(list, nil)); len(errs) > 0 {
		t.Fatal(errs)
	}
	moved := slices.Clone(list)
	moved[2].Line = 99
	if left, out := s.Apply(moved, nil); len(left) > 0 || len(out) != len(list) {
		t.Errorf("left %v", left)
	}
	other := list[0]
	other.Object = "Service shop/new"
	if left, _ := s.Apply(diag.List{other}, nil); len(left) != 1 {
		t.Errorf("a new finding: left %v", left)
	}
}

func TestVersion(t *testing.T) {
	for text, want := range map[string][3]int{"5.10.0-28-amd64": {5, 10, 1}, "6.1": {6, 1, 1}, "4.18.0-477.el8": {4, 18, 1}, "10.0.20348": {10, 0, 1}, "": {}, "5": {}, "x.1": {}} {
		major, minor, ok := version(text)
		if ok != (want[2] == 1) || ok && (major != want[0] || minor != want[1]) {
			t.Errorf("%q: %d.%d %t", text, major, minor, ok)
		}
	}
}

// strange has findings with characters that are special in an output format.
var strange = Report{
	Findings: diag.List{
		{Severity: diag.Error, Code: diag.VIPClaimed, File: "a dir/ä,b:c.yaml", Line: 3, Column: 7, Object: "Service a/b", Path: "spec.clusterIP", Msg: "is 100% | \"x\"\nand <b>", Hint: "do"},
		{Severity: diag.Info, Code: diag.NoSlices, Msg: "m"},
	},
	Suppressed: []Suppressed{{diag.Diagnostic{Severity: diag.Warning, Code: diag.ModeIPVS, File: "-", Line: 1, Path: "mode", Msg: "m"}, "f:1", "why", false}},
}

func TestForms(t *testing.T) {
	for form, want := range map[string]string{
		"github": "::error file=a dir/ä%2Cb%3Ac.yaml,line=3,col=7,title=PX501::Service a/b: spec.clusterIP: is 100%25 | \"x\"\\nand <b> (do)\n" +
			"::notice title=PX114::m\n",
		"markdown": "### proxyc lint: 1 errors, 0 warnings, 1 infos (1 suppressed)\n\n| | code | where | finding |\n|---|---|---|---|\n" +
			"| error | PX501 | `a dir/ä,b:c.yaml:3` | Service a/b: spec.clusterIP: is 100% \\| \"x\"\\nand &lt;b> (do) |\n| info | PX114 |  | m |\n",
	} {
		var b strings.Builder
		if err := strange.Write(&b, form); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, b.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", form, d)
		}
	}
}

// The SARIF log follows its schema: version, driver with rules, and results that
// refer to a rule, with a valid level, a message, and locations as URIs with
// positions from 1.
func TestSARIF(t *testing.T) {
	var b strings.Builder
	if err := strange.Write(&b, "sarif"); err != nil {
		t.Fatal(err)
	}
	var log struct {
		Schema  string `json:"$schema"`
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct {
					Name  string
					Rules []struct {
						ID                                      string
						ShortDescription, FullDescription, Help struct{ Text string }
						DefaultConfiguration                    struct{ Level string }
					}
				}
			}
			ColumnKind string
			Results    []struct {
				RuleID    string
				RuleIndex int
				Level     string
				Message   struct{ Text string }
				Locations []struct {
					PhysicalLocation *struct {
						ArtifactLocation struct{ URI string }
						Region           *struct{ StartLine, StartColumn int }
					}
					LogicalLocations []struct{ FullyQualifiedName string }
				}
				PartialFingerprints map[string]string
				Suppressions        []struct{ Kind, Justification string }
			}
		}
	}
	d := json.NewDecoder(strings.NewReader(b.String()))
	if err := d.Decode(&log); err != nil {
		t.Fatal(err)
	}
	if log.Version != "2.1.0" || !strings.Contains(log.Schema, "sarif-2.1.0") || len(log.Runs) != 1 {
		t.Fatalf("version %q, schema %q, %d runs", log.Version, log.Schema, len(log.Runs))
	}
	run := log.Runs[0]
	levels := []string{"none", "note", "warning", "error"}
	ids := map[string]bool{}
	for _, r := range run.Tool.Driver.Rules {
		if ids[r.ID] || r.ShortDescription.Text == "" || r.FullDescription.Text == "" || r.Help.Text == "" || !slices.Contains(levels, r.DefaultConfiguration.Level) {
			t.Errorf("rule %+v", r)
		}
		ids[r.ID] = true
	}
	if run.Tool.Driver.Name == "" || len(ids) != len(diag.ByCode()) || !slices.Contains([]string{"utf16CodeUnits", "unicodeCodePoints"}, run.ColumnKind) {
		t.Errorf("driver %q, %d rules, columns %q", run.Tool.Driver.Name, len(ids), run.ColumnKind)
	}
	if len(run.Results) != 3 {
		t.Fatalf("%d results", len(run.Results))
	}
	for _, r := range run.Results {
		if run.Tool.Driver.Rules[r.RuleIndex].ID != r.RuleID || r.Message.Text == "" || !slices.Contains(levels, r.Level) || len(r.PartialFingerprints) == 0 {
			t.Errorf("result %+v", r)
		}
		for _, l := range r.Locations {
			if p := l.PhysicalLocation; p != nil && (p.Region == nil || p.Region.StartLine < 1 || p.Region.StartColumn < 0) {
				t.Errorf("location %+v", p)
			}
		}
	}
	first := run.Results[0]
	if got := first.Locations[0].PhysicalLocation.ArtifactLocation.URI; got != "a%20dir/%C3%A4,b:c.yaml" || strings.Contains(first.Message.Text, "yaml") {
		t.Errorf("URI %q, message %q", got, first.Message.Text)
	}
	if s := run.Results[2].Suppressions; len(s) != 1 || s[0].Kind != "external" || s[0].Justification != "why" {
		t.Errorf("suppressions %+v", s)
	}
}

// many returns a cluster of n Services, each with a slice of 5 endpoints and
// several findings.
func many(n int) Input {
	snap := snapshot.New()
	written := map[string]manifest.Written{}
	for i := range n {
		name := ir.Name{Namespace: "ns", Name: fmt.Sprint("s", i)}
		svc := &snapshot.Service{Name: name, Object: "Service " + name.String(), Type: "LoadBalancer", ClusterIP: fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255),
			ExternalIPs: []string{fmt.Sprintf("203.%d.%d.%d", i>>16, i>>8&255, i&255)}, ExternalLocal: true, HealthPort: 32000,
			SourceRanges: []string{"198.51.100.0/24", "198.51.100.128/25"}, Ports: []snapshot.ServicePort{{Name: "a", Port: 80, NodePort: 30000}}}
		snap.SetService(svc)
		written[svc.Object] = manifest.Written{Selector: map[string]string{"app": "a"}}
		slice := &snapshot.EndpointSlice{Name: name, Object: "EndpointSlice " + name.String(), Service: name, AddressType: "IPv4", Ports: []snapshot.EndpointPort{{Name: "b", Port: 80, HasName: true, HasPort: true}}}
		for j := range 5 {
			addr := netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)})
			slice.Endpoints = append(slice.Endpoints, snapshot.Endpoint{Address: addr.String(), Addr: addr, NodeName: fmt.Sprint("n", i%100), Ready: true, Serving: true})
		}
		snap.SetSlice(slice)
	}
	for i := range n / 10 {
		snap.SetNode(&snapshot.Node{Name: fmt.Sprint("n", i), Addresses: []snapshot.NodeAddress{{Type: "InternalIP", Address: fmt.Sprintf("192.0.%d.%d", i>>8, i&255)}},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24)}})
	}
	resolved, _ := config.Load("c", []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"), false)
	return Input{Config: resolved, Snapshot: snap, Written: written}
}

// The cost is linear in the number of Services. The test counts allocations,
// which do not depend on the load of the machine.
func TestCheckIsLinear(t *testing.T) {
	small, large := many(500), many(2000)
	if n := len(Check(small)); n < 500*4 {
		t.Fatalf("%d findings: the cluster has too little to find", n)
	}
	a := testing.AllocsPerRun(1, func() { Check(small) })
	b := testing.AllocsPerRun(1, func() { Check(large) })
	if b > 4.4*a {
		t.Errorf("%v allocations of 500 Services, %v of 2,000", a, b)
	}
}
