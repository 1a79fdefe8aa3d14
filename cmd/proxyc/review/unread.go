package review

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// file is a file of a directory. Its objects are unknown if it is rendered before it is applied, or broken.
type file struct {
	files.File
	below string // its name below what the command line names, which two sides share
	sum   [sha256.Size]byte
	by    string    // the Chart.yaml or kustomization that it is rendered with, on any side; "" for none
	why   diag.List // why it is broken
	lists []string  // what a kustomization lists, as below
}

// unread reports whether the objects of the file are unknown.
func (f *file) unread() bool { return f.by != "" || len(f.why) > 0 }

// short returns the name below what the command line names.
func short(below string) string {
	_, name, _ := strings.Cut(below, " ")
	return name
}

// outside reports whether a file is outside of the named directory, so that the other side may have another.
func outside(below string) bool { return strings.HasPrefix(short(below), "../") }

// list returns the files that names stand for, with what renders them. It fails for a name without files.
func (j *Input) list(from Files, names []string, overlay bool, fail func(string, error)) (all []*file) {
	var inside []string
	var inputs []*file // which contain no objects
	for i, name := range names {
		below := func(file string) string {
			if rest, err := filepath.Rel(name, file); err == nil {
				file = rest
			}
			return fmt.Sprintf("%t%d %s", overlay, i, file)
		}
		var found diag.List
		expanded, err := from.Expand(name, &found)
		if err != nil {
			fail(name, err)
		}
		for _, d := range found {
			if d.Severity == diag.Error {
				j.keep(&file{File: files.File{Name: d.File}, below: below(d.File), why: diag.List{d}}, nil)
			} else {
				j.Diags.Add(d)
			}
		}
		for _, name := range expanded.Inputs {
			inputs = append(inputs, &file{File: files.File{Name: name}, below: below(name)})
			inside = append(inside, name)
		}
		for _, f := range expanded.Files {
			if all = append(all, &file{File: f, below: below(f.Name)}); f.FromDirectory {
				inside = append(inside, f.Name)
			}
		}
	}
	by := renderedBy(inside, func(name string) []byte {
		data, _ := from.ReadFile(name) // an error is reported when all files are read
		return data
	})
	for _, f := range all {
		f.by = cmp.Or(by[f.Name], j.Hidden[f.below])
	}
	for _, f := range inputs {
		if f.by = by[f.Name]; f.by == "" {
			continue
		}
		data, err := fs.ReadFile(from.System, f.Name)
		if err != nil {
			fail(f.Name, files.Reason(err))
		}
		j.keep(f, data)
	}
	return all
}

// keep records a file of a directory with its text.
func (j *Input) keep(f *file, data []byte) {
	if j.files == nil {
		j.files = map[string]*file{}
	}
	which, name, _ := strings.Cut(f.below, " ")
	for _, path := range listedBy(name, data) {
		f.lists = append(f.lists, which+" "+path)
	}
	if data == nil { // it could not be read
		data = []byte(fmt.Sprint(f.why))
	}
	f.sum = sha256.Sum256(data)
	j.files[f.below] = f
}

// Unread returns what of the input is not read, because it is rendered: "3 files"; "" for nothing.
func (j *Input) Unread() string {
	n := j.count(func(f *file) bool { return f.by != "" })
	if n == 0 {
		return ""
	}
	return Counted(n, "file") + " of charts and kustomizations"
}

// count counts files of directories.
func (j *Input) count(is func(*file) bool) (n int) {
	for _, f := range j.files {
		if is(f) {
			n++
		}
	}
	return n
}

// Ends of hints about files to render.
const (
	CheckRendered = " | proxyc lint -s -"
	RenderFirst   = " >FILE, and use FILE"
)

// ReportUnread adds findings about the files of directories whose objects are unknown: each broken
// one, and one for those that are rendered, of a severity. use ends its hint. It considers only the broken
// files, and the charts and kustomizations, that have an entry in some, unless that is nil.
func (j *Input) ReportUnread(rendered diag.Severity, use string, some map[string]bool) {
	by := [2]map[string]int{{}, {}} // files of each kustomization and each chart
	for _, below := range slices.Sorted(maps.Keys(j.files)) {
		f := j.files[below]
		if !f.unread() || some != nil && !some[cmp.Or(f.by, below)] {
			continue
		}
		j.Diags.Add(f.why...)
		switch filepath.Base(f.by) {
		case ".":
		case "Chart.yaml":
			by[1][f.by]++
		default:
			by[0][f.by] += 0
			if !files.IsKustomization(below) {
				by[0][f.by]++
			}
		}
	}
	for kind, files := range by {
		if len(files) > 0 {
			d := renderedFinding(files, kind == 1)
			d.Severity, d.Code, d.Hint = rendered, diag.FileRendered, d.Hint+use
			j.Diags.Add(d)
		}
	}
}

// shownRendered is the maximum number of further names in a finding.
const shownRendered = 3

