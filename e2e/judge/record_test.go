package judge

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "record the tables again")

const module = "k8s.io/kubernetes"

// A tap is a statement at the start of a function of kube-proxy, or deferred to its end. In the
// latter case unnamed results are r0, r1…
type tap struct {
	file, fn string
	end      bool
	stmt     string
}

const proxier = `tape.Say("proxier", tape.Proxier{Family: string(proxier.ipFamily), Node: proxier.nodeName, NodeIP: proxier.nodeIP.String(), ` +
	`Labels: proxier.topologyLabels, PodsFrom: strings.Join(proxier.localDetector.IfLocal(), " "), MasqueradeAll: proxier.masqueradeAll, ` +
	`NodePortAddresses: proxier.nodePortAddresses.String(), `

const flows = `for _, c := range testCases { tape.Flow(c.name, c.sourceIP, string(c.protocol), c.destIP, c.destPort, c.output, c.masq) }`

var taps = []tap{
	{"pkg/proxy/servicechangetracker.go", "NewServiceChangeTracker", false, `tape.Say("services", ipFamily)`},
	{"pkg/proxy/servicechangetracker.go", "Update", false, `tapeService(previous, current)`},
	{"pkg/proxy/servicechangetracker.go", "serviceToServiceMap", true, `if service != nil { tape.Say("parsed", map[string]any{"family": sct.ipFamily, "service": service, "ports": tapePorts(r0)}) }`},
	{"pkg/proxy/servicechangetracker.go", "ServicePortMap.Update", true, `tape.Say("ports", tapePorts(sm))`},
	{"pkg/proxy/endpointslicecache.go", "checkoutChanges", true, `tapeChanges(r0)`},
	{"pkg/proxy/endpointslicecache.go", "NewEndpointSliceCache", false, `tape.Say("slices", nodeName)`},
	{"pkg/proxy/endpointslicecache.go", "updatePending", false, `tapeSlice(cache, endpointSlice, remove)`},
	{"pkg/proxy/endpointschangetracker.go", "EndpointSliceUpdate", false, `tapeSlice(ect.endpointSliceCache, endpointSlice, removeSlice)`},
	{"pkg/proxy/endpointslicecache.go", "endpointInfoByServicePort", true, `tape.Say("somePools", tapePools(endpointsMapFromEndpointInfo(r0)))`},
	{"pkg/proxy/endpointschangetracker.go", "EndpointsMap.Update", true, `tape.Say("pools", tapePools(em)); tape.Say("localReady", tapeLocalReady(em))`},
	{"pkg/proxy/topology.go", "CategorizeEndpoints", true, `tapeCategorize(endpoints, svcInfo, nodeName, topologyLabels, clusterEndpoints, localEndpoints, allReachableEndpoints, hasAnyEndpoints)`},
	{"pkg/proxy/iptables/proxier.go", "syncProxyRules", false, proxier + `LocalhostNodePorts: proxier.localhostNodePorts})`},
	{"pkg/proxy/nftables/proxier.go", "syncProxyRules", false, proxier + `ServiceCIDRs: proxier.serviceCIDRs})`},
	{"pkg/proxy/iptables/proxier_test.go", "runPacketFlowTests", false, `tape.Say("local", nodeIPs); ` + flows},
	{"pkg/proxy/nftables/helpers_test.go", "runPacketFlowTests", false, `tape.Say("local", nodeIPs); ` + flows},
	{"pkg/proxy/iptables/proxier.go", "syncProxyRules", true, `tapeSynced(proxier)`},
	{"pkg/proxy/nftables/proxier.go", "syncProxyRules", true, `tapeSynced(proxier)`},
	{"pkg/proxy/ipvs/proxier.go", "syncProxyRules", true, `tapeState(proxier)`},
	{"pkg/proxy/conntrack/cleanup.go", "CleanStaleEntries", false, `before, _ := ct.ListEntries(ipFamilyMap[ipFamily]); ` +
		`defer func() { after, _ := ct.ListEntries(ipFamilyMap[ipFamily]); tapeFlows(before, after) }()`},
	{"pkg/proxy/healthcheck/proxy_health.go", "newProxyHealthServer", false, `tapeServer(c.Now(), healthTimeout)`},
	{"pkg/proxy/healthcheck/proxy_health.go", "Updated", false, `tapeProgress("updated", hs.clock.Now(), ipFamily)`},
	{"pkg/proxy/healthcheck/proxy_health.go", "QueuedUpdate", false, `tapeProgress("queued", hs.clock.Now(), ipFamily)`},
	{"pkg/proxy/healthcheck/proxy_health.go", "healthzHandler.ServeHTTP", false, `said := &tapeResponse{ResponseWriter: resp}; resp = said; defer said.sayProbe("/healthz", h.hs)`},
	{"pkg/proxy/healthcheck/proxy_health.go", "livezHandler.ServeHTTP", false, `said := &tapeResponse{ResponseWriter: resp}; resp = said; defer said.sayProbe("/livez", h.hs)`},
	{"pkg/proxy/healthcheck/service_health.go", "server.SyncServices", false, `tapeByName("checks", newServices)`},
	{"pkg/proxy/healthcheck/service_health.go", "server.SyncEndpoints", false, `tapeByName("counts", newEndpoints)`},
	{"pkg/proxy/healthcheck/service_health.go", "hcHandler.ServeHTTP", false, `said := &tapeResponse{ResponseWriter: resp}; resp = said; defer said.sayCheck(h)`},
	{"pkg/proxy/util/nodeport_addresses.go", "NewNodePortAddresses", false, `tape.Say("nodePorts", map[string]any{"family": family, "addresses": cidrStrings})`},
	{"pkg/proxy/util/nodeport_addresses.go", "GetNodeIPs", true, `tapeNodeIPs(npa, nw, r0)`},
	{"pkg/proxy/util/nodeport_addresses.go", "ContainsExplicitLoopback", true, `tape.Say("explicitLoopback", r0)`},
	{"cmd/kube-proxy/app/server.go", "expandNodePortAddressKeywords", true, `tape.Say("keywords", map[string]any{"addresses": nodePortAddresses, "nodeIPs": nodeIPs, "expanded": r0})`},
	{"pkg/proxy/util/utils.go", "GetClusterIPByFamily", true, `tapeClusterIP(ipFamily, service, r0)`},
	{"pkg/proxy/util/utils.go", "ShouldSkipService", true, `tapeSkip(service, r0)`},
}

