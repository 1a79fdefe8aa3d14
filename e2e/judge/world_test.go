package judge

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// load reads a table.
func load(t *testing.T, name string) []taped {
	var all []taped
	if err := json.Unmarshal(read(t, filepath.Join("testdata", name+".json")), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("%s.json is empty", name)
	}
	return all
}

func decode[T any](t *testing.T, is json.RawMessage) T {
	var v T
	decodeInto(t, is, &v)
	return v
}

func decodeInto(t *testing.T, is json.RawMessage, v any) {
	if err := json.Unmarshal(is, v); err != nil {
		t.Fatalf("%s: %v", is, err)
	}
}

// A world is the input of a test so far, in a snapshot that follows its changes like the
// daemon's.
type world struct {
	t        *testing.T
	mode     ir.Mode
	family   ir.Family
	snap     *snapshot.Snapshot
	node     string
	settings settings
	local    []string // addresses of the node
	compiler *compiler.Compiler
	dirty    []ir.Name
}

// settings are the values in the fact "proxier".
type settings struct {
	Family, Node, NodeIP, PodsFrom, NodePortAddresses, ServiceCIDRs string

	Labels                            map[string]string
	MasqueradeAll, LocalhostNodePorts bool
	FeatureGates                      map[string]bool
}

func newWorld(t *testing.T, mode ir.Mode) *world {
	return &world{t: t, mode: mode, family: ir.IPv4, snap: snapshot.New()}
}

// take records a fact that is input, and reports whether it is.
func (w *world) take(f fact) bool {
	switch f.Kind {
	case "services": // a new, empty tracker
		w.family = family(decode[string](w.t, f.Is))
		w.forget(func() { w.snap.ReplaceServices(nil) })
	case "slices":
		w.node = decode[string](w.t, f.Is)
		w.forget(func() { w.snap.ReplaceSlices(nil) })
	case "service":
		o := decode[struct {
			Name   string
			Object *corev1.Service
		}](w.t, f.Is)
		name := name(o.Name)
		if o.Object == nil {
			w.snap.DeleteService(name)
		} else {
			w.snap.SetService(snapshot.FromService(o.Object))
		}
		w.dirty = append(w.dirty, name)
	case "slice":
		o := decode[struct {
			Name, Node string
			Object     *discoveryv1.EndpointSlice
		}](w.t, f.Is)
		if o.Node != w.node {
			w.forget(func() { w.node = o.Node })
		}
		if o.Object == nil {
			w.dirty = append(w.dirty, w.snap.DeleteSlice(name(o.Name))...)
		} else {
			w.dirty = append(w.dirty, w.snap.SetSlice(snapshot.FromEndpointSlice(o.Object))...)
		}
	case "proxier":
		w.forget(func() { w.settings = decode[settings](w.t, f.Is) })
	case "local":
		w.forget(func() { w.local = decode[[]string](w.t, f.Is) })
	default:
		return false
	}
	return true
}

// forget calls do, which requires a new Compiler.
func (w *world) forget(do func()) {
	do()
	w.compiler = nil
}

func family(s string) ir.Family {
	if s == "IPv6" {
		return ir.IPv6
	}
	return ir.IPv4
}

func name(s string) ir.Name {
	namespace, name, _ := strings.Cut(s, "/")
	return ir.Name{Namespace: namespace, Name: name}
}

// program compiles the changes, and returns the Program of the test's family. It checks that
// compiling everything gives the same.
func (w *world) program() *ir.Program {
	cfg, facts := w.config(), w.facts()
	if w.compiler == nil {
		w.compiler = compiler.New(cfg, w.snap, facts)
	} else {
		w.compiler.Update(w.dirty)
	}
	w.dirty = nil
	got := w.compiler.Programs()
	want, _ := compiler.Compile(cfg, w.snap, facts)
	for f, p := range got.All() {
		if err := p.Validate(); err != nil {
			w.t.Errorf("the Program is not valid: %v", err)
		}
		if diff := cmp.Diff(want.Of(f), p, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
			cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			w.t.Errorf("step by step the result is another than at once (-once +step by step):\n%s", diff)
		}
	}
	return got.Of(w.family)
}

