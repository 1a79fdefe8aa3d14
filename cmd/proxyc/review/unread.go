package review

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// file is a file of a directory. Its objects are unknown if it is rendered before it is applied, or broken.
type file struct {
	files.File
	below string // its name below what the command line names, which two sides share
	sum   [sha256.Size]byte
	by    string    // the Chart.yaml or kustomization that it is rendered with, on any side; "" for none
	why   diag.List // why it is broken
	lists []string  // what a kustomization lists, as below
	// reach contains the sums of those outside of what the command line names.
	reach map[string][sha256.Size]byte
	bases []string // remote bases of a kustomization that name no version
	// passed is what the file is, if it is neither read nor rendered: one of the constants.
	passed string
	opens  string // what a file that is not read says about who reaches Services and ports of Nodes
	to     string // the directory that a link leads to, if it is read
}

// Files that no verb reads.
const (
	hiddenFile = "file with a hidden name" // which kubectl apply -f DIRECTORY applies
	hiddenDir  = "file in a hidden directory"
	otherFile  = "file with objects and another extension"
	linkedDir  = "link to another directory"
	// aside is a file without objects from which programs may make some, such as Terraform, and source one from which they do.
	aside  = "other file"
	source = "source of objects"
)

// unread reports whether the objects of the file are unknown.
func (f *file) unread() bool { return f.by != "" || len(f.why) > 0 }

// isPassed reports whether the file is neither read nor rendered.
func (f *file) isPassed() bool { return f != nil && f.passed != "" && f.by == "" }

// isPlain reports whether all objects of a file are read, if a side has it.
func (f *file) isPlain() bool {
	return f == nil || !f.unread() && (f.passed == "" || f.passed == aside || f.passed == source)
}

// leadsOutside reports whether the file is a link to a directory of which no file is read.
func (f *file) leadsOutside() bool { return f != nil && f.passed == linkedDir && f.to == "" }

// short returns the name below what the command line names.
func short(below string) string {
	_, name, _ := strings.Cut(below, " ")
	return name
}

// ofOverlay reports whether --overlay names the file, as list writes it.
func ofOverlay(below string) bool { return strings.HasPrefix(below, "true") }

// list returns the files that names stand for, with what renders them. It fails for a name without files.
func (j *Input) list(from Files, names []string, overlay bool, fail func(string, error)) (all []*file) {
	var inside []string
	var others []*file // which are not read
	for i, name := range names {
		below := func(file string) string {
			if rest, err := filepath.Rel(name, file); err == nil {
				file = rest
			}
			return fmt.Sprintf("%t%d %s", overlay, i, file)
		}
		var found diag.List
		expanded, patterns, err := from.Expand(name, &found)
		if err != nil {
			fail(name, err)
		}
		for _, d := range found {
			if d.Severity == diag.Error {
				j.keep(from, &file{File: files.File{Name: d.File}, below: below(d.File), why: diag.List{d}}, nil)
			} else {
				j.Diags.Add(d)
			}
		}
		if patterns != nil {
			j.keep(from, &file{below: below(filepath.Join(name, ignoreFile))}, patterns)
		}
		for _, o := range expanded.Others(from.System) {
			f := &file{File: files.File{Name: o.Name}, below: below(o.Name), passed: passedAs(below(o.Name))}
			if o.Link {
				f.passed, f.to = linkedDir, o.To
				f.sum = sha256.Sum256([]byte(below(o.To)))
			}
			others = append(others, f)
		}
		for _, f := range expanded.Files {
			if all = append(all, &file{File: f, below: below(f.Name)}); f.FromDirectory {
				inside = append(inside, f.Name)
			}
		}
	}
	by := renderedBy(inside, others, func(name string) []byte {
		data, _ := from.ReadFile(name) // an error is reported when all files are read
		return data
	})
	for _, f := range all {
		f.by = cmp.Or(by[f.Name], j.Hidden[f.below])
	}
	for _, f := range others {
		if f.by = by[f.Name]; isDocument(f.Name) && !files.IsKustomization(f.by) {
			continue
		}
		j.pass(from, f, fail)
	}
	return all
}