// A table is recorded from the tests of one package. It contains facts of the named kinds, from
// all tests except those that skip matches.
type table struct {
	pkg, skip string
	kinds     []string
}

var tables = []table{
	{"pkg/proxy", "", []string{"services", "service", "slices", "slice", "parsed", "ports", "pools", "somePools", "changedPools", "localReady", "categorize"}},
	// It counts rules. All its Services share one address as external IP and load balancer; see
	// differences.yaml.
	{"pkg/proxy/iptables", "^TestNumberIptablesRules$", []string{"services", "service", "slices", "slice", "proxier", "local", "flow", "trace", "localReady"}},
	{"pkg/proxy/nftables", "", []string{"services", "service", "slices", "slice", "proxier", "local", "flow", "trace", "localReady"}},
	{"pkg/proxy/ipvs", "", []string{"services", "service", "slices", "slice", "proxier", "local", "ipvs"}},
	// It counts reads of the table, and the tap reads it, too.
	{"pkg/proxy/conntrack", "^TestPerformanceCleanStaleEntries$", []string{"services", "service", "slices", "slice", "conntrack"}},
	{"pkg/proxy/healthcheck", "", []string{"server", "updated", "queued", "probe", "checks", "counts", "check"}},
	{"pkg/proxy/util", "", []string{"nodePorts", "nodeIPs", "explicitLoopback", "clusterIP", "skip"}},
	// Its other tests start servers and read files.
	{"cmd/kube-proxy/app", "^Test[^_]", []string{"keywords"}},
}

func (t table) file() string {
	return filepath.Join("testdata", strings.ReplaceAll(strings.TrimPrefix(t.pkg, "pkg/"), "/", "-")+".json")
}

