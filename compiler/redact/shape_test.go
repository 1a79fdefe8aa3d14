package redact_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/redact"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// someServices are names whose order is another one where something stands behind them.
var someServices = []string{"zz", "web", "web-1", "web-1-a", "w3b", "alpha", "alpha0"}

// rename gives the objects of a world other names, and some of them the same age.
func rename(w *reviewtest.World, r *reviewtest.Random) {
	r.Shuffle(len(someServices), func(i, j int) { someServices[i], someServices[j] = someServices[j], someServices[i] })
	names := map[ir.Name]ir.Name{}
	for i, s := range w.Services {
		names[s.Name] = ir.Name{Namespace: reviewtest.Pick(r, []string{"team", "team-2"}), Name: someServices[i]}
		s.Name = names[s.Name]
		s.Object, s.Created = "Service "+s.Name.String(), time.Unix(int64(r.IntN(3)), 0)
	}
	for i, s := range w.Slices {
		s.Service = names[s.Service]
		s.Name = ir.Name{Namespace: s.Service.Namespace, Name: fmt.Sprintf("es-%s-%d", s.Service.Name, r.IntN(1000))}
		s.Object = "EndpointSlice " + s.Name.String()
		for j := range s.Endpoints {
			s.Endpoints[j].Pod = fmt.Sprintf("pod-%d-%d", i, r.IntN(20))
		}
	}
}

// redacted is a text with the stand-ins of what stands in it.
type redacted struct{ *redact.Redactor }

var (
	addrWords = regexp.MustCompile(`(?:[0-9a-f]*(?::[0-9a-f]*){2,}|\d+\.\d+\.\d+\.\d+)(?:/\d+)?`)
	nameWords = regexp.MustCompile(`[a-z0-9](?:[a-z0-9-]*[a-z0-9])?`)
	classes   = []struct {
		redact.Class
		names *regexp.Regexp
	}{
		{redact.Slice, regexp.MustCompile(`^es-`)},
		{redact.Pod, regexp.MustCompile(`^pod-\d`)},
		{redact.Service, regexp.MustCompile(`^(` + strings.Join(someServices, "|") + `)$`)},
		{redact.Namespace, regexp.MustCompile(`^team(-2)?$`)},
		{redact.Node, regexp.MustCompile(`^node\d$`)},
		{redact.Zone, regexp.MustCompile(`^zone-\d$`)},
		{redact.Range, regexp.MustCompile(`^kubernetes$`)},
		{redact.Link, regexp.MustCompile(`^cni0?$`)},
		{redact.Text, regexp.MustCompile(`^nonsense$`)},
		{redact.Port, regexp.MustCompile(`^p\d$`)},
	}
)

func (r redacted) text(text string) string {
	text = nameWords.ReplaceAllStringFunc(text, func(word string) string {
		for _, c := range classes {
			if c.names.MatchString(word) {
				return r.Name(c.Class, word)
			}
		}
		return word
	})
	return addrWords.ReplaceAllStringFunc(text, func(word string) string {
		if a, err := netip.ParseAddr(word); err == nil {
			return r.Addr(a).String()
		}
		if p, err := netip.ParsePrefix(word); err == nil {
			return r.Prefix(p).String()
		}
		return word
	})
}

// inOrder returns the lines of a text with those of the backends of a pool, and of findings,
// in order: the compiler sorts them by texts of addresses and of names with what stands between.
func inOrder(text string) string {
	lines := strings.Split(text, "\n")
	for from := 0; from < len(lines); {
		to := from + 1
		for sorted.MatchString(lines[from]) && to < len(lines) && sorted.MatchString(lines[to]) {
			to++
		}
		slices.Sort(lines[from:to])
		from = to
	}
	return strings.Join(lines, "\n")
}

var sorted = regexp.MustCompile(`^( (\[|\d)|(Service|EndpointSlice|Node|config)\b.*: )`)

// anyOf matches where a reason names one endpoint of several: the first by its address, which
// redaction does not keep in order.
var anyOf = regexp.MustCompile(`\S+ (?:(is not ready|has none)|(and \d+ more))`)

// suchAs matches the same in a finding about shared endpoints, with the Service that has that one,
// too.
var suchAs = regexp.MustCompile(`such as \S+ with Service \S+:`)

// written is the canonical text of Programs, without what aligns it, and what was found.
func written(t *testing.T, programs ir.Programs, diags diag.List) string {
	t.Helper()
	var out strings.Builder
	if err := review.WriteFormat(&out, programs, "ir"); err != nil {
		t.Fatal(err)
	}
	for _, d := range diags.Sorted() {
		fmt.Fprintln(&out, d)
	}
	text := regexp.MustCompile(` +`).ReplaceAllString(out.String(), " ")
	text = strings.ReplaceAll(text, "kubernetes#", "#") // an issue's number is no name
	text = suchAs.ReplaceAllString(text, "such as one:")
	return anyOf.ReplaceAllString(text, "one $1$2")
}