// passedAs returns what a file is that is not read.
func passedAs(below string) string {
	dir, name := filepath.Split(short(below))
	switch {
	case strings.Contains("/"+filepath.ToSlash(dir), "/."):
		return hiddenDir
	case files.IsObjects(strings.TrimLeft(name, ".")):
		return hiddenFile
	}
	return otherFile
}

// pass records a file that is not read, if it is rendered or seems to contain objects.
func (j *Input) pass(from Files, f *file, fail func(string, error)) {
	if f.passed == linkedDir {
		if f.by != "" && f.to == "" {
			f.sum = from.reach(f.Name)
		}
		ir.SetIn(&j.files, f.below, f)
		return
	}
	left := int64(configLimit)
	data, err := from.Read(f.Name, &left)
	if f.by != "" { // as it is, even an archive
		data, err = fs.ReadFile(from.System, f.Name)
	}
	if rendered := f.by != "" || f.passed == hiddenFile; rendered && err != nil {
		fail(f.Name, files.Reason(err))
	} else if f.by != "" || err == nil && isObject(data) || err == nil && f.passed == otherFile && makesObjects(f.Name, data) != "" {
		if f.passed == otherFile { // others, such as images of disks, are nothing to any tool
			f.passed = cmp.Or(makesObjects(f.Name, data), otherFile)
		}
		j.keep(from, f, data)
	}
}

// makesObjects returns whether programs make objects from a file that is not read as manifests: source, aside if they may, or "".
func makesObjects(name string, data []byte) string {
	switch base := filepath.Base(name); {
	case values.MatchString(filepath.ToSlash(name)), language.MatchString(base) && written.Match(data), (bytes.Contains(data, []byte("cdk8s")) || bytes.Contains(data, []byte("pulumi"))) && generator.Match(data):
		return source
	case language.MatchString(base), files.IsObjects(base):
		return aside
	}
	return ""
}

// Names of files that contain values of charts, that are in languages from which programs make objects, and of those in a
// language whose files import each other.
var (
	values    = regexp.MustCompile(`(?i)values[^/]*\.(ya?ml|gotmpl|tmpl|j2)$|(^|/)helmfile[^/]*(\.d/[^/]*)?$`)
	language  = regexp.MustCompile(`\.(tf|tfvars|hcl|jsonnet|libsonnet|cue|gotmpl|tmpl|tpl|j2|k|pkl|ya?ml(\.(envsubst|erb|hbs|in|mustache|template))?)$`)
	importing = regexp.MustCompile(`(sonnet|\.cue|\.k|\.pkl)$`)
)

// written matches an object, or a library that makes objects, in these languages, and generator one in programs.
var (
	written   = regexp.MustCompile(`(?s)\bapiVersion\b.*\bkind\b|\bkind\b.*\bapiVersion\b|\b(k|k8s|kausal)\.libsonnet|k8s\.io/api/|\bk8s\.api\b|resource\s+"(helm|kubectl|kubernetes)_`)
	generator = regexp.MustCompile(`(from|import|require)\b.*(cdk8s|pulumi[-/_]kubernetes)|"github\.com/(cdk8s-team|pulumi/pulumi-kubernetes)/`)
)

// objectKey matches the field that every object has, but not one in a script of another file.
var objectKey = regexp.MustCompile(`(?m)(^|[{,]\s*)apiVersion\s*:|["']apiVersion["']\s*:`)

// What decides in files that are not read: a text with a Service, the lines of values that open something, and those of
// values of charts except images, resources and numbers of replicas.
var (
	service = regexp.MustCompile(`\bkind["']?\s*:\s*["']?(Application(Set)?|HelmRelease|Service)\b`)
	opening = regexp.MustCompile(`(?m)^.*(\b(ClusterIP|NodePort|LoadBalancer)\b["']?[\s,}\]]*(#.*)?$|(hostNetwork|hostPort|nodePort|externalIPs|[sS]ourceRanges)["']?\s*[:=].*$)|` +
		`^\s*- ["']?[0-9a-fA-F.:]+/\d+\b.*$`)
	images = regexp.MustCompile(`(?m)^\s*(#.*|(- )?((image(Tag)?|repository|tag|digest|cpu|memory|limits|requests|resources)["']?:|(replicas|replicaCount): *[1-9]).*)$\n?`)
)

