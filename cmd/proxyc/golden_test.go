package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render"
)

const goldenDir = "../../testdata/compile"

var update = flag.Bool("update", false, "rewrite the wanted sections of testdata/compile, as far as the real tools accept them")

// golden is one file of testdata/compile. The README there documents the format.
type golden struct {
	path    string
	archive *txtar.Archive

	covers []string // rules
	modes  []ir.Mode
	node   string
	whole  bool

	config  []byte
	nodes   []byte
	objects []byte
	packets []packetRow
	want    map[string]string // other sections
}

// packetRow is one row of the packets section.
type packetRow struct {
	modes    []ir.Mode // "" for all modes of the file
	from, to string
	want     string
}

// TestGolden compiles each file of testdata/compile in each of its modes, and
// compares IR, diagnostics, rules and the fate of packets.
func TestGolden(t *testing.T) {
	for _, path := range goldenFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			g := readGolden(t, path)
			got := g.compile(t)
			switch {
			case t.Failed():
			case *update:
				g.rewrite(t, got)
			default:
				g.compare(t, got)
			}
		})
	}
}

func goldenFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, e := range entries {
		switch name := e.Name(); {
		case filepath.Ext(name) == ".txtar":
			files = append(files, filepath.Join(goldenDir, name))
		case name != "README.md" && name != "base":
			t.Errorf("%s: orphan: neither a test nor documented", filepath.Join(goldenDir, name))
		}
	}
	return files
}

func readGolden(t *testing.T, path string) *golden {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g := &golden{
		path: path, archive: archive, node: "node1", modes: []ir.Mode{ir.ModeIPTables, ir.ModeNFTables},
		config: readBase(t, "config.yaml"), nodes: readBase(t, "nodes.yaml"), want: map[string]string{},
	}
	g.header(t)
	for _, f := range archive.Files {
		switch f.Name {
		case "config":
			g.config = f.Data
		case "nodes":
			g.nodes = f.Data
		case "snapshot":
			g.objects = f.Data
		case "packets":
			g.packets = parsePackets(t, f.Data)
		default:
			if _, twice := g.want[f.Name]; twice {
				t.Errorf("section %q: twice", f.Name)
			}
			g.want[f.Name] = string(f.Data)
		}
	}
	return g
}