// TestRedactKeepsShape: apart from stand-ins, redacted objects and configuration compile to the
// same rules as the originals, packets have the same results, and proofs and differences are equal.
func TestRedactKeepsShape(t *testing.T) {
	start := applytest.Seed(t)
	for seed := start; seed < start+120; seed++ {
		mode := ir.Modes()[seed%uint64(len(ir.Modes()))]
		r := reviewtest.New(seed, 15)
		w := r.World(mode)
		rename(w, r)
		cfg := reviewtest.ParseConfig(t, mode, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"))
		w.Config(cfg)
		config.SetDefaults(cfg)
		var addrs []netip.Prefix
		for _, i := range w.Facts.Interfaces {
			addrs = append(addrs, i.Addrs...)
		}
		snap := w.Snapshot(nil)
		objects := snap.Document().Objects()
		red := redacted{redact.New(objects, cfg, w.Facts.NodeName, nil, addrs...)}
		red.Objects(objects)
		var file strings.Builder
		if err := objects.Write(&file); err != nil {
			t.Fatal(err)
		}
		again := snapshot.New()
		for _, d := range manifest.Decode(again, "redacted", []byte(file.String())) {
			if d.Severity == diag.Error {
				t.Errorf("seed %d: %s", seed, d)
			}
		}
		facts := compiler.Facts{NodeName: red.Name(redact.Node, w.Facts.NodeName)}
		for _, i := range w.Facts.Interfaces {
			one := compiler.Interface{Name: i.Name}
			for _, a := range i.Addrs {
				one.Addrs = append(one.Addrs, red.Prefix(a))
			}
			facts.Interfaces = append(facts.Interfaces, one)
		}
		programs, found := reviewtest.Compile(t, cfg, snap, w.Facts)
		other, foundOther := reviewtest.Compile(t, red.Config(cfg), again, facts)
		want, got := inOrder(red.text(written(t, programs, found))), inOrder(written(t, other, foundOther))
		if want != got {
			t.Fatalf("seed %d, %s:\n%s", seed, mode, diff.Diff("want", []byte(want), "got", []byte(got)))
		}
		for f, p := range programs.All() {
			if p != nil {
				sameFates(t, seed, r, red, p, other.Of(f))
			}
		}
		if t.Failed() {
			return
		}
	}
}

// tableName is what a Maglev table is called, of which redacted addresses make another one.
var tableName = regexp.MustCompile(`(maglev:\d+):[0-9a-f]+`)

// link is the interface that a packet comes from, whose name or prefix the configuration may contain.
func (r redacted) link(name string) string {
	if prefix := r.Name(redact.Link, "cni"); prefix != "cni" && strings.HasPrefix(name, "cni") {
		return prefix + name[len("cni"):]
	}
	return r.Name(redact.Link, name)
}

func sameFates(t *testing.T, seed uint64, r *reviewtest.Random, red redacted, p, other *ir.Program) {
	t.Helper()
	a, b := sim.NewEvaluator(p), sim.NewEvaluator(other)
	for range 50 {
		pkt := r.Packet(p)
		mapped := pkt
		mapped.Src, mapped.Dst, mapped.In = red.Addr(pkt.Src), red.Addr(pkt.Dst), red.link(pkt.In)
		want, got := red.text(a.Outcome(pkt, nil).String()), b.Outcome(mapped, nil).String()
		want, got = tableName.ReplaceAllString(want, "$1"), tableName.ReplaceAllString(got, "$1")
		if want != got {
			t.Errorf("seed %d, %s: %+v: %s, redacted %s", seed, p.Node.Mode, pkt, want, got)
		}
	}
	if seed%5 == 0 {
		want, got := red.text(verdicts(t, p)), verdicts(t, other)
		if want != got {
			t.Errorf("seed %d, %s: %s, redacted %s", seed, p.Node.Mode, want, got)
		}
	}
}

// verdicts returns whether a Program's rules are proved, and what differs where its first
// Service has gone.
func verdicts(t *testing.T, p *ir.Program) string {
	t.Helper()
	proof, err := prove.Compare(t.Context(), prove.NodeOf(p), sim.NewEvaluator(p), review.Modes[p.Node.Mode].Evaluate(p))
	if err != nil {
		t.Fatal(err)
	}
	less := *p
	less.Services = less.Services[min(1, len(less.Services)):]
	found, _, err := flow.Compare(t.Context(), flow.Network{}, p, &less)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("equal %t, doubts %t:", len(proof.Differences) == 0, len(proof.Doubts) > 0)
	for _, s := range found {
		text += fmt.Sprintf(" %s %s with %d flows", s.Name, s.Action, len(s.Flows))
	}
	return text
}
