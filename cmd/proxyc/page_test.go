package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// askedOfPage are packets under one Program.
type askedOfPage struct {
	Caps    []string    `json:"caps"`
	Program *ir.Program `json:"program"`
	Packets [][2]string `json:"packets"` // from and to, as they are typed in the page

	where   string
	packets []sim.Packet
}

func newAskedOfPage(where string, p *ir.Program) *askedOfPage {
	return &askedOfPage{Caps: strings.Split(p.Node.Mode.Capabilities().String(), "|"), Program: p, where: where}
}

func (a *askedOfPage) add(pkt sim.Packet) {
	from := pkt.Src.String()
	if !pkt.FromNode() {
		from += "@" + pkt.In
	}
	a.packets = append(a.packets, pkt)
	a.Packets = append(a.Packets, [2]string{from, ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port}.String()})
}

// pageAnswer is what sim.js says of a packet.
type pageAnswer struct {
	Fate         string                  `json:"fate"`
	Destinations []trace.DestinationJSON `json:"destinations"`
	Affinity     string                  `json:"affinity"`
	Others       []string                `json:"others"`
	Steps        []pageStep              `json:"steps"`
	Hindrances   []pageStep              `json:"hindrances"`
}

type pageStep struct {
	Text   string `json:"text"`
	Origin string `json:"origin"`
}

// want is what ir/sim says of it.
func (a *askedOfPage) want(e *sim.Evaluator, pkt sim.Packet) pageAnswer {
	o, steps := e.Explain(pkt)
	out := pageAnswer{Fate: o.Fate.String(), Destinations: []trace.DestinationJSON{}, Others: []string{}, Steps: []pageStep{}, Hindrances: []pageStep{}}
	for _, d := range o.Destinations {
		out.Destinations = append(out.Destinations, trace.DestinationJSON{Address: d.AddrPort, Masquerade: d.SNAT})
	}
	if o.Affinity {
		out.Affinity = o.Timeout.String()
	}
	for _, e := range o.Fallback {
		out.Others = append(out.Others, e.Fate.String())
	}
	for _, s := range steps {
		out.Steps = append(out.Steps, pageStep{s.Text, originOf(s.Origin)})
	}
	for _, h := range e.Hindrances(pkt) {
		out.Hindrances = append(out.Hindrances, pageStep{h.Text, originOf(h.Origin)})
	}
	return out
}

func originOf(o ir.Origin) string {
	if o == (ir.Origin{}) {
		return ""
	}
	return o.String()
}

// TestPageTraces holds the trace in the page of a report against ir/sim, step by step: for
// random worlds in every mode, and for the flows of the conformance cases. It runs
// sim.js in a browser.
func TestPageTraces(t *testing.T) {
	browser := chromium(t)
	asked := append(randomAsked(t), conformanceAsked(t)...)
	answers := askPage(t, browser, asked)
	fates, modes, wrong := map[string]int{}, map[ir.Mode]int{}, 0
	for i, a := range asked {
		e := sim.NewEvaluator(a.Program)
		if len(answers[i]) != len(a.packets) {
			t.Fatalf("%s: %d answers for %d packets", a.where, len(answers[i]), len(a.packets))
		}
		for j, pkt := range a.packets {
			want, got := a.want(e, pkt), answers[i][j]
			fates[want.Fate]++
			modes[a.Program.Node.Mode]++
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b trace.DestinationJSON) bool { return a == b })); diff != "" && wrong < 10 {
				wrong++
				t.Errorf("%s: mode %s: from %s to %s (-ir/sim +page):\n%s", a.where, a.Program.Node.Mode, a.Packets[j][0], a.Packets[j][1], diff)
			}
		}
	}
	t.Logf("%v %v", fates, modes)
	if len(fates) != 4 || len(modes) != len(ir.Modes()) {
		t.Error("not every fate, or not every mode: the test shows too little")
	}
}

// chromium returns the browser.
func chromium(t *testing.T) string {
	t.Helper()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		if slices.ContainsFunc([]string{"chromium", "all"}, func(name string) bool {
			return slices.Contains(strings.Split(os.Getenv("PROXYC_REQUIRE"), ","), name)
		}) {
			t.Fatalf("PROXYC_REQUIRE: %v", err)
		}
		t.Skipf("needs chromium, see make setup: %v", err)
	}
	return browser
}

