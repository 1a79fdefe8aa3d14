package peer

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// A pair is both programs in one mode of one report.
type pair struct {
	*report
	mode      string
	peer, own *result
}

// pairs returns the modes in which at least one of the programs was measured.
func pairs(reports []*report) (all []pair) {
	for _, r := range reports {
		at := map[string]int{}
		for _, found := range r.Results {
			i, ok := at[found.Mode]
			if !ok {
				i = len(all)
				at[found.Mode] = i
				all = append(all, pair{report: r, mode: found.Mode})
			}
			if found.Program == peerName {
				all[i].peer = found
			} else {
				all[i].own = found
			}
		}
	}
	return all
}

// value returns a metric of a result in the metric's unit; ok reports whether it was measured.
func (m metric) value(r *result) (v float64, ok bool) {
	if r == nil {
		return 0, false
	}
	v, ok = r.Values[m.key]
	return max(v, m.least) * m.scale, ok
}

// text returns a value with three digits. It marks one that is below the resolution.
func (m metric) text(v float64, ok bool) string {
	switch {
	case !ok:
		return "?"
	case m.least > 0 && v <= m.least*m.scale:
		return "< " + digits(v)
	}
	return digits(v)
}

// ratio returns how many times as good proxyc is.
func (m metric) ratio(peer, own float64) float64 {
	if m.better == higher {
		return own / peer
	}
	return peer / own
}

// show prints tables, and draws plots into dir if it is set.
func show(w io.Writer, dir string, reports []*report) error {
	for _, p := range pairs(reports) {
		if _, err := io.WriteString(w, p.table()); err != nil {
			return err
		}
	}
	for _, r := range reports {
		if _, err := io.WriteString(w, r.wireTable()); err != nil {
			return err
		}
	}
	if dir == "" {
		return nil
	}
	return draw(dir, pairs(reports))
}

// title describes the options of a pair.
func (p pair) title() string {
	o := p.Options
	return fmt.Sprintf("%s, %v Services x %v endpoints, %v mix, minSyncPeriod %v", p.mode, o["services"], o["endpoints"], o["mix"], o["minSync"])
}

// table returns a pair in Markdown, ratios first.
func (p pair) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n", p.title())
	b.WriteString("| | times better | proxyc | kube-proxy | |\n|---|--:|--:|--:|---|\n")
	for _, m := range metrics {
		peer, ok1 := m.value(p.peer)
		own, ok2 := m.value(p.own)
		if !ok1 && !ok2 {
			continue
		}
		ratio := "?"
		if ok1 && ok2 && peer > 0 && own > 0 {
			ratio = digits(m.ratio(peer, own))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", m.what, ratio, m.text(own, ok2), m.text(peer, ok1), m.unit)
	}
	b.WriteString("\n")
	for _, r := range []*result{p.own, p.peer} {
		p.notes(&b, r)
	}
	fmt.Fprintf(&b, "Order: %v; medians of %v runs; %v changes of each kind, %v at once; the API server took the cluster in %.0f s.\n\n",
		p.Options["order"], p.Options["repeat"], p.Options["rounds"], p.Options["burst"], p.Load)
	for _, name := range slices.Sorted(maps.Keys(p.Versions)) {
		fmt.Fprintf(&b, "- %s: %s\n", name, p.Versions[name])
	}
	return b.String()
}

// wireTable returns the sizes, in all forms, of what a program reads at its start.
func (r *report) wireTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### All objects on the wire, %v Services x %v endpoints, %v mix\n\n| what | how | MB |\n|---|---|--:|\n",
		r.Options["services"], r.Options["endpoints"], r.Options["mix"])
	for _, w := range r.Wire {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", w.What, w.Form, digits(float64(w.Bytes)*1e-6))
	}
	return b.String()
}

// notes writes a program's requests, and what could not be measured.
func (p pair) notes(b *strings.Builder, r *result) {
	if r == nil {
		return
	}
	fmt.Fprintf(b, "Requests of %s to the API server:\n\n", r.Program)
	for _, q := range r.Requests {
		fmt.Fprintf(b, "- %s %s `%s`: %d at start, %d later\n", q.Verb, q.Resource, q.Query, q.Start, q.Later)
	}
	for _, key := range []string{"connect.failed", "churn.failed"} {
		if n := r.Values[key]; n > 0 {
			fmt.Fprintf(b, "- %s: %.0f\n", key, n)
		}
	}
	for _, e := range r.Errors {
		first, _, _ := strings.Cut(e, "\n") // the log's last lines follow
		fmt.Fprintf(b, "- not measured: %s\n", first)
	}
	b.WriteString("\n")
}

// digits returns a number with three significant digits.
func digits(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
