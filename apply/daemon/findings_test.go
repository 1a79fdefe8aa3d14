package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// The loser of an address that two Services claim is reported in the log, in an event and in the
// status, until it no longer loses. The same applies to a node port that an external IP hides.
func TestLosersAreNamed(t *testing.T) {
	f := newFileFollower(t)
	var events []watch.Event
	f.findings = newFindings(f.log, time.Now, func(e watch.Event) { events = append(events, e) })
	service := func(name, spec string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: ns}\nspec: {%s}\n---\n", name, spec)
	}
	victim := service("victim", "type: NodePort, clusterIP: 10.96.0.1, ports: [{port: 80, nodePort: 30080}]")
	thief := service("thief", "clusterIP: 10.96.0.2, externalIPs: [10.96.0.1, 192.0.2.1], ports: [{name: a, port: 80}, {name: b, port: 30080}]")
	node := fmt.Sprintf(nodeYAML, 1)
	const (
		lost   = "spec.externalIPs[0]: 10.96.0.1:80/tcp belongs to Service ns/victim, whose ClusterIP it is: it is ignored here"
		hidden = "spec.ports[0].nodePort: 30080/tcp at the node's address 192.0.2.1 is Service ns/thief's ExternalIP, which receives the packets to the node port there while it has endpoints"
	)
	thiefName, victimName := ir.Name{Namespace: "ns", Name: "thief"}, ir.Name{Namespace: "ns", Name: "victim"}
	for _, step := range []struct {
		name, cluster string
		events        []watch.Event
		status        string
	}{
		{"one alone", node + victim, nil, ""},
		{"another comes", node + victim + thief, []watch.Event{
			{Service: thiefName, Warning: true, Reason: "ServicePartInvalid", Action: "CompileService", Note: lost},
			{Service: victimName, Warning: true, Reason: "ServiceDoubtful", Action: "CompileService", Note: hidden},
		}, "finding      error: Service ns/thief: " + lost + "\nfinding      warning: Service ns/victim: " + hidden + "\n"},
		{"something else changes", fmt.Sprintf(nodeYAML, 1) + victim + thief + applytest.Services("z"), nil,
			"finding      error: Service ns/thief: " + lost + "\nfinding      warning: Service ns/victim: " + hidden + "\n"},
		{"it goes", node + victim, nil, ""},
	} {
		f.set(step.cluster)
		events = nil
		f.said.Reset()
		f.Take(reconcile.Change)
		if diff := cmp.Diff(step.events, events); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", step.name, diff)
		}
		if logged := strings.Count(f.said.String(), "level=ERROR") + strings.Count(f.said.String(), "level=WARN"); logged != len(step.events) {
			t.Errorf("%s: %d findings logged, want %d:\n%s", step.name, logged, len(step.events), f.said)
		}
		var st status.Status
		st.Findings, st.FindingsTotal = f.findings.first(shownFindings)
		var out bytes.Buffer
		if err := st.Print(&out); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(linesOf(out.String(), "finding"), "")
		if diff := cmp.Diff(step.status, got); diff != "" {
			t.Errorf("%s: status (-want +got):\n%s", step.name, diff)
		}
	}
}

// linesOf returns the lines of a text that start with a word.
func linesOf(text, word string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, word) {
			lines = append(lines, line)
		}
	}
	return lines
}

// A finding is reported once, until it disappears and returns. Resolved findings are not kept. A
// status shows the first of many.
func TestFindings(t *testing.T) {
	said := &bytes.Buffer{}
	events := 0
	f := newFindings(slog.New(slog.NewTextHandler(said, nil)), time.Now, func(watch.Event) { events++ })
	web := ir.Name{Namespace: "ns", Name: "web"}
	wrong := func() compiler.Findings {
		return compiler.Findings{web: diag.List{{Severity: diag.Error, Object: "Service ns/web", Msg: "is wrong"}}}
	}
	reported := func(what string, want int) {
		t.Helper()
		if got := strings.Count(said.String(), "is wrong"); got != want || events != want {
			t.Errorf("%s: logged %d times, %d events, want %d", what, got, events, want)
		}
	}
	f.replace(wrong())
	f.update(wrong())
	f.replace(wrong())
	reported("the same", 1)
	f.update(compiler.Findings{web: nil})
	f.update(wrong())
	reported("gone and back", 2)
	f.replace(compiler.Findings{})
	if first, total := f.first(10); len(first) != 0 || total != 0 || len(f.of) != 0 {
		t.Errorf("%d findings of %d are shown, and %d remembered, want none", len(first), total, len(f.of))
	}
	f.replace(compiler.Findings{{}: diag.List{{Severity: diag.Warning, Object: "Node n", Msg: "doubtful"}, {Severity: diag.Info, Msg: "by the way"}}})
	reported("the node is no Service", 2)
	for i := range 3 * shownFindings {
		name := ir.Name{Namespace: "ns", Name: fmt.Sprint(i)}
		f.update(compiler.Findings{name: diag.List{{Severity: diag.Error, Object: "Service " + name.String(), Msg: "bad"}}})
	}
	first, total := f.first(shownFindings)
	if len(first) != shownFindings || total != 3*shownFindings+1 || first[0].Severity != "error" {
		t.Errorf("%d of %d are shown, the first %+v", len(first), total, first[0])
	}
}