// deciding returns what the text of a file that is not read says about who reaches Services and ports of Nodes.
func (f *file) deciding(text []byte) string {
	switch {
	case f.by != "": // compared with what renders it
	case f.passed == source && values.MatchString(filepath.ToSlash(f.below)):
		return string(images.ReplaceAll(text, nil))
	case f.passed == source, f.passed == hiddenDir && service.Match(text):
		return string(text)
	case f.passed == aside:
		return string(bytes.Join(opening.FindAll(text, -1), nil))
	}
	return ""
}

// schema matches a file that defines a custom resource, and traffic one with anything else, or that a webhook converts.
var schema = regexp.MustCompile(`(?m)^kind:\s*["']?CustomResourceDefinition\b`)
var traffic = regexp.MustCompile(`(?m)^["'!&%?]|^\s*[{[]|^--- *[^\s#]|^- |^kind:\s*["']?([^C\s"']|C[^u])|strategy\W{1,4}Webhook`)

// isObject reports whether a text seems to contain an object, which has metadata, unlike configurations of tools.
func isObject(data []byte) bool {
	return objectKey.Match(data) && bytes.Contains(data, []byte("metadata"))
}

// isAside reports whether a file that was read is YAML without objects, such as values of a chart.
func isAside(name string, data []byte) bool {
	return filepath.Ext(name) != ".json" && !files.IsKustomization(name) && len(data) > 0 && !objectKey.Match(data)
}

// isDocument reports whether a file of a chart is only for people.
func isDocument(name string) bool {
	return filepath.Ext(name) == ".md" || slices.Contains([]string{"LICENSE", "NOTES.txt"}, filepath.Base(name))
}