func readBase(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(goldenDir, "base", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var headerLine = regexp.MustCompile(`^# (covers|modes|node|whole): (.*)$`)

// header reads the settings in the comment at the head of the file.
func (g *golden) header(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(string(g.archive.Comment)) {
		m := headerLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		switch words := strings.Fields(m[2]); m[1] {
		case "covers":
			g.covers = append(g.covers, words...)
		case "modes":
			g.modes = parseModes(t, words)
		case "node":
			g.node = m[2]
		case "whole":
			g.whole = m[2] == "true"
		}
	}
	if len(g.covers) == 0 {
		t.Error(`no "# covers:" line`)
	}
}

func parseModes(t *testing.T, words []string) (modes []ir.Mode) {
	t.Helper()
	for _, w := range words {
		if !slices.Contains(ir.Modes(), ir.Mode(w)) {
			t.Fatalf("mode %q: unknown", w)
		}
		modes = append(modes, ir.Mode(w))
	}
	return modes
}

// parsePackets reads rows "[MODE,MODE] FROM TO -> OUTCOME".
func parsePackets(t *testing.T, data []byte) (rows []packetRow) {
	t.Helper()
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		var row packetRow
		who, want, ok := strings.Cut(line, "->")
		if rest, isMode := strings.CutPrefix(who, "["); isMode {
			modes, after, _ := strings.Cut(rest, "]")
			row.modes, who = parseModes(t, strings.Split(modes, ",")), after
		}
		words := strings.Fields(who)
		if !ok || len(words) != 2 {
			t.Fatalf("packets: %q: must be [MODE,MODE] FROM TO -> OUTCOME", line)
		}
		row.from, row.to, row.want = words[0], words[1], strings.Join(strings.Fields(want), " ")
		rows = append(rows, row)
	}
	return rows
}

// section is one expected section with its content.
type section struct{ name, text string }

// compile makes all sections that the file's input leads to, and checks the packets.
func (g *golden) compile(t *testing.T) []section {
	t.Helper()
	var out []section
	snap, decoding := reviewtest.Decode(g.nodes, g.objects)
	for i, mode := range g.modes {
		cfg := reviewtest.ParseConfig(t, mode, g.config)
		facts := compiler.Facts{NodeName: g.node}
		programs, diags := reviewtest.Compile(t, cfg, snap, facts)
		if i == 0 {
			var text bytes.Buffer
			must(t, ir.WriteText(&text, withServices(programs, g.whole)))
			out = append(out, section{"diagnostics", diagnosticsText(append(slices.Clone(decoding), diags...))}, section{"ir", text.String()})
		}
		g.checkPackets(t, mode, snap, programs)
		rules := review.Modes[mode].Lower(programs).Outputs()
		checkWithTools(t, mode, rules)
		out = append(out, g.ruleSections(t, mode, cfg, rules)...)
	}
	return slices.DeleteFunc(out, func(s section) bool { return s.text == "" })
}

func diagnosticsText(list diag.List) string {
	list.Sort()
	var b strings.Builder
	for _, d := range list {
		fmt.Fprintf(&b, "%s: %s\n", d.Severity, d)
	}
	return b.String()
}

// withServices leaves out Programs that have nothing to show.
func withServices(programs ir.Programs, all bool) (some ir.Programs) {
	for f, p := range programs.All() {
		if all || len(p.Services) > 0 {
			*some.At(f) = p
		}
	}
	return some
}

func (g *golden) checkPackets(t *testing.T, mode ir.Mode, snap *snapshot.Snapshot, programs ir.Programs) {
	t.Helper()
	for _, row := range g.packets {
		if len(row.modes) > 0 && !slices.Contains(row.modes, mode) {
			continue
		}
		name := fmt.Sprintf("%s: %s %s", mode, row.from, row.to)
		pkt, _, err := (&trace.Tracer{Snapshot: snap, Node: programs.IPv4.Node.Name, Programs: programs}).Packet(row.from, row.to)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p := programs.Of(ir.FamilyOf(pkt.Dst))
		outcome, steps := sim.Explain(p, pkt)
		if got := outcome.String(); got != row.want {
			t.Errorf("%s -> %s, want %s\n%s", name, got, row.want, (&trace.Trace{Packet: pkt, Outcome: outcome, Steps: steps}).Text())
		}
		if got := review.Modes[mode].Evaluate(p).Outcome(pkt, nil); !got.Equal(outcome) {
			t.Errorf("%s -> %s by the rules, %s by the IR", name, got, outcome)
		}
	}
}

// ruleSections returns what the snapshot's Services add to the rules of a node
// without Services, or, for a whole file, all.
func (g *golden) ruleSections(t *testing.T, mode ir.Mode, cfg *config.Config, rules []render.Output) []section {
	t.Helper()
	base := map[string]string{}
	if !g.whole {
		snap, _ := reviewtest.Decode(g.nodes)
		programs, _ := reviewtest.Compile(t, cfg, snap, compiler.Facts{NodeName: g.node})
		for _, o := range review.Modes[mode].Lower(programs).Outputs() {
			base[o.File] = outputText(t, o)
		}
	}
	out := make([]section, len(rules))
	for i, o := range rules {
		out[i] = section{string(mode) + "/" + o.File, addedLines(outputText(t, o), base[o.File])}
	}
	return out
}

func outputText(t *testing.T, o render.Output) string {
	t.Helper()
	var b strings.Builder
	if err := o.Write(&b); err != nil {
		t.Fatalf("%s: %v", o.File, err)
	}
	return b.String()
}

// addedLines returns the lines of text that are not lines of base, each as
// often as it is more frequent, below the lines that open the blocks they
// stand in.
func addedLines(text, base string) string {
	have := map[string]int{}
	for line := range strings.Lines(base) {
		have[line]++
	}
	var b strings.Builder
	var open []string // blocks around the line that are not written yet
	for line := range strings.Lines(text) {
		indent := len(line) - len(strings.TrimLeft(line, "\t "))
		open = slices.DeleteFunc(open, func(o string) bool { return len(o)-len(strings.TrimLeft(o, "\t ")) >= indent })
		switch trimmed := strings.TrimSpace(line); {
		case have[line] > 0:
			have[line]--
			if strings.HasSuffix(trimmed, "{") {
				open = append(open, line)
			}
		case trimmed != "}":
			for _, o := range open {
				b.WriteString(o)
			}
			open = nil
			b.WriteString(line)
		}
	}
	return b.String()
}

// compare compares the produced sections with the expected ones. None may be missing or left over.
func (g *golden) compare(t *testing.T, got []section) {
	t.Helper()
	for _, s := range got {
		if diff := cmp.Diff(g.want[s.name], s.text); diff != "" {
			t.Errorf("section %s (-want +got):\n%s", s.name, diff)
		}
		delete(g.want, s.name)
	}
	for name := range g.want {
		t.Errorf("section %s: nothing makes it", name)
	}
}

// rewrite replaces the expected sections, and keeps the others.
func (g *golden) rewrite(t *testing.T, got []section) {
	t.Helper()
	g.archive.Files = slices.DeleteFunc(g.archive.Files, func(f txtar.File) bool {
		_, wanted := g.want[f.Name]
		return wanted
	})
	for _, s := range got {
		g.archive.Files = append(g.archive.Files, txtar.File{Name: s.name, Data: []byte(s.text)})
	}
	must(t, os.WriteFile(g.path, txtar.Format(g.archive), 0o644))
}
