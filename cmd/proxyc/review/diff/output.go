package diff

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/sim"
)

// diffForms maps the name of an output format to its writer.
var diffForms = map[string]func(io.Writer, *Diff) error{
	"text":     func(w io.Writer, d *Diff) error { return d.WriteText(w, false) },
	"wide":     func(w io.Writer, d *Diff) error { return d.WriteText(w, true) },
	"json":     func(w io.Writer, d *Diff) error { return d.WriteJSON(w) },
	"markdown": func(w io.Writer, d *Diff) error { return d.WriteMarkdown(w) },
	"stat":     func(w io.Writer, d *Diff) error { return d.writeStat(w) },
}

// Form returns the writer of an output format.
func Form(name string) (write func(io.Writer, *Diff) error, ok bool) {
	write, ok = diffForms[name]
	return write, ok
}

// FormNames returns the names that Form accepts.
func FormNames() []string { return slices.Sorted(maps.Keys(diffForms)) }

// sign returns the sign of an action, as in the output of terraform and diff.
func sign(a flow.Action) string {
	return [...]string{flow.Changed: "~", flow.Added: "+", flow.Removed: "-"}[a]
}

// valueSign returns the sign of a changed value.
func valueSign(before, after string) string {
	switch {
	case before == "":
		return "+"
	case after == "":
		return "-"
	}
	return "~"
}

func arrow(before, after string) string {
	return cmp.Or(before, "none") + " → " + cmp.Or(after, "none")
}

// onNodes returns the text that names the nodes of a difference, or "" for all nodes.
func (d *Diff) onNodes(nodes []string) string {
	nodes = compacted(nodes)
	if len(nodes) == len(d.Nodes) {
		return ""
	}
	return " (on " + review.FirstOf(nodes, 5) + ")"
}

