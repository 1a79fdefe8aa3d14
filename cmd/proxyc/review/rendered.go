package review

import (
	"cmp"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/proxyc/proxyc/apply/files"
)

// renderedBy returns the files of directories that are not applied as they are: those of Helm charts, and
// those that a kustomization changes. Each has the Chart.yaml or the kustomization as its value. others are
// files that are not read otherwise, and read returns the text of a file.
func renderedBy(names []string, others []*file, read func(name string) []byte) map[string]string {
	r := rendered{by: map[string]string{}, files: map[string]bool{}, at: map[string]*kustomization{}}
	charts := map[string]string{} // by directory
	for _, name := range names {
		r.files[name] = true
	}
	for _, f := range others {
		r.files[f.Name] = false
		names = append(names, f.Name)
	}
	for _, name := range names {
		switch {
		case filepath.Base(name) == "Chart.yaml":
			charts[filepath.Dir(name)] = name
		case files.IsKustomization(name):
			if k := parseKustomization(name, read(name)); k != nil {
				r.at[filepath.Dir(name)] = k
			}
		}
	}
	for _, name := range names {
		for dir := filepath.Dir(name); len(charts) > 0; dir = filepath.Dir(dir) {
			if chart, ok := charts[dir]; ok {
				r.by[name] = chart // the outermost is the last one
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	inner := map[*kustomization]bool{}
	dirs := slices.Sorted(maps.Keys(r.at))
	for _, dir := range dirs {
		if r.at[dir].changes {
			for _, k := range r.kustomizations(r.at[dir]) {
				inner[k] = k != r.at[dir]
			}
		}
	}
	for _, nested := range [...]bool{false, true} { // the outer ones first, since their output contains the others
		for _, dir := range dirs {
			if k := r.at[dir]; inner[k] == nested && (k.changes || r.isRemote(k)) {
				r.mark(k, k.name)
			}
		}
	}
	return r.by
}

// rendered is the state of renderedBy.
type rendered struct {
	by    map[string]string
	files map[string]bool           // whether each is read otherwise
	at    map[string]*kustomization // by directory
}

// kustomization is what kustomize builds in a directory.
type kustomization struct {
	name, dir string
	// changes reports whether it does more to Services and workloads than to list them.
	changes bool
	listed  []string // resources, bases and components, and other input outside of the directory
	texts   []string // all values but sources, among which are the names of all files
	// sources are the files of ConfigMaps and Secrets, from which copies may fill fields of other objects.
	sources []string
	copies  bool
	bases   []string // remote ones that name no version
}

// harmless are the fields of a kustomization on which no packet depends.
var harmless = []string{"apiVersion", "kind", "metadata", "resources", "bases", "images", "configMapGenerator",
	"secretGenerator", "generatorOptions", "buildMetadata", "sortOptions", "crds", "openapi"}

// copying are the fields that copy values between objects, or may.
var copying = []string{"replacements", "vars", "transformers", "generators", "configurations", "components"}

var (
	remoteBase = regexp.MustCompile(`://|^git@|^github\.com/|\?ref=`)
	version    = regexp.MustCompile(`(ref|version)=[^&]*\d|[/@]v?\d+\.\d|[0-9a-f]{40}`)
)

// parseKustomization returns the kustomization in a file, or nil if it is none.
func parseKustomization(name string, data []byte) *kustomization {
	var in map[string]any
	if !files.IsKustomization(name) || yaml.Unmarshal(data, &in) != nil {
		return nil
	}
	if of, _ := in["apiVersion"].(string); of != "" && !strings.HasPrefix(of, "kustomize.config.k8s.io/") { // Flux has another Kustomization
		return nil
	}
	k := &kustomization{name: name, dir: filepath.Dir(name)}
	for _, key := range copying {
		k.copies = k.copies || in[key] != nil
	}
	for key, v := range in {
		generates := key == "configMapGenerator" || key == "secretGenerator"
		matters := !slices.Contains(harmless, key)
		k.changes = k.changes || v != nil && matters
		for _, value := range texts(v) {
			if generates {
				value = value[strings.IndexByte(value, '=')+1:] // KEY=FILE
				k.sources = append(k.sources, value)
			} else {
				k.texts = append(k.texts, value)
			}
			outside := strings.HasPrefix(filepath.ToSlash(filepath.Clean(value)), "../") && (matters || generates && k.copies)
			base := key == "resources" || key == "bases" || key == "components"
			if outside || base {
				k.listed = append(k.listed, value)
			}
			if base && remoteBase.MatchString(value) && !version.MatchString(value) {
				k.bases = append(k.bases, value)
			}
		}
	}
	return k
}

// listedBy returns the files and directories that a kustomization in a file lists, or the charts that one
// depends on, in order, and remote bases that name no version; nil if it is neither.
func listedBy(name string, data []byte) (paths, bases []string) {
	if k := parseKustomization(name, data); k != nil {
		bases = k.bases
		for _, text := range k.listed {
			if !remoteBase.MatchString(text) {
				paths = append(paths, filepath.Join(k.dir, text))
			}
		}
	}
	var chart struct{ Dependencies []struct{ Repository string } }
	if base := filepath.Base(name); (base == "Chart.yaml" || base == "requirements.yaml") && yaml.Unmarshal(data, &chart) == nil {
		for _, d := range chart.Dependencies {
			if path, ok := strings.CutPrefix(d.Repository, "file://"); ok {
				paths = append(paths, filepath.Join(filepath.Dir(name), path))
			}
		}
	}
	slices.Sort(paths)
	return paths, bases
}

// texts returns the texts in a value.
func texts(v any) (out []string) {
	switch v := v.(type) {
	case string:
		out = []string{v}
	case []any:
		for _, item := range v {
			out = append(out, texts(item)...)
		}
	case map[string]any:
		for _, field := range v {
			out = append(out, texts(field)...)
		}
	}
	return out
}

// isRemote reports whether a kustomization lists something that no file contains which is read otherwise.
func (r *rendered) isRemote(k *kustomization) bool {
	return slices.ContainsFunc(k.listed, func(text string) bool {
		path := filepath.Join(k.dir, text)
		return !r.files[path] && (r.at[path] == nil || !r.files[r.at[path].name])
	})
}

// mark records what a kustomization reads. What it does not change is read as it is, if it is read at all.
func (r *rendered) mark(k *kustomization, by string) {
	r.set(k.name, by)
	all := r.kustomizations(k)
	copies := slices.ContainsFunc(all, func(of *kustomization) bool { return of.copies })
	for _, of := range all {
		mark := func(name string, any bool) {
			if read, ok := r.files[name]; ok && (read && k.changes || !read && any) {
				r.set(name, by)
			}
		}
		mark(of.name, true)
		for _, text := range of.texts {
			mark(filepath.Join(of.dir, text), true)
		}
		for _, text := range of.sources {
			mark(filepath.Join(of.dir, text), copies)
		}
	}
}

func (r *rendered) set(name, by string) { r.by[name] = cmp.Or(r.by[name], by) }

// kustomizations returns a kustomization and those in the directories that it lists, with theirs.
func (r *rendered) kustomizations(k *kustomization) []*kustomization {
	all := []*kustomization{k}
	for i := 0; i < len(all); i++ {
		for _, text := range all[i].listed {
			if of := r.at[filepath.Join(all[i].dir, text)]; of != nil && !slices.Contains(all, of) {
				all = append(all, of)
			}
		}
	}
	return all
}
