package diff

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// addNotCompared adds what differs between two sides beside the selected Services.
func (d *Diff) addNotCompared(was, is *review.Input, of func(ir.Name) bool) {
	add := func(object string, had, has bool) {
		d.NotCompared = append(d.NotCompared, object+review.Action(had, has))
	}
	d.NotCompared = append(d.NotCompared, is.NotApplied...)
	d.addOthers(was, is, of)
	names := map[ir.Name]bool{}
	for _, svc := range append(was.Snapshot.Services(), is.Snapshot.Services()...) {
		names[svc.Name] = of(svc.Name)
	}
	for name, selected := range names {
		a, old, had := beside(was, name)
		b, now, has := beside(is, name)
		switch {
		case !selected || was.Snapshot.InvalidService(name) != nil || is.Snapshot.InvalidService(name) != nil: // an error names it
		case a == b && reduced(was, name) != reduced(is, name) && (a != plain || !reflect.DeepEqual(old, now)):
			d.NotCompared = append(d.NotCompared, a+name.String()+" (missing in one snapshot)")
		case a == b && !reflect.DeepEqual(old, now):
			add(a+name.String(), true, true)
		case a != b && cmp.Or(ruleless[a], ruleless[b]): // rules for a load balancer are compared
			if !ruleless[a] {
				a = b
			}
			add(a+name.String(), had, has)
		}
	}
	d.NotRead = append(d.NotRead, relabelled(was, is, of)...)
	slices.Sort(d.NotCompared)
}

// addOthers adds the objects of other kinds that differ.
func (d *Diff) addOthers(was, is *review.Input, of func(ir.Name) bool) {
	before, after := was.Snapshot.Uncompared(), is.Snapshot.Uncompared()
	renderers := review.Contents(was, is, func(u snapshot.Uncompared) bool { return u.Renders })
	replaced := variables(was, is)
	all := maps.Clone(before)
	maps.Copy(all, after)
	for object, u := range all {
		old, had := before[object]
		now, has := after[object]
		part := strings.Contains(object, " of ") && !u.Decides // of a workload
		if !of(u.Name) || had == has && old.Equal(now) || had != has && part {
			continue
		}
		list := &d.NotCompared
		switch {
		case old.Decides || now.Decides:
			list = &d.NotRead
		case !old.SameOutput(now) || data.MatchString(object) && (names(renderers, u.Name.Name, "from") || old.Differs(now, replaced)):
			list, object = &d.NotRead, "output of "+object
		case strings.HasPrefix(object, "Secret "):
			continue
		}
		*list = append(*list, object+review.Action(had, has))
	}
}

// data matches the objects that may contain what programs put into others.
var data = regexp.MustCompile(`^(ConfigMap|Secret) `)

// variable matches what Flux and envsubst replace in manifests, with their values from ConfigMaps and Secrets.
var variable = regexp.MustCompile(`\$\{(\w+)`)

// variables returns the names of the variables that objects contain where a value is invalid.
func variables(was, is *review.Input) (names []string) {
	for _, found := range variable.FindAllStringSubmatch(fmt.Sprint(was.Diags, is.Diags), -1) {
		names = append(names, found[1])
	}
	return names
}

// relabelled returns the workloads, Namespaces and Nodes of which a label or another property differs that a policy of either
// side contains, or that a service mesh reads.
func relabelled(was, is *review.Input, of func(ir.Name) bool) (out []string) {
	policies := review.Contents(was, is, func(u snapshot.Uncompared) bool { return u.Decides })
	before := identities(was)
	for object, now := range identities(is) {
		old, had := before[object]
		all := map[string]string{}
		maps.Copy(all, old)
		maps.Copy(all, now)
		for key := range all {
			kind, name := snapshot.ParseObject(object)
			if had && of(name) && old[key] != now[key] && (snapshot.IsMesh(key) || names(policies, key, selectors[kind])) {
				out = append(out, key+", which policies or a mesh read, of "+object+review.Action(true, true))
			}
		}
	}
	return out
}

// identities returns what policies and meshes read of workloads, Namespaces and Nodes.
func identities(j *review.Input) map[string]map[string]string {
	out := map[string]map[string]string{}
	for _, w := range j.Snapshot.Workloads() {
		out[w.Object] = maps.Clone(w.Identity)
		maps.Copy(out[w.Object], w.Labels)
	}
	for _, n := range j.Snapshot.Nodes() {
		out["Node "+n.Name] = j.Reader.Written()["Node "+n.Name].Labels
	}
	for object, u := range j.Snapshot.Uncompared() {
		content, _ := u.Content.(map[string]any)
		if labels, ok := content["labels"].(map[string]string); ok { // of a Namespace
			out[object] = labels
		}
	}
	return out
}

// principals matches the fields and labels by which policies select accounts of pods.
var principals = regexp.MustCompile(`(?i)principal|serviceaccount`)

// selectors are parts of the names of fields by which policies select objects of some kinds, and not pods.
var selectors = map[string]string{"Namespace": "namespace", "Node": "node"}