// compacted returns the names sorted and without duplicates.
func compacted(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

func serviceName(n ir.Name) string {
	if n == (ir.Name{}) {
		return "no Service"
	}
	return n.String()
}

// shownNames is the maximum number of Service names in the title of a group.
const shownNames = 3

// entries returns the entries of the output, by effect. If each is set, every Service has its own
// entry.
func (d *Diff) entries(each bool) (entries []flow.Entry) {
	if !each {
		return flow.Entries(d.Services)
	}
	for _, s := range d.Services {
		entries = append(entries, flow.Entry{Service: s, Names: []ir.Name{s.Name}})
	}
	return entries
}

// sections returns the entries of each effect, for effects with entries or settings.
func (d *Diff) sections(each bool) iter.Seq2[flow.Effect, []flow.Entry] {
	return func(yield func(flow.Effect, []flow.Entry) bool) {
		entries := d.entries(each)
		for _, e := range flow.Effects() {
			n := 0
			for n < len(entries) && entries[n].Effect == e {
				n++
			}
			if (n > 0 || e == flow.Other && d.settings() > 0) && !yield(e, entries[:n]) {
				return
			}
			entries = entries[n:]
		}
	}
}

// WriteText writes a paragraph for each change. If wide is set, every Service has its own
// paragraph, and each change has a trace command.
func (d *Diff) WriteText(w io.Writer, wide bool) error {
	for effect, entries := range d.sections(wide) {
		fmt.Fprintf(w, "%s: %s\n", effect, effect.Meaning())
		if effect == flow.Other {
			d.writeSettings(w, wide)
		}
		for i := range entries {
			d.writeEntry(w, &entries[i], wide)
		}
	}
	return d.writeSummary(w, "")
}

func (d *Diff) writeSettings(w io.Writer, wide bool) {
	if d.settings() > 0 {
		fmt.Fprintln(w, "settings")
	}
	for _, c := range d.Config {
		source := ""
		if wide {
			source = fmt.Sprintf("  # %s, %s", c.Before.Source, c.After.Source)
		}
		fmt.Fprintf(w, "  ~ %s: %s%s\n", c.Path, arrow(c.Before.Value, c.After.Value), source)
	}
	for _, f := range d.Facts {
		fmt.Fprintf(w, "  %s %s: %s on %s\n", valueSign(f.Before, f.After), f.What, arrow(f.Before, f.After), strings.Join(compacted(f.Nodes), ", "))
	}
}

func (d *Diff) writeEntry(w io.Writer, g *flow.Entry, wide bool) {
	title := sign(g.Action) + " " + serviceName(g.Name)
	if n := len(g.Names); n > 1 {
		title = fmt.Sprintf("%s %d Services with the same change: %s. Shown for the first:", sign(g.Action), n, review.FirstBy(g.Names, shownNames, serviceName))
	}
	fmt.Fprintln(w, title)
	last := ""
	for i := range g.Flows {
		f := &g.Flows[i]
		if to := d.to(f); to != last {
			fmt.Fprintf(w, "    %s\n", to)
			last = to
		}
		fmt.Fprintf(w, "      %s: %s%s\n", flow.ClientsText(f.From), f.Change.String(), d.onNodes(f.Nodes))
		fmt.Fprintf(w, "        was: %s\n        is:  %s\n", d.cause(f, 0, "  # "), d.cause(f, 1, "  # "))
		if f.Design != 0 {
			fmt.Fprintf(w, "        by design: %s\n", f.Design)
		}
		if wide {
			for _, b := range f.Added {
				fmt.Fprintf(w, "        +%s: %s\n", b.AddrPort, b.Origin)
			}
			for _, b := range f.Removed {
				fmt.Fprintf(w, "        -%s: %s\n", b.AddrPort, b.Origin)
			}
			fmt.Fprintf(w, "        proxyc trace %s\n", traceFlags(f))
		}
	}
	for _, n := range g.Notes {
		fmt.Fprintf(w, "    %s: %s%s\n", n.Title(), arrow(n.Before, n.After), d.onNodes(n.Nodes))
	}
}

// traceFlags returns the flags of trace for the first packet of a flow, on the first node with it.
func traceFlags(f *flow.Flow) string {
	return "--node " + review.ShellWord(slices.Min(f.Nodes)) + " " + review.PacketFlags(f.Example.Packet)
}

// to describes the destinations of a flow. It names the family if both families change, since node
// ports and stand-ins look the same in both.
func (d *Diff) to(f *flow.Flow) string {
	text := flow.DestinationsText(f.To)
	if d.bothFamilies {
		text = f.Family.String() + " " + text
	}
	return text
}

// cause returns the cause of a flow on one side, with its position.
func (d *Diff) cause(f *flow.Flow, side int, at string) string {
	text := f.Cause[side].String()
	if position := d.position(side, f.Cause[side]); position != "" {
		text += at + position
	}
	return text
}

// writeSummary writes the numbers of differences, and the size of the comparison.
func (d *Diff) writeSummary(w io.Writer, mark string) error {
	text, ignored, flows := "", effectsText(d.Ignored), "flow"
	if len(d.NotCompared) > 0 {
		flows = "flow of Services"
	}
	d.writeNotCompared(w, mark != "")
	switch n := flow.Count(d.Services); {
	case len(d.Services) > 0:
		text = fmt.Sprintf("Services: %d added, %d changed, %d removed. Changes: %s.", n.Added, n.Changed, n.Removed, effectsText(n.Effects))
	case len(d.Unknown)+len(d.NotRead)+d.Wrong > 0:
		text = "No known " + flows + " changes."
	case ignored != "":
		text = "No other " + flows + " changes."
	default:
		text = "No " + flows + " changes."
	}
	text += fmt.Sprintf(" Settings: %d changed.", d.settings())
	if len(d.Unknown) > 0 {
		text += " Unknown: " + strings.Join(d.Unknown, "; ") + "."
	} else {
		text += fmt.Sprintf(" Compared: %s, %s, %s.", review.Counted(d.Compared.Services, "Service"), review.Counted(d.Compared.Destinations, "destination"), review.Counted(len(d.Nodes), "node"))
	}
	if ignored != "" {
		text += " Ignored: " + ignored + "."
	}
	if d.Wrong > 0 {
		text += fmt.Sprintf(" Errors: %s, not fully compared.", review.Counted(d.Wrong, "object"))
	}
	_, err := fmt.Fprintf(w, "%s%s%s\n", mark, text, mark)
	return err
}

// Changes returns how many Services and settings differ: "1 Service changed, 1 Service removed".
func (d *Diff) Changes() string {
	n := flow.Count(d.Services)
	var parts []string
	for _, p := range [...]struct {
		n              int
		noun, happened string
	}{{n.Added, "Service", " added"}, {n.Changed, "Service", " changed"}, {n.Removed, "Service", " removed"}, {d.settings(), "setting", " changed"}} {
		if p.n > 0 {
			parts = append(parts, review.Counted(p.n, p.noun)+p.happened)
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "no flow of Services changes")
}

// effectsText returns the numbers of changes by effect, without zeros.
func effectsText(counts map[flow.Effect]int) string {
	var parts []string
	for _, e := range flow.Effects() {
		if counts[e] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", e, counts[e]))
		}
	}
	return strings.Join(parts, ", ")
}

// writeStat writes a line for each effect on each Service, with the number of changes.
func (d *Diff) writeStat(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	for _, s := range d.Services {
		fmt.Fprintf(t, "%s\t%s %s\t%s\n", s.Effect, sign(s.Action), serviceName(s.Name), review.Counted(len(s.Flows)+len(s.Notes), "change"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return d.writeSummary(w, "")
}

// Limits of a comment on a pull request. GitHub accepts 65,536 characters. The limits count bytes,
// and a character has at least one byte.
const (
	shownEntries = 40       // complete entries
	mostSettings = 12 << 10 // bytes of all settings
	mostEntries  = 44 << 10 // bytes up to the end of the entries
	mostTaken    = 16 << 10 // bytes of the lines below the entries
)

// WriteMarkdown writes the differences as a comment for a pull request.
func (d *Diff) WriteMarkdown(out io.Writer) error {
	w := &bytes.Buffer{}
	if err := d.markdown(w); err != nil {
		return err
	}
	_, err := w.WriteTo(out)
	return err
}

// fits appends a line to a comment if the comment then has at most most bytes. It reports whether
// the line was appended.
func fits(w *bytes.Buffer, most int, line string) bool {
	if w.Len()+len(line) > most {
		return false
	}
	w.WriteString(line)
	return true
}

func (d *Diff) markdown(w *bytes.Buffer) error {
	fmt.Fprintf(w, "### proxyc diff\n\n")
	if err := d.writeSummary(w, "**"); err != nil {
		return err
	}
	if d.settings()+len(d.Services) == 0 {
		return nil
	}
	fmt.Fprint(w, "\n| effect | | Service | to | clients | change | decided by |\n|---|---|---|---|---|---|---|\n")
	var left []flow.Entry
	begun, entries, settings := 0, 0, 0
	for effect, section := range d.sections(false) {
		if effect == flow.Other {
			settings = d.markdownSettings(w)
		}
		for i := range section {
			shown, omitted := d.markdownEntry(w, &section[i], entries >= shownEntries)
			if entries++; !omitted {
				continue
			}
			left = append(left, section[i])
			if shown > 0 {
				begun++
			}
		}
	}
	if settings > 0 {
		fmt.Fprintf(w, "\n%d more settings: `proxyc diff -o text` lists them.\n", settings)
	}
	if len(left) > 0 {
		writeMore(w, left, begun)
	}
	return nil
}

// markdownSettings writes a row for each setting. It returns the number of those that it omits.
func (d *Diff) markdownSettings(w *bytes.Buffer) (omitted int) {
	most := min(w.Len()+mostSettings, mostEntries)
	row := func(before, after, what string) {
		if !fits(w, most, fmt.Sprintf("| %s | %s | | setting %s | | %s | |\n", flow.Other, valueSign(before, after), lint.Cell(what), lint.Cell(arrow(before, after)))) {
			omitted++
		}
	}
	for _, c := range d.Config {
		row(c.Before.Value, c.After.Value, c.Path)
	}
	for _, f := range d.Facts {
		row(f.Before, f.After, fmt.Sprintf("%s (%s)", f.What, strings.Join(compacted(f.Nodes), ", ")))
	}
	return omitted
}

// markdownEntry writes a row for each change of an entry, unless omitted is set, until one does not
// fit. It returns the number of rows, and whether some are omitted.
func (d *Diff) markdownEntry(w *bytes.Buffer, g *flow.Entry, omitted bool) (shown int, _ bool) {
	name := review.FirstBy(g.Names, shownNames, serviceName)
	row := func(cells ...string) {
		line := fmt.Sprintf("| %s | %s | %s |", g.Effect, sign(g.Action), lint.Cell(name))
		for _, c := range cells {
			line += " " + c + " |"
		}
		if omitted = omitted || !fits(w, mostEntries, line+"\n"); !omitted {
			shown++
		}
		name = ""
	}
	for i := range g.Flows {
		f := &g.Flows[i]
		row(lint.Cell(d.to(f)), lint.Cell(flow.ClientsText(f.From)), lint.Cell(f.Change.String()+d.onNodes(f.Nodes)),
			"was: "+lint.Cell(d.cause(f, 0, ", "))+"<br>is: "+lint.Cell(d.cause(f, 1, ", ")))
	}
	for _, n := range g.Notes {
		row("", "", lint.Cell(n.Title()+": "+arrow(n.Before, n.After)+d.onNodes(n.Nodes)), "")
	}
	return shown, omitted
}

// writeMore ends a comment with the number of entries that it omits or truncates. It always lists
// briefly the entries in which Services take addresses, so that earlier content cannot hide them.
func writeMore(w io.Writer, entries []flow.Entry, begun int) {
	lines, omitted := &bytes.Buffer{}, 0
	for _, g := range entries {
		text := g.HijackedText()
		if text != "" && !fits(lines, mostTaken, fmt.Sprintf("- %s: %s\n", lint.Cell(serviceName(g.Name)), lint.Cell(text))) {
			omitted++
		}
	}
	more := fmt.Sprintf("\n%d more entries", len(entries))
	if begun > 0 {
		more += fmt.Sprintf(", %d of them partly above", begun)
	}
	more += ": `proxyc diff -o text` lists them."
	if lines.Len()+omitted > 0 {
		more += " In them, Services claim these external IPs:\n"
	}
	if omitted > 0 {
		fmt.Fprintf(lines, "- and those of %d more Services\n", omitted)
	}
	fmt.Fprintf(w, "%s\n%s", more, lines)
}

// The document of -o json.
type (
	diffJSON struct {
		Nodes    []string            `json:"nodes"`
		Settings []settingJSON       `json:"settings"`
		Services []serviceJSON       `json:"services"`
		Counts   flow.Counts         `json:"counts"`
		Compared Compared            `json:"compared"`
		Ignored  map[flow.Effect]int `json:"ignored,omitempty"`
		Unknown  []string            `json:"unknown,omitempty"` // what was not compared because the time was up
		Wrong    int                 `json:"objectsWithErrors,omitzero"`

		NotCompared []string `json:"notCompared,omitempty"` // changed objects and settings of other kinds
		NotRead     []string `json:"notRead,omitempty"`     // files that differ, but whose objects are unknown
	}
	settingJSON struct {
		Path    string     `json:"path"`
		Nodes   []string   `json:"nodes,omitempty"` // nodes that the fact is about
		Before  string     `json:"before"`
		After   string     `json:"after"`
		Sources *[2]string `json:"sources,omitempty"`
	}
	serviceJSON struct {
		Effect flow.Effect `json:"effect"`
		Name   string      `json:"name"` // "" if the flow belongs to no Service
		Action flow.Action `json:"action"`
		Flows  []flowJSON  `json:"flows"`
		Notes  []flow.Note `json:"notes,omitempty"`
	}
	flowJSON struct {
		Family  ir.Family      `json:"family"`
		To      []string       `json:"to"`
		From    []flow.Clients `json:"from"`
		Before  stateJSON      `json:"before"`
		After   stateJSON      `json:"after"`
		Added   []backendJSON  `json:"added,omitempty"`
		Removed []backendJSON  `json:"removed,omitempty"`
		Moved   float64        `json:"moved,omitempty"`   // share of connections that move, 0 to 1
		Targets []string       `json:"targets,omitempty"` // workloads and ports of added backends that the Service did not have
		Waits   string         `json:"waits,omitempty"`   // what a new destination without endpoints waits for
		Design  string         `json:"design,omitempty"`  // capabilities in which the modes differ, if they are the reason
		Nodes   []string       `json:"nodes"`
		Trace   string         `json:"trace"`             // flags of proxyc trace
		Clients string         `json:"clients,omitempty"` // From and the change as texts, for the page
		Change  string         `json:"change,omitempty"`
	}
	stateJSON struct {
		Fate          string `json:"fate"`
		ClientAddress string `json:"clientAddress,omitempty"`
		Affinity      string `json:"affinity,omitempty"`
		Exact         string `json:"exact,omitempty"`
		Cause         string `json:"cause"`
		Place         string `json:"place,omitempty"` // position of the cause: FILE:LINE:COLUMN
	}
	backendJSON struct {
		Address string `json:"address"`
		Origin  string `json:"origin"`
	}
)

// WriteJSON writes a document of kind Diff.
func (d *Diff) WriteJSON(w io.Writer) error {
	return review.WriteDocument(w, "Diff", "  ", d.document(false))
}

// document returns the document. That of the page contains texts, too.
func (d *Diff) document(page bool) diffJSON {
	out := diffJSON{Nodes: d.Nodes, Settings: []settingJSON{}, Services: []serviceJSON{},
		Counts: flow.Count(d.Services), Compared: d.Compared, Ignored: d.Ignored, Unknown: d.Unknown, Wrong: d.Wrong, NotCompared: d.NotCompared, NotRead: d.NotRead}
	for _, c := range d.Config {
		out.Settings = append(out.Settings, settingJSON{Path: c.Path, Before: c.Before.Value, After: c.After.Value, Sources: &[2]string{c.Before.Source, c.After.Source}})
	}
	for _, f := range d.Facts {
		out.Settings = append(out.Settings, settingJSON{Path: f.What, Nodes: compacted(f.Nodes), Before: f.Before, After: f.After})
	}
	for i := range d.Services {
		out.Services = append(out.Services, d.serviceJSON(&d.Services[i], page))
	}
	return out
}

func (d *Diff) serviceJSON(s *flow.Service, page bool) serviceJSON {
	out := serviceJSON{Effect: s.Effect, Action: s.Action, Flows: []flowJSON{}}
	if s.Name != (ir.Name{}) {
		out.Name = s.Name.String()
	}
	for i := range s.Flows {
		f := &s.Flows[i]
		c := &f.Change
		one := flowJSON{Family: f.Family, From: f.From, Moved: c.Moved, Targets: c.Targets, Waits: c.Waits, Design: f.Design.String(), Nodes: compacted(f.Nodes), Trace: traceFlags(f)}
		if page {
			one.Clients, one.Change = flow.ClientsText(f.From), c.String()
		}
		for j := range f.To {
			one.To = append(one.To, f.To[j].String())
		}
		states := [2]stateJSON{}
		for side, fate := range [...]sim.Fate{c.Before, c.After} {
			states[side] = stateJSON{Fate: fate.String(), Exact: c.Exact[side], Cause: f.Cause[side].String(), Place: d.position(side, f.Cause[side])}
			if c.ChangesAddr() {
				states[side].ClientAddress = c.Kept[side]
			}
			if c.Affinity[side] != 0 {
				states[side].Affinity = flow.AffinityText(c.Affinity[side])
			}
		}
		one.Before, one.After = states[0], states[1]
		one.Added, one.Removed = backendsJSON(f.Added), backendsJSON(f.Removed)
		out.Flows = append(out.Flows, one)
	}
	for _, n := range s.Notes {
		n.Nodes = compacted(n.Nodes)
		out.Notes = append(out.Notes, n)
	}
	return out
}

func backendsJSON(all []flow.Backend) (out []backendJSON) {
	for _, b := range all {
		out = append(out, backendJSON{b.AddrPort.String(), b.Origin.String()})
	}
	return out
}

// PageJSON returns the fields of diff -o json for the page. It groups the same change of many
// Services into one entry, and includes the summary.
func (d *Diff) PageJSON() (json.RawMessage, error) {
	type entry struct {
		Names   []string    `json:"names"`
		Service serviceJSON `json:"service"`
	}
	out := struct {
		Doc     diffJSON `json:"doc"`
		Summary string   `json:"summary"`
		Both    bool     `json:"both"` // both families change
		Entries []entry  `json:"entries"`
	}{Doc: d.document(true), Both: d.bothFamilies, Entries: []entry{}}
	var summary bytes.Buffer
	if err := d.writeSummary(&summary, ""); err != nil {
		return nil, err
	}
	out.Summary = strings.TrimSpace(summary.String())
	for _, g := range d.entries(false) {
		one := entry{Service: d.serviceJSON(&g.Service, true)}
		for _, n := range g.Names {
			name := ""
			if n != (ir.Name{}) {
				name = n.String()
			}
			one.Names = append(one.Names, name)
		}
		out.Entries = append(out.Entries, one)
	}
	return json.Marshal(out)
}