// A fact is one line of a tape.
type fact struct {
	Kind string          `json:"kind"`
	Is   json.RawMessage `json:"is"`
}

// A taped test is one that kube-proxy passes, with its facts in order.
type taped struct {
	Test  string `json:"test"`
	Facts []fact `json:"facts"`
}

// TestRecorded checks that the tables equal those of kube-proxy's tests today.
func TestRecorded(t *testing.T) {
	r := newRecorder(t)
	for _, table := range tables {
		t.Run(table.pkg, func(t *testing.T) {
			got := r.record(t, table)
			if *update {
				if err := os.WriteFile(table.file(), got, 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(table.file())
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs from kube-proxy's tests: run go test ./judge -run TestRecorded -update, and review the changes", table.file())
			}
		})
	}
}

// A recorder builds kube-proxy's tests with taps. It replaces the module by a directory that
// exists in go's overlay only. Every file is the module's own, except for tapped files and those
// that the recorder adds.
type recorder struct{ overlay, modfile string }

func newRecorder(t *testing.T) *recorder {
	source := strings.TrimSpace(run(t, "go", "list", "-m", "-f", "{{.Dir}}", module))
	dir := t.TempDir()
	virtual := filepath.Join(dir, "module")
	write(t, filepath.Join(virtual, "go.mod"), read(t, filepath.Join(source, "go.mod")))

	replace := map[string]string{}
	walk(t, source, func(path string) {
		if path != "go.mod" {
			replace[filepath.Join(virtual, path)] = filepath.Join(source, path)
		}
	})
	own := filepath.Join("testdata", "recorder")
	walk(t, own, func(path string) {
		abs, err := filepath.Abs(filepath.Join(own, path))
		if err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(virtual, path)] = abs
	})
	byFile := map[string][]tap{}
	for _, p := range taps {
		byFile[p.file] = append(byFile[p.file], p)
	}
	for file, list := range byFile {
		tapped := filepath.Join(dir, "tapped", file)
		write(t, tapped, insert(t, file, read(t, filepath.Join(source, file)), list))
		replace[filepath.Join(virtual, file)] = tapped
	}
	for _, table := range tables { // where its tests run
		if err := os.MkdirAll(filepath.Join(virtual, table.pkg), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{overlay: filepath.Join(dir, "overlay.json"), modfile: filepath.Join(dir, "go.mod")}
	write(t, r.overlay, b)
	write(t, r.modfile, append(read(t, filepath.Join("..", "go.mod")), fmt.Sprintf("\nreplace %s => %s\n", module, virtual)...))
	write(t, filepath.Join(dir, "go.sum"), read(t, filepath.Join("..", "go.sum")))
	return r
}

// insert puts the taps into a source file, and keeps the numbers of its lines.
func insert(t *testing.T, file string, src []byte, list []tap) []byte {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	edits := map[int]string{}
	at := func(pos token.Pos, text string) { edits[fset.Position(pos).Offset] += text }
	imports := `; import "` + module + `/pkg/proxy/tape"`
	for _, p := range list {
		if strings.Contains(p.stmt, "strings.") && !bytes.Contains(src, []byte("\t\"strings\"\n")) {
			imports += `; import "strings"`
		}
	}
	at(f.Name.End(), imports)
	for _, p := range list {
		fn := function(f, p.fn)
		if fn == nil {
			t.Fatalf("%s: no func %s to tap", file, p.fn)
		}
		if !p.end {
			at(fn.Body.Lbrace+1, " "+p.stmt+"; ")
			continue
		}
		at(fn.Body.Lbrace+1, " defer func() { "+p.stmt+" }(); ")
		if res := fn.Type.Results; res != nil && len(res.List[0].Names) == 0 {
			open, end := "", ""
			if !res.Opening.IsValid() {
				open, end = "(", ")"
			}
			for i, r := range res.List {
				at(r.Pos(), fmt.Sprintf("%sr%d ", open, i))
				open = ""
			}
			at(res.List[len(res.List)-1].End(), end)
		}
	}
	var out []byte
	last := 0
	for _, offset := range slices.Sorted(maps.Keys(edits)) {
		out = append(append(out, src[last:offset]...), edits[offset]...)
		last = offset
	}
	return append(append(out, src[last:]...), "\nvar _ = tape.Say\n"...)
}

// function finds a function or method by name, or by Type.Method if several types have it.
func function(f *ast.File, name string) *ast.FuncDecl {
	typ, method, dotted := strings.Cut(name, ".")
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if !dotted && fn.Name.Name == name {
			return fn
		}
		if dotted && fn.Name.Name == method && fn.Recv != nil {
			recv := fn.Recv.List[0].Type
			if star, ok := recv.(*ast.StarExpr); ok {
				recv = star.X
			}
			if id, ok := recv.(*ast.Ident); ok && id.Name == typ {
				return fn
			}
		}
	}
	return nil
}

// record runs the tests of a package, which must pass, and returns their table.
func (r *recorder) record(t *testing.T, table table) []byte {
	// One test at a time, so that each fact belongs to the test that runs.
	out := run(t, "go", "test", "-json", "-parallel=1", "-trimpath", "-vet=off", "-skip="+table.skip,
		"-modfile="+r.modfile, "-overlay="+r.overlay, module+"/"+table.pkg)
	var order []string
	said := map[string]*strings.Builder{}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var e struct{ Action, Test, Output string }
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Action != "output" || e.Test == "" {
			continue
		}
		if said[e.Test] == nil {
			said[e.Test] = new(strings.Builder)
			order = append(order, e.Test)
		}
		said[e.Test].WriteString(e.Output)
	}
	slices.Sort(order)
	var all []taped
	for _, name := range order {
		if facts := table.facts(t, said[name].String()); len(facts) > 0 {
			all = append(all, taped{name, facts})
		}
	}
	var b bytes.Buffer
	b.WriteString("[\n")
	for i, test := range all {
		fmt.Fprintf(&b, "{\"test\": %q, \"facts\": [\n", test.Test)
		for j, f := range test.Facts {
			fmt.Fprintf(&b, "  {\"kind\": %q, \"is\": %s}%s\n", f.Kind, f.Is, comma(j, len(test.Facts)))
		}
		fmt.Fprintf(&b, "]}%s\n", comma(i, len(all)))
	}
	b.WriteString("]\n")
	return b.Bytes()
}