// names reports whether a value contains a key of labels, alone or as a word of a text: "k8s:app", "has(app)". It is below
// a field with within in its name, unless that is "".
func names(v any, key, within string) bool {
	switch v := v.(type) {
	case map[string]any:
		for field, value := range v {
			inside := within
			if strings.Contains(strings.ToLower(field), within) {
				inside = ""
			}
			if names(field, key, within) || names(value, key, inside) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(item any) bool { return names(item, key, within) })
	case string:
		words := strings.FieldsFunc(v, func(c rune) bool { return strings.ContainsRune(" \n\t:!=()'\"{},&|", c) })
		return within == "" && slices.Contains(words, key) || slices.Contains(words, "io.cilium.k8s.namespace.labels."+key) ||
			key == "serviceAccountName" && principals.MatchString(v)
	}
	return false
}

// reduced reports whether a side has a Service without what programs of a cluster read of it.
func reduced(j *review.Input, name ir.Name) bool {
	return j.Reader.Written()[j.Snapshot.Service(name).Object].Reduced
}

// unscoped matches the settings of a load balancer that do not decide which clients reach it. Each cloud has its own for its
// scheme, network, addresses and source ranges, so that any other may.
var unscoped = regexp.MustCompile(`(?i)^label |^spec$|algorithm|argocd|attributes$|bandwidth|certs?$|certificate|cross-zone|external-dns|fluxcd|health-?(check|probe)|hook|hostname|` +
	`idle|local-config|access-log|logging|prune|proxy-?protocol|reconcil|(pip|resource)-tags$|ssl|sticky|target-(group|type)|time-?out|tls|weight`)

// rescoped returns the selected Services whose load balancers may get other clients.
func rescoped(was, is *review.Input, of func(ir.Name) bool) (out []string) {
	for _, svc := range is.Snapshot.Services() {
		old := was.Snapshot.Service(svc.Name)
		if old == nil || !of(svc.Name) || old.Type != "LoadBalancer" || svc.Type != "LoadBalancer" || reduced(was, svc.Name) != reduced(is, svc.Name) {
			continue
		}
		before, after := was.Reader.Written()[old.Object].Settings, is.Reader.Written()[svc.Object].Settings
		all := maps.Clone(before)
		maps.Copy(all, after)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if !unscoped.MatchString(key) && before[key] != after[key] {
				out = append(out, fmt.Sprintf("clients of the load balancer of %s: setting %s is %s instead of %s", svc.Name, key, shown(after[key]), shown(before[key])))
			}
		}
	}
	return out
}

// shown returns the value of a setting, or that it is missing.
func shown(value any) string {
	if value == nil {
		return "not set"
	}
	return fmt.Sprintf("%q", value)
}

// plain is the title of a Service of which everything but its labels and annotations is compared.
const plain = "labels or annotations of Service "

// ruleless contains the titles of Services without rules.
var ruleless = map[string]bool{"ExternalName Service ": true, "headless Service ": true, "Service of another proxy ": true}

// beside returns what programs of a cluster read of a Service beside its rules, or all of a Service without
// rules, with a title.
func beside(j *review.Input, name ir.Name) (title string, content []any, ok bool) {
	svc := j.Snapshot.Service(name)
	if svc == nil {
		return "", nil, false
	}
	switch {
	case svc.ProxyName:
		title = "Service of another proxy "
	case svc.Type == "ExternalName":
		title = "ExternalName Service "
	case svc.ClusterIP == "None":
		title = "headless Service "
	case svc.Type == "LoadBalancer":
		title = "load balancer settings of Service "
	default:
		title = plain
	}
	w := j.Reader.Written()[svc.Object]
	if content = []any{w.Settings}; ruleless[title] {
		all := *svc
		all.Created = time.Time{}
		content = append(content, all, w.FamilyPolicy)
	}
	return title, content, true
}

// shownNotCompared is the maximum number of objects in a line.
const shownNotCompared = 5

// writeNotCompared writes lines about what changed and was not compared, as paragraphs of markdown or as
// text.
func (d *Diff) writeNotCompared(w io.Writer, paragraph bool) {
	for _, line := range [...]struct {
		title string
		what  []string
	}{{"Not compared", d.NotCompared}, {"Not compared, so that flows may differ", d.NotRead}} {
		if len(line.what) == 0 {
			continue
		}
		text := review.FirstOf(line.what, shownNotCompared)
		counts := map[string]int{}
		for _, what := range line.what[min(shownNotCompared, len(line.what)):] {
			counts[kindOf(what)]++
		}
		for i, kind := range slices.Sorted(maps.Keys(counts)) {
			text += fmt.Sprintf("%s%d %s", map[bool]string{true: ": ", false: ", "}[i == 0], counts[kind], kind)
		}
		fmt.Fprintf(w, "%s: %s.\n", line.title, text)
		if paragraph {
			fmt.Fprintln(w)
		}
	}
}

// NameOf returns the object, the file or the subject of an entry of Unknown, NotRead or NotCompared.
func NameOf(what string) string {
	name, _, _ := strings.Cut(what, " (")
	name, _, _ = strings.Cut(name, ": ")
	return name
}

// kindOf returns the kind of an object that is not compared, without its name and action, or of a file.
func kindOf(what string) string {
	object, _, ok := strings.Cut(what, " (")
	if kind := strings.LastIndexByte(object, ' '); ok && kind > 0 {
		return object[:kind]
	}
	return filepath.Base(object)
}