// facts returns the node's own addresses, if the test names any.
func (w *world) facts() compiler.Facts {
	f := compiler.Facts{NodeName: w.nodeName()}
	if w.local == nil {
		return f
	}
	eth0 := compiler.Interface{Name: "eth0"}
	for _, text := range w.local {
		addr := netip.MustParseAddr(text)
		eth0.Addrs = append(eth0.Addrs, netip.PrefixFrom(addr, addr.BitLen()))
	}
	f.Interfaces = []compiler.Interface{{Name: "lo", Addrs: []netip.Prefix{
		netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128")}}, eth0}
	return f
}

func (w *world) nodeName() string {
	if w.node != "" {
		return w.node
	}
	return "node"
}

// config returns a configuration with which kube-proxy would create such a proxier. It also
// creates the Node and the ServiceCIDR for it.
func (w *world) config() *config.Config {
	s := w.settings
	node := &snapshot.Node{Name: w.nodeName(), Zone: s.Labels[corev1.LabelTopologyZone]}
	for ip := range strings.FieldsSeq(s.NodeIP) {
		node.Addresses = append(node.Addresses, snapshot.NodeAddress{Type: "InternalIP", Address: ip})
	}
	w.snap.SetNode(node)
	if s.ServiceCIDRs != "" {
		w.snap.SetServiceCIDR(&snapshot.ServiceCIDR{Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix(s.ServiceCIDRs)}})
	}
	section := map[string]any{"masqueradeAll": s.MasqueradeAll}
	in := string(w.mode)
	if w.mode == ir.ModeIPVS { // the tests' values are in the section of mode iptables
		in = string(ir.ModeIPTables)
	}
	if w.mode == ir.ModeIPTables {
		section["localhostNodePorts"] = s.LocalhostNodePorts
	}
	c := map[string]any{
		"apiVersion": config.APIVersion, "kind": config.Kind,
		"mode": string(w.mode), in: section,
		"hostnameOverride": w.nodeName(),
		"clusterCIDR":      strings.TrimPrefix(s.PodsFrom, "-s "),
		"featureGates":     s.FeatureGates,
	}
	if ports := strings.Fields(strings.Trim(s.NodePortAddresses, "[]")); !slices.Equal(ports, []string{"0.0.0.0/0"}) && !slices.Equal(ports, []string{"::/0"}) {
		c["nodePortAddresses"] = ports
	}
	b, err := json.Marshal(c)
	if err != nil {
		w.t.Fatal(err)
	}
	r, diags := config.Load("config", b, true)
	if r == nil || diags.HasErrors() {
		w.t.Fatalf("configuration: %v", diags)
	}
	return r.Config
}

// A difference is an intentional one: what proxyc does instead, and why.
type difference struct {
	Where string // table, test and case
	Want  string // what proxyc does
	Why   string
	seen  bool
}

type differences []*difference

// loadDifferences reads the differences in the tables of a test. At the end of the test, each
// must have occurred.
func loadDifferences(t *testing.T, tables ...string) differences {
	var all, out differences
	b, err := os.ReadFile("differences.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.Want == "" || d.Why == "" {
			t.Errorf("differences.yaml: %s: has no want or no why", d.Where)
		}
		if table, _, _ := strings.Cut(d.Where, " "); slices.Contains(tables, table) {
			out = append(out, d)
		}
	}
	t.Cleanup(func() {
		for _, d := range out {
			if !d.seen && !t.Failed() {
				t.Errorf("differences.yaml: %s: the difference does not occur", d.Where)
			}
		}
	})
	return out
}

// compare compares what proxyc does with what kube-proxy does.
func (d differences) compare(t *testing.T, where, kubeProxy, proxyc string) {
	t.Helper()
	for _, on := range d {
		if on.Where == where {
			on.seen = true
			if on.Want != proxyc || proxyc == kubeProxy {
				t.Errorf("%s: differs, but not as in differences.yaml\nkube-proxy: %s\nlisted:     %s\nproxyc:     %s", where, kubeProxy, on.Want, proxyc)
			}
			return
		}
	}
	if kubeProxy != proxyc {
		t.Errorf("%s\nkube-proxy: %s\nproxyc:     %s", where, kubeProxy, proxyc)
	}
}

func text(v any) string { return fmt.Sprint(v) }