// Log lines about one namespace's findings are limited, without effect on others.
func TestFindingsLeaveRoomInTheLog(t *testing.T) {
	said := &bytes.Buffer{}
	at, events := time.Unix(1e9, 0), 0
	f := newFindings(slog.New(slog.NewTextHandler(said, nil)), func() time.Time { return at }, func(watch.Event) { events++ })
	round := 0
	logged := func(step string, of, omitted int, reports ...string) {
		t.Helper()
		said.Reset()
		events = 0
		round++
		found := compiler.Findings{}
		for i := range of {
			name := ir.Name{Namespace: "tenant", Name: fmt.Sprintf("s%04d", i)}
			found[name] = diag.List{{Severity: diag.Error, Object: "Service " + name.String(), Msg: fmt.Sprint("bad", round)}}
		}
		shop := ir.Name{Namespace: "shop", Name: "web"}
		found[shop] = diag.List{{Severity: diag.Warning, Object: "Service shop/web", Msg: fmt.Sprint("doubtful", round)}}
		found[ir.Name{}] = diag.List{{Severity: diag.Warning, Object: "Node n", Msg: fmt.Sprint("node", round)}}
		f.update(found)
		text := said.String()
		if got := strings.Count(text, "Service tenant/"); got != of-omitted || events != got+1 {
			t.Errorf("%s: %d of %d are logged, want %d; %d events", step, got, of, of-omitted, events)
		}
		if !strings.Contains(text, "Service shop/web") || !strings.Contains(text, "Node n") {
			t.Errorf("%s: others' are not logged:\n%s", step, text)
		}
		var got []string
		for _, line := range linesOf(text, "") {
			if _, report, is := strings.Cut(strings.TrimSuffix(line, "\n"), "namespace="); is {
				got = append(got, report)
			}
		}
		if diff := cmp.Diff(reports, got); diff != "" {
			t.Errorf("%s: reports (-want +got):\n%s", step, diff)
		}
	}
	logged("at once", 1000, 1000-findingBurst, fmt.Sprint("tenant omitted=", 1000-findingBurst))
	logged("again", 1000, 1000)
	at = at.Add(findingEvery)
	logged("a period later", 1000, 1000, "tenant omitted=2000")
	at = at.Add(3 * findingEvery)
	logged("three periods later", 10, 8, "tenant omitted=8")
	at = at.Add(time.Hour)
	logged("long after", 1, 0)
	at = at.Add(time.Hour)
	f.update(compiler.Findings{})
	if len(f.lines) != 0 {
		t.Errorf("%d namespaces are remembered that had their whole budget, want none", len(f.lines))
	}
}

// Many findings of one namespace do not hide others in a status: namespaces take turns.
func TestFindingsOfAllNamespaces(t *testing.T) {
	f := newFindings(slog.New(slog.DiscardHandler), time.Now, func(watch.Event) {})
	add := func(severity diag.Severity, namespace, name string) {
		svc := ir.Name{Namespace: namespace, Name: name}
		f.update(compiler.Findings{svc: diag.List{{Severity: severity, Object: "Service " + svc.String(), Msg: "bad"}}})
	}
	for i := range 3 * shownFindings {
		add(diag.Error, "a-tenant", fmt.Sprintf("s%03d", i))
	}
	add(diag.Warning, "shop", "cart")
	add(diag.Warning, "shop", "doubtful")
	add(diag.Error, "shop", "web")
	add(diag.Error, "zoo", "bear")
	st := status.Status{}
	st.Findings, st.FindingsTotal = f.first(shownFindings)
	var out bytes.Buffer
	if err := st.Print(&out); err != nil {
		t.Fatal(err)
	}
	lines := linesOf(out.String(), "finding")
	var want []string
	for i := range shownFindings - 4 {
		want = append(want, fmt.Sprintf("a-tenant/s%03d", i))
	}
	want = append(want, "shop/web", "zoo/bear", "shop/cart", "shop/doubtful") // errors before warnings
	if len(lines) < len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out.String())
	}
	for i, name := range want {
		if !strings.Contains(lines[i], "Service "+name+": bad") {
			t.Errorf("line %d must be of %s, got %s", i, name, lines[i])
		}
	}
	if st.FindingsTotal != 3*shownFindings+4 {
		t.Errorf("%d in all, want %d", st.FindingsTotal, 3*shownFindings+4)
	}
}
