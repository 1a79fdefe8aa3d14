package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// outputs returns all texts that can be made of the programs of one node: the
// mode's own, the first of which is the default, and the IR's two forms.
func outputs(programs ir.Programs) (own []render.Output, all []render.Output, rendered render.Rendered) {
	rendered = renderers[programs.IPv4.Node.Mode].Lower(programs)
	own = rendered.Outputs()
	all = append(own[:len(own):len(own)],
		render.Output{Format: "ir", Write: func(w io.Writer) error { return ir.WriteText(w, programs) }},
		render.Output{Format: "ir-json", Write: func(w io.Writer) error { return ir.WriteJSON(w, programs) }})
	return own, all, rendered
}

// writeFormat writes one text of the programs; format "" is the mode's own.
func writeFormat(w io.Writer, programs ir.Programs, format string) error {
	_, all, _ := outputs(programs)
	names := make([]string, len(all))
	for i, o := range all {
		if o.Format == cmp.Or(format, all[0].Format) {
			return buffered(w, o.Write)
		}
		names[i] = o.Format
	}
	return &noFormat{programs.IPv4.Node.Mode, names, format}
}

// noFormat is the error of a format that a mode does not write.
type noFormat struct {
	mode   ir.Mode
	writes []string
	got    string
}

func (e *noFormat) Error() string {
	return fmt.Sprintf("-o: mode %s writes %s, got %q%s", e.mode, strings.Join(e.writes, ", "), e.got, didYouMean(e.got, e.writes))
}

// writeExplain writes the table of where each rule and element comes from:
// a line each, of three columns with tabs between.
func writeExplain(w io.Writer, rendered render.Rendered) error {
	return buffered(w, func(w io.Writer) (err error) {
		for entry := range rendered.Explain {
			if err = writeEntry(w, entry); err != nil {
				break
			}
		}
		return err
	})
}

func writeEntry(w io.Writer, entry render.Entry) error {
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\n", entry, portText(entry.Port), entry.Origin)
	return err
}