func comma(i, n int) string {
	if i < n-1 {
		return ","
	}
	return ""
}

// events are kinds of facts that count each time, even if equal.
var events = []string{"queued", "updated", "probe", "check", "nodePorts", "nodeIPs"}

// facts extracts a table's facts from the output of a test. It omits a fact that equals the
// previous one of its kind.
func (table table) facts(t *testing.T, said string) []fact {
	var out []fact
	last := map[string]string{}
	for line := range strings.Lines(said) {
		rest, ok := strings.CutPrefix(line, "@tape ")
		if !ok {
			continue
		}
		kind, is, _ := strings.Cut(strings.TrimSuffix(rest, "\n"), " ")
		if !slices.Contains(table.kinds, kind) {
			continue
		}
		if !json.Valid([]byte(is)) {
			t.Fatalf("not a fact: %s", line)
		}
		switch {
		case kind == "services" || kind == "slices":
			clear(last)
		case last[kind] == is && !slices.Contains(events, kind):
			continue
		case kind == "flow" && last["proxier"] == "": // through rules that are written in the test
			continue
		}
		last[kind] = is
		out = append(out, fact{kind, json.RawMessage(is)})
	}
	// A fact about the whole replaces facts about its parts, which are states in between.
	for _, whole := range []string{"changedPools", "pools"} {
		if slices.ContainsFunc(out, func(f fact) bool { return f.Kind == whole }) {
			out = slices.DeleteFunc(out, func(f fact) bool {
				return f.Kind == "somePools" || f.Kind == "changedPools" && whole == "pools"
			})
		}
	}
	return out
}

func run(t *testing.T, name string, args ...string) string {
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", name, err, stderr.String(), last(string(out), 4000))
	}
	return string(out)
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

func walk(t *testing.T, dir string, visit func(path string)) {
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			visit(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) []byte {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, file string, data []byte) {
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o666); err != nil {
		t.Fatal(err)
	}
}