// keep records a file of a directory with its text.
func (j *Input) keep(from Files, f *file, data []byte) {
	which, name, _ := strings.Cut(f.below, " ")
	paths, bases := listedBy(name, data)
	for _, path := range paths {
		if f.lists = append(f.lists, which+" "+path); !filepath.IsLocal(path) {
			ir.SetIn(&f.reach, path, from.reach(filepath.Join(strings.TrimSuffix(f.Name, name), path)))
		}
	}
	f.bases = bases
	if data == nil { // it could not be read
		data = []byte(fmt.Sprint(f.why))
	}
	f.opens = f.deciding(data)
	if schema.Match(data) && !traffic.Match(data) {
		data = data[:0]
	}
	f.sum = sha256.Sum256(data)
	ir.SetIn(&j.files, f.below, f)
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
// one, one for those that are rendered, of a severity, and one for those that no verb reads. use ends the
// hint about rendered ones. It considers only the other files, and the charts and kustomizations, that have an
// entry in some, unless that is nil.
func (j *Input) ReportUnread(rendered diag.Severity, use string, some map[string]bool) {
	by := [2]map[string]int{{}, {}} // files of each kustomization and each chart
	var passed []*file
	for _, below := range slices.Sorted(maps.Keys(j.files)) {
		f := j.files[below]
		if some != nil && !some[cmp.Or(f.by, below)] {
			continue
		}
		if f.isPassed() && !f.isPlain() && (f.passed != linkedDir || f.leadsOutside()) {
			passed = append(passed, f)
		}
		if !f.unread() {
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
	if len(passed) > 0 {
		j.Diags.Add(passedFinding(passed))
	}
}

// passedFinding returns the finding about files that no verb reads. kubectl applies the hidden ones.
func passedFinding(list []*file) diag.Diagnostic {
	d := diag.Diagnostic{Severity: diag.Info, Code: diag.FileSkipped, File: list[0].Name}
	var kinds []string
	for _, kind := range [...]string{hiddenFile, hiddenDir, otherFile, linkedDir} {
		n := len(slices.DeleteFunc(slices.Clone(list), func(f *file) bool { return f.passed != kind }))
		if n == 0 {
			continue
		}
		noun, rest, _ := strings.Cut(kind, " ")
		kinds = append(kinds, Counted(n, noun)+" "+rest)
		if kind == hiddenFile {
			d.Severity, d.Hint = diag.Warning, "kubectl apply -f DIRECTORY applies it: rename it, or pass it with -s"
		}
	}
	if d.Msg = "is not read: it is a " + list[0].passed; len(list) > 1 {
		d.Msg = fmt.Sprintf("is one of %d names that are not read: %s", len(list), strings.Join(kinds, ", "))
	}
	return d
}

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
		dir, others = "DIR", " (so do "+FirstOf(names[1:], 3)+")"
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
// difference: one finding counts them. It sets NotRead and NotApplied to the others, and adds findings about
// them.
func CompareUnread(was, is *Input) {
	all := map[string]*file{}
	maps.Copy(all, was.files)
	maps.Copy(all, is.files)
	differs := map[string]bool{}
	named := map[string]string{} // of both sides
	for _, side := range [...]*Input{was, is} {
		for below, f := range side.files {
			named[f.Name] = below
		}
	}
	isSource := sources(was, is)
	var same, broken []string
	changed := map[string][]string{} // files, by what renders them
	for _, below := range slices.Sorted(maps.Keys(all)) {
		old, now := was.files[below], is.files[below]
		if old == nil && ofOverlay(below) {
			old = was.files[strings.Replace(below, "true", "false", 1)]
		}
		for _, base := range all[below].bases {
			is.NotApplied = append(is.NotApplied, "remote base "+base+" (without a version)")
		}
		switch has := all[below]; {
		case short(below) == ignoreFile:
			if old == nil || now == nil || old.sum != now.sum {
				is.NotRead = append(is.NotRead, ignoreFile)
			}
		case old.leadsOutside() && now.leadsOutside() && has.isPassed():
			is.NotApplied = append(is.NotApplied, linkedDir+" "+short(below)+" (outside)")
		case old.isPassed() && now.isPassed() && old.sum == now.sum:
		case !ofOverlay(below) && cmp.Or(old, &file{}).opens != cmp.Or(now, &file{}).opens:
			is.NotRead = append(is.NotRead, short(below)+Action(old != nil, now != nil))
		case has.isPassed() && has.passed != hiddenFile && ofOverlay(below): // kubectl does not apply it with an overlay
		case isSource(old) || isSource(now):
			is.NotRead = append(is.NotRead, short(below)+Action(old != nil, now != nil))
		case has.isPassed() && has.passed != hiddenFile && (old == nil || old.isPassed()):
			differs[below] = true
			is.NotApplied = append(is.NotApplied, has.passed+" "+short(below)+Action(old != nil, now != nil))
		case has.isPlain() && old.isPlain():
			if lists(old, now, was, is) {
				is.NotRead = append(is.NotRead, short(below))
			}
		case old != nil && now != nil && old.sum == now.sum && (old.by == "") == (now.by == "") && len(config.Differences(was.Resolved, is.Resolved)) == 0 && maps.Equal(old.reach, now.reach):
			if same = append(same, short(below)); now.by == "" {
				broken = append(broken, short(below))
			}
		default:
			differs[cmp.Or(has.by, below)] = true
			by := short(cmp.Or(named[has.by], below))
			changed[by] = append(changed[by], short(below))
			for path, sum := range has.reach {
				if old != nil && old.reach[path] != sum {
					changed[by] = append(changed[by], path)
				}
			}
		}
	}
	for by, names := range changed {
		slices.Sort(names)
		if names = slices.DeleteFunc(names, func(name string) bool { return name == by }); len(names) > 0 {
			by += " (" + FirstOf(names, 1) + ")"
		}
		is.NotRead = append(is.NotRead, by)
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

// sources returns whether programs make objects from a file that no verb reads. Files that import each other do if one with their
// extension does, or if they are beside manifests. So does each file, such as values, that an object for such programs names.
func sources(was, is *Input) func(*file) bool {
	renderers, beside := fmt.Sprint(Contents(was, is, func(u snapshot.Uncompared) bool { return u.Renders })...), map[string]bool{}
	for _, side := range [...]*Input{was, is} {
		for below, f := range side.files {
			beside[filepath.Dir(below)] = beside[filepath.Dir(below)] || f.passed == "" && f.by == ""
			beside[importing.FindString(below)] = beside[importing.FindString(below)] || f.passed == source
		}
	}
	return func(f *file) bool {
		return f != nil && f.by == "" && (f.passed == aside && strings.Contains(renderers, filepath.Base(f.below)) ||
			f.passed == aside && importing.MatchString(f.below) && (beside[importing.FindString(f.below)] || beside[filepath.Dir(f.below)]))
	}
}

// Contents returns the contents of some objects of both sides.
func Contents(was, is *Input, some func(snapshot.Uncompared) bool) (out []any) {
	for _, side := range [...]*Input{was, is} {
		for _, u := range side.Snapshot.Uncompared() {
			if some(u) {
				out = append(append(out, u.Content), u.Copies...)
			}
		}
	}
	return out
}

// Action returns the text after the name of something that differs, by whether the sides have it.
func Action(had, has bool) string {
	switch {
	case !had:
		return " (added)"
	case !has:
		return " (removed)"
	}
	return " (changed)"
}

// lists reports whether a kustomization of one side lists something of both sides that the other's does not.
func lists(old, now *file, was, is *Input) bool {
	old, now = cmp.Or(old, &file{}), cmp.Or(now, &file{})
	return slices.ContainsFunc(append(slices.Clip(old.lists), now.lists...), func(path string) bool {
		same := func(other string) bool { return short(other) == short(path) }
		return slices.ContainsFunc(old.lists, same) != slices.ContainsFunc(now.lists, same) && was.has(path) && is.has(path)
	})
}

// has reports whether a side has a file or a directory.
func (j *Input) has(path string) bool {
	return j.count(func(f *file) bool { return f.below == path || strings.HasPrefix(f.below, path+"/") }) > 0
}

// FindingsOfBoth returns the findings of both sides. An error that both have about an equal object is a
// warning, since it did not change, and the object is missing on both. So is one about an object of only the first side.
func FindingsOfBoth(was, is *Input) diag.List {
	before, after := was.Findings(), is.Findings()
	configured := len(config.Differences(was.Resolved, is.Resolved)) > 0
	for i := range after {
		d := &after[i]
		if d.Severity != diag.Error || configured || is.Reader.Sums[d.Object] == 0 || is.Reader.Sums[d.Object] != was.Reader.Sums[d.Object] {
			continue
		}
		if i := slices.IndexFunc(before, func(old diag.Diagnostic) bool {
			return old.Code == d.Code && old.Object == d.Object && old.Path == d.Path && old.Msg == d.Msg
		}); i >= 0 {
			before = slices.Delete(before, i, i+1)
			d.Severity = diag.Warning
		}
	}
	fixed := Fixed(was, is)
	for i := range before {
		before[i].Severity = max(before[i].Severity, fixed[before[i].Object])
	}
	return append(before, after...)
}

// Fixed returns the objects of which only the first side has errors, with the severity of findings about them.
func Fixed(was, is *Input) map[string]diag.Severity {
	out := map[string]diag.Severity{}
	for _, d := range was.Diags {
		if kind, _ := snapshot.ParseObject(d.Object); d.Severity == diag.Error && kind != "" {
			out[d.Object] = diag.Warning
		}
	}
	for _, d := range is.Diags {
		if d.Severity == diag.Error {
			delete(out, d.Object)
		}
	}
	return out
}