// renderedFinding returns the finding about files that charts or kustomizations render.
func renderedFinding(by map[string]int, chart bool) (d diag.Diagnostic) {
	names := slices.Sorted(maps.Keys(by))
	n := 0
	for _, files := range by {
		n += files
	}
	d.File = names[0]
	dir, others := ShellWord(filepath.Dir(d.File)), ""
	if len(names) > 1 {
		dir, others = "DIR", " (so do "+FirstOf(names[1:], shownRendered, func(name string) string { return name })+")"
	}
	switch {
	case chart:
		d.Msg, d.Hint = "belongs to a chart"+others+": "+Counted(n, "file")+" not read, since Helm changes what is applied", "helm template "+dir
	case n == 0:
		d.Msg, d.Hint = "lists resources that are not here"+others+": they are not read", "kustomize build "+dir
	default:
		d.Msg, d.Hint = "changes what is applied"+others+": "+Counted(n, "file")+" not read", "kustomize build "+dir
	}
	return d
}

// Hide returns the files that the two sides of a comparison cannot compare, with what renders them: only
// one side knows their objects. They belong to Input.Hidden.
func Hide(was, is *Input) map[string]string {
	hidden := map[string]string{}
	for below, old := range was.files {
		if now := is.files[below]; now != nil && (old.by == "") != (now.by == "") {
			hidden[below] = old.by + now.by
		}
	}
	return hidden
}

// CompareUnread compares the files whose objects are unknown on two sides. Equal ones cannot make a
// difference: one finding counts them. It sets NotRead to the others, and adds findings about them.
func CompareUnread(was, is *Input) {
	all := maps.Clone(was.files)
	if all == nil {
		all = map[string]*file{}
	}
	maps.Copy(all, is.files)
	differs := map[string]bool{}
	named := map[string]string{} // of both sides
	for _, side := range [...]*Input{was, is} {
		for below, f := range side.files {
			named[f.Name] = below
		}
	}
	var same, broken []string
	for _, below := range slices.Sorted(maps.Keys(all)) {
		old, now := was.files[below], is.files[below]
		switch has := all[below]; {
		case !has.unread() && (old == nil || !old.unread()):
			if lists(old, now, was, is) {
				is.NotRead = append(is.NotRead, short(below))
			}
		case old != nil && now != nil && old.sum == now.sum && (old.by == "") == (now.by == "") && len(config.Differences(was.Resolved, is.Resolved)) == 0 && !slices.ContainsFunc(now.lists, outside):
			if same = append(same, short(below)); now.by == "" {
				broken = append(broken, short(below))
			}
		default:
			differs[cmp.Or(has.by, below)] = true
			is.NotRead = append(is.NotRead, short(cmp.Or(named[has.by], below)))
		}
	}
	if len(same) > 0 {
		what := Counted(len(same)-len(broken), "file") + " of charts and kustomizations"
		if len(broken) > 0 {
			what += ", " + Counted(len(broken), "file") + " with errors"
		}
		is.Diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.FileRendered, Msg: "not read, but equal on both sides: " + what + ", such as " + append(broken, same...)[0]})
	}
	slices.Sort(is.NotRead)
	is.NotRead = slices.Compact(is.NotRead)
	is.ReportUnread(diag.Warning, RenderFirst, differs)
}

// lists reports whether a kustomization of one side lists something of both sides that the other's does not.
func lists(old, now *file, was, is *Input) bool {
	listed := func(f *file) (paths []string) {
		if f != nil {
			paths = f.lists
		}
		return paths
	}
	return slices.ContainsFunc(slices.Concat(listed(old), listed(now)), func(path string) bool {
		return slices.Contains(listed(old), path) != slices.Contains(listed(now), path) && was.has(path) && is.has(path)
	})
}

// has reports whether a side has a file or a directory.
func (j *Input) has(path string) bool {
	for below := range j.files {
		if below == path || strings.HasPrefix(below, path+"/") {
			return true
		}
	}
	return false
}

// FindingsOfBoth returns the findings of both sides. An error that both have about an equal file is a
// warning, since it did not change, and the object is missing on both.
func FindingsOfBoth(was, is *Input) diag.List {
	before, after := was.Findings(), is.Findings()
	equal := map[string]string{} // files of the second side, by the equal one of the first
	for below, f := range is.files {
		if old := was.files[below]; old != nil && old.sum == f.sum && len(config.Differences(was.Resolved, is.Resolved)) == 0 {
			equal[old.Name] = f.Name
		}
	}
	for i := range after {
		d := &after[i]
		same := func(old diag.Diagnostic) bool {
			return d.File != "" && equal[old.File] == d.File && old.Code == d.Code && old.Object == d.Object && old.Path == d.Path && old.Msg == d.Msg
		}
		if i := slices.IndexFunc(before, same); i >= 0 && d.Severity == diag.Error {
			before = slices.Delete(before, i, i+1)
			d.Severity = diag.Warning
		}
	}
	return append(before, after...)
}

// isBroken reports whether a finding means that the text of a file cannot be read.
func isBroken(d diag.Diagnostic) bool { return d.Severity == diag.Error && d.Object == "" }