// shellWord quotes a word of a command where a shell would take it for more: names of files,
// and of interfaces on Windows.
func shellWord(word string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_@%+=:,./[]-", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// given returns the flags of a command line as they were given, for a shell, but for some.
func given(k *kong.Context, but ...string) (words []string) {
	flags := map[string]*kong.Flag{}
	for _, f := range k.Flags() {
		flags["--"+f.Name] = f
		if f.Short != 0 {
			flags["-"+string(f.Short)] = f
		}
	}
	for i := 0; i < len(k.Args); i++ {
		name, _, whole := strings.Cut(k.Args[i], "=")
		if !strings.HasPrefix(name, "--") && len(name) > len("-x") {
			name, whole = name[:len("-x")], true
		}
		f := flags[name]
		if f == nil {
			continue
		}
		begin := i
		if !whole && !f.IsBool() && i+1 < len(k.Args) {
			i++
		}
		if slices.Contains(but, f.Name) {
			continue
		}
		for _, word := range k.Args[begin : i+1] {
			words = append(words, shellWord(word))
		}
	}
	return words
}

// portText names a service port, "-" for what belongs to none.
func portText(p ir.ServicePort) string {
	if p == (ir.ServicePort{}) {
		return "-"
	}
	return p.String()
}

func buffered(w io.Writer, write func(io.Writer) error) error {
	b := bufio.NewWriterSize(w, 1<<16)
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}

// writeDocument writes JSON of a kind: apiVersion and kind, and then the fields of v, or
// its items where it is a list. People and programs need no escapes of HTML.
func writeDocument(w io.Writer, kind, indent string, v any) error {
	var fields bytes.Buffer
	enc := json.NewEncoder(&fields)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	rest, isObject := bytes.CutPrefix(fields.Bytes(), []byte("{"))
	document := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,`, ir.APIVersion, kind)
	if isObject {
		document = append(document, rest...)
	} else {
		document = fmt.Appendf(document, `"items":%s}`, fields.Bytes())
	}
	enc = json.NewEncoder(w)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	return enc.Encode(json.RawMessage(document))
}

// dirName is a directory to write to.
type dirName string

// UnmarshalText refuses the empty name, which an unset variable of a script makes.
func (d *dirName) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("must name a directory, got nothing")
	}
	*d = dirName(text)
	return nil
}

// Files of --out-dir besides the renderers'.
const (
	readmeFile  = "README"
	explainFile = "explain.tsv"
)

// writeDir writes all that a node needs into dir: the mode's files and a
// README of how to load each. All are written under temporary names first, so
// that an error leaves what was there before; the README, by which the files
// are known for ours later, is put in its place before the others. What was
// written there for another mode goes last. What others wrote is never touched.
func (e *env) writeDir(dir string, programs ir.Programs, explain bool) error {
	rules, _, rendered := outputs(programs)
	own := append([]render.Output{{File: readmeFile, Write: func(w io.Writer) error { return writeReadme(w, programs, rules) }}}, rules...)
	if explain {
		own = append(own, render.Output{File: explainFile, Write: func(w io.Writer) error { return writeExplain(w, rendered) }})
	}

	if err := e.files.MkdirAll(dir); err != nil {
		return err
	}
	ours, err := e.isOurs(dir, own)
	if err != nil {
		return err
	}
	staged := make([]string, 0, len(own))
	defer func() {
		for _, name := range staged {
			e.files.Remove(name)
		}
	}()
	for _, o := range own {
		name, err := e.stage(dir, everybody, func(w io.Writer) error { return buffered(w, o.Write) })
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, o.File), err)
		}
		staged = append(staged, name)
	}
	for _, o := range own {
		if err := e.files.Rename(staged[0], filepath.Join(dir, o.File)); err != nil {
			return err
		}
		staged = staged[1:]
	}
	if !ours {
		return nil
	}
	return e.removeOthers(dir, own)
}

// isOurs reports whether the files in a directory are those of an earlier run,
// by the README. Where they are not, none of own may be there.
func (e *env) isOurs(dir string, own []render.Output) (bool, error) {
	readme, err := e.files.ReadFile(filepath.Join(dir, readmeFile))
	if err == nil && bytes.HasPrefix(readme, []byte(readmeTitle)) {
		return true, nil
	}
	var errs []error
	for _, o := range own {
		name := filepath.Join(dir, o.File)
		if _, err := e.files.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("--out-dir: %s is there, and not proxyc's: it would be overwritten", name))
		}
	}
	return false, errors.Join(errs...)
}

// removeOthers removes the files of --out-dir that are not among own.
func (e *env) removeOthers(dir string, own []render.Output) error {
	for _, file := range allFiles() {
		if slices.ContainsFunc(own, func(o render.Output) bool { return o.File == file }) {
			continue
		}
		if err := e.files.Remove(filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// allFiles returns the names of all files that --out-dir writes, in any mode.
func allFiles() []string {
	files := []string{readmeFile, explainFile}
	for _, mode := range ir.Modes() {
		node := ir.Node{Mode: mode}
		programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node}, &ir.Program{Family: ir.IPv6, Node: node})
		for _, o := range renderers[mode].Lower(programs).Outputs() {
			files = append(files, o.File)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// readmeTitle begins every README of --out-dir.
const readmeTitle = "Rules of node "

func writeReadme(w io.Writer, programs ir.Programs, own []render.Output) error {
	node := &programs.IPv4.Node
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s in mode %s.\n", readmeTitle, node.Name, node.Mode)
	writeSettingsReadme(&b, node)
	fmt.Fprintf(&b, "\nThe files, in the order in which they are to be loaded:\n")
	for _, o := range own {
		fmt.Fprintf(&b, "\n%s\n", o.File)
		if o.Load != "" {
			fmt.Fprintf(&b, "    %s\n", o.Load)
		}
		if o.Note != "" {
			fmt.Fprintf(&b, "  %s\n", o.Note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeSettingsReadme writes the kernel settings that the mode cannot do without.
func writeSettingsReadme(b *strings.Builder, node *ir.Node) {
	// Which kernel the node has is not known: older ones need more.
	older := sysctl.Dataplane(node, sysctl.Host{Kernel: sysctl.Version{Major: 5, Minor: 8}})
	newer := sysctl.Dataplane(node, sysctl.Host{Kernel: sysctl.Version{Major: 5, Minor: 9}})
	if len(older) == 0 {
		return
	}
	b.WriteString("\nKernel settings that the rules need:\n")
	if node.Mode == ir.ModeIPVS {
		b.WriteString("    modprobe ip_vs\n")
	}
	for _, s := range older {
		only := ""
		if !slices.Contains(newer, s) {
			only = "   # before Linux 5.9 only"
		}
		fmt.Fprintf(b, "    sysctl -w %s=%s%s\n", s.Name(), s.Want, only)
	}
}