// TestPageDiff: a report shows differences by effect, those that open access in red.
func TestPageDiff(t *testing.T) {
	browser, file := chromium(t), filepath.Join(t.TempDir(), "report.html")
	const dir = "../../testdata/review/"
	args := []string{"report", "-c", dir + "config.yaml", "-s", dir + "old", "--against", dir + "new", "--all-nodes", "-o", file}
	if code := run(testEnv(t, disk.OS{}, args...)); code != exitDone {
		t.Fatalf("exit code %d", code)
	}
	dom := string(dumpDOM(t, browser, file+"#diff"))
	var got []string
	for _, m := range regexp.MustCompile(`<div class="entry ([a-z-]+)"><h4><span class="tag ([a-z-]+)">([a-z-]+)</span>`).FindAllStringSubmatch(dom, -1) {
		if m[1] != m[2] || m[1] != m[3] {
			t.Errorf("entry of effect %s has the tag %s", m[1], m[3])
		}
		got = append(got, m[1])
	}
	if want := []string{"opens", "opens", "opens", "client-address", "other", "backends", "backends"}; !slices.Equal(got, want) {
		t.Errorf("entries have effects %v, want %v", got, want)
	}
	if !regexp.MustCompile(`(?m)\.opens \{ color: var\(--bad\); \}$`).MatchString(dom) || !strings.Contains(dom, `<div class="opens">dropped → served</div>`) {
		t.Error("what opens is not red")
	}
}

func randomAsked(t *testing.T) (all []*askedOfPage) {
	seed := applytest.Seed(t)
	for n := range uint64(25) {
		for _, mode := range ir.Modes() {
			r := reviewtest.New(seed, n)
			for _, p := range ir.Present(r.World(mode).Compile(t)) {
				a := newAskedOfPage(fmt.Sprintf("-seed=%d, world %d", seed, n), p)
				for range 30 {
					a.add(r.Packet(p))
				}
				all = append(all, a)
			}
		}
	}
	return all
}

func conformanceAsked(t *testing.T) (all []*askedOfPage) {
	for _, mode := range []ir.Mode{ir.ModeIPTables, ir.ModeNFTables, ir.ModeIPVS} {
		for _, family := range []string{applytest.IPv4, applytest.IPv6} {
			cases, err := applytest.LoadCases(os.DirFS(conformanceDir+"/cases"), family)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cases {
				all = append(all, caseAsked(t, c, mode)...)
			}
		}
	}
	return all
}

func caseAsked(t *testing.T, c *applytest.Case, mode ir.Mode) (all []*askedOfPage) {
	file, err := c.ConfigFile(string(mode))
	if err != nil {
		t.Fatal(err)
	}
	cfg := reviewtest.ParseConfig(t, mode, file)
	eachStage(t, c, func(n int, stage applytest.Step, data []byte) {
		snap, _ := reviewtest.Decode(data)
		programs, _ := reviewtest.Compile(t, cfg, snap, topologyFacts())
		tracer := trace.NewTracer(&review.Input{Resolved: &config.Resolved{Config: cfg}, Snapshot: snap, Facts: topologyFacts()}, programs)
		of := map[*ir.Program]*askedOfPage{}
		for j := range stage.Flows {
			f := &stage.Flows[j]
			if f.From == "" || f.To == "" {
				continue
			}
			dst, proto, err := f.Target()
			if err != nil {
				t.Fatal(err)
			}
			pkt, _, err := tracer.Packet(sourceOf(t, f.From, dst.Addr()), dst.String()+"/"+proto)
			if err != nil {
				t.Fatal(err)
			}
			p := programs.Of(ir.FamilyOf(pkt.Dst))
			if of[p] == nil {
				of[p] = newAskedOfPage(fmt.Sprintf("case %s, step %d", c.Name, n), p)
				all = append(all, of[p])
			}
			of[p].add(pkt)
		}
	})
	return all
}

// askPage has a browser run sim.js for all packets.
func askPage(t *testing.T, browser string, asked []*askedOfPage) (answers [][]pageAnswer) {
	t.Helper()
	program, err := os.ReadFile("page/sim.js")
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(asked) // which escapes < in texts
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "ask.html")
	text := fmt.Sprintf(`<!doctype html><meta charset="utf-8"><script type="application/json" id="data">%s</script><pre id="out"></pre><script>%s
document.getElementById("out").textContent = JSON.stringify(JSON.parse(document.getElementById("data").textContent).map(a => {
	const x = sim.index(a.program, a.caps);
	return a.packets.map(([from, to]) => sim.trace(x, sim.packet(from, to)));
}));
document.getElementById("data").remove();
</script>`, data, program)
	must(t, os.WriteFile(name, []byte(text), 0o644))
	out := dumpDOM(t, browser, name)
	_, rest, _ := strings.Cut(string(out), `<pre id="out">`)
	rest, _, _ = strings.Cut(rest, "</pre>")
	if err := json.Unmarshal([]byte(html.UnescapeString(rest)), &answers); err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
	if len(answers) != len(asked) {
		t.Fatalf("%d answers, want %d", len(answers), len(asked))
	}
	return answers
}

// dumpDOM returns the elements of a page after its scripts ran.
func dumpDOM(t *testing.T, browser, file string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=60000", "--dump-dom", "file://"+file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	return out
}
