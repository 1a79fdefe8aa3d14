package review

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
)

// unread is a file of a directory whose objects are unknown.
type unread struct {
	version
	by  string    // the Chart.yaml or kustomization that it is rendered with; "" if it is broken
	why diag.List // of a broken file
}

// version is a version of a file.
type version struct {
	below string
	sum   [sha256.Size]byte
}

// listed is a file with its name below what the command line names, which two sides share.
type listed struct {
	files.File
	below string
}

// list returns the files that names stand for. It fails for a name without files.
func (j *Input) list(from Files, names []string, overlay bool, fail func(string, error)) (all []listed) {
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
				j.leave(d.File, below(d.File), nil, unread{why: diag.List{d}})
			} else {
				j.Diags.Add(d)
			}
		}
		for _, f := range expanded {
			all = append(all, listed{f, below(f.Name)})
		}
	}
	return all
}

// rendered returns what manifest.Rendered returns for the files of directories.
func rendered(from Files, all []listed) map[string]string {
	var names []string
	for _, f := range all {
		if f.FromDirectory {
			names = append(names, f.Name)
		}
	}
	return manifest.Rendered(names, func(name string) []byte {
		data, _ := from.ReadFile(name) // an error is reported when all files are read
		return data
	})
}

// leave records a file, and its objects as unknown if they are. data is nil if it could not be read.
func (j *Input) leave(name, below string, data []byte, u unread) {
	if data == nil {
		data = []byte(fmt.Sprint(u.why))
	}
	if j.unread == nil {
		j.unread, j.versions, j.listed = map[string]unread{}, map[string]version{}, map[string][]string{}
	}
	if strings.HasPrefix(filepath.Base(name), "kustomization.y") {
		which, file, _ := strings.Cut(below, " ")
		for _, path := range manifest.Listed(file, data) {
			j.listed[below] = append(j.listed[below], which+" "+path)
		}
	}
	u.version = version{below, sha256.Sum256(data)}
	j.versions[name] = u.version
	if u.by != "" || len(u.why) > 0 {
		j.unread[below] = u
	}
}

// Ends of hints about files to render.
const (
	CheckRendered = " | proxyc lint -s -"
	renderFirst   = " >FILE, and use FILE"
)

// ReportUnread adds findings about the files of directories whose objects are unknown: each broken
// one, and one for those that are rendered, of a severity. use ends its hint.
func (j *Input) ReportUnread(rendered diag.Severity, use string) {
	by := [2]map[string]int{{}, {}} // files of each kustomization and each chart
	for _, name := range slices.Sorted(maps.Keys(j.unread)) {
		u := j.unread[name]
		j.Diags.Add(u.why...)
		switch filepath.Base(u.by) {
		case ".":
		case "Chart.yaml":
			by[1][u.by]++
		default:
			by[0][u.by] += 0
			if _, file, _ := strings.Cut(name, " "); !strings.HasPrefix(filepath.Base(file), "kustomization.y") {
				by[0][u.by]++
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

// CompareUnread compares the files whose objects are unknown on two sides. Equal ones cannot make a
// difference: one finding counts them. It sets NotRead to the others, and adds findings about them.
func CompareUnread(was, is *Input) {
	all := map[string]unread{}
	maps.Copy(all, was.unread)
	maps.Copy(all, is.unread)
	var same, broken []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		_, file, _ := strings.Cut(name, " ")
		old, had := was.unread[name]
		now, has := is.unread[name]
		if !had || !has || old.sum != now.sum || (old.by == "") != (now.by == "") || !sameConfig(was, is) {
			if by := is.versions[now.by].below + was.versions[old.by].below; by != "" {
				_, file, _ = strings.Cut(cmp.Or(is.versions[now.by].below, by), " ")
			}
			is.NotRead = append(is.NotRead, file)
			continue
		}
		if same = append(same, file); now.by == "" {
			broken = append(broken, file)
		}
		delete(was.unread, name)
		delete(is.unread, name)
	}
	if len(same) > 0 {
		is.Diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.FileRendered, Msg: fmt.Sprintf("not read, but equal on both sides: %s of charts and kustomizations, %s with errors, such as %s",
			Counted(len(same)-len(broken), "file"), Counted(len(broken), "file"), append(broken, same...)[0])})
	}
	for below, old := range was.listed {
		now := is.listed[below]
		if now != nil && slices.ContainsFunc(append(slices.Clone(old), now...), func(path string) bool {
			return slices.Contains(old, path) != slices.Contains(now, path) && was.has(path) && is.has(path)
		}) {
			_, file, _ := strings.Cut(below, " ")
			is.NotRead = append(is.NotRead, file)
		}
	}
	slices.Sort(is.NotRead)
	is.NotRead = slices.Compact(is.NotRead)
	is.ReportUnread(diag.Warning, renderFirst)
}

// has reports whether a side has a file or a directory.
func (j *Input) has(below string) bool {
	for _, v := range j.versions {
		if v.below == below || strings.HasPrefix(v.below, below+"/") {
			return true
		}
	}
	return false
}

// sameConfig reports whether an object that no side reads means the same on both.
func sameConfig(was, is *Input) bool {
	return len(config.Differences(was.Resolved, is.Resolved)) == 0
}

// FindingsOfBoth returns the findings of both sides. An error that both have about an equal file is a
// warning, since it did not change, and the object is missing on both.
func FindingsOfBoth(was, is *Input) diag.List {
	before, after := was.Findings(), is.Findings()
	versions := map[version]bool{}
	for _, v := range was.versions {
		versions[v] = sameConfig(was, is)
	}
	for i := range after {
		d := &after[i]
		same := func(old diag.Diagnostic) bool {
			return old.Code == d.Code && old.Object == d.Object && old.Path == d.Path && old.Msg == d.Msg && was.versions[old.File] == is.versions[d.File]
		}
		if d.Severity == diag.Error && versions[is.versions[d.File]] && slices.ContainsFunc(before, same) {
			before = slices.DeleteFunc(before, same)
			d.Severity = diag.Warning
		}
	}
	return append(before, after...)
}

// isBroken reports whether a finding means that the text of a file cannot be read.
func isBroken(d diag.Diagnostic) bool { return d.Severity == diag.Error && d.Object == "" }
