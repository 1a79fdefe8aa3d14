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
	"github.com/proxyc/proxyc/ir"
)

// notCompared returns what differs between two sides beside the selected Services, sorted.
func notCompared(was, is *review.Input, of func(ir.Name) bool) (out []string) {
	add := func(object string, had, has bool) {
		switch {
		case !had:
			object += " (added)"
		case !has:
			object += " (removed)"
		default:
			object += " (changed)"
		}
		out = append(out, object)
	}
	before, after := was.Snapshot.Uncompared(), is.Snapshot.Uncompared()
	all := maps.Clone(before)
	maps.Copy(all, after)
	for object, u := range all {
		old, had := before[object]
		if now, has := after[object]; of(u.Name) && !reflect.DeepEqual(old, now) {
			add(object, had, has)
		}
	}
	names := map[ir.Name]bool{}
	for _, svc := range append(was.Snapshot.Services(), is.Snapshot.Services()...) {
		names[svc.Name] = of(svc.Name)
	}
	for name, selected := range names {
		a, old, had := beside(was, name)
		b, now, has := beside(is, name)
		switch {
		case !selected || was.Snapshot.InvalidService(name) != nil || is.Snapshot.InvalidService(name) != nil: // an error names it
		case a == b && !reflect.DeepEqual(old, now):
			add(a+name.String(), true, true)
		case a != b && cmp.Or(ruleless[a], ruleless[b]): // rules for a load balancer are compared
			if !ruleless[a] {
				a = b
			}
			add(a+name.String(), had, has)
		}
	}
	slices.Sort(out)
	return out
}

// scope matches the annotations by which clouds decide whether a load balancer is for clients of their network
// or for all: service.beta.kubernetes.io/aws-load-balancer-internal, networking.gke.io/load-balancer-type, and
// others.
var scope = regexp.MustCompile(`internal|scheme|load-?balancer-type|address-type|ip-type|load-?balancer-network`)

// rescoped returns the selected Services whose load balancers may get other clients.
func rescoped(was, is *review.Input, of func(ir.Name) bool) (out []string) {
	for _, svc := range is.Snapshot.Services() {
		old := was.Snapshot.Service(svc.Name)
		if old == nil || !of(svc.Name) || old.Type != "LoadBalancer" || svc.Type != "LoadBalancer" {
			continue
		}
		before, after := was.Reader.Written()[old.Object].Settings, is.Reader.Written()[svc.Object].Settings
		all := maps.Clone(before)
		maps.Copy(all, after)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if scope.MatchString(key) && before[key] != after[key] {
				out = append(out, fmt.Sprintf("clients of the load balancer of %s: annotation %s is %s instead of %s", svc.Name, key, shown(after[key]), shown(before[key])))
			}
		}
	}
	return out
}

// shown returns the value of an annotation, or that it is missing.
func shown(value any) string {
	if value == nil {
		return "not set"
	}
	return fmt.Sprintf("%q", value)
}

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
		return "", nil, true
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
		text := review.FirstOf(line.what, shownNotCompared, func(what string) string { return what })
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

// kindOf returns the kind of an object that is not compared, without its name and action, or of a file.
func kindOf(what string) string {
	object, _, ok := strings.Cut(what, " (")
	if kind := strings.LastIndexByte(object, ' '); ok && kind > 0 {
		return object[:kind]
	}
	return filepath.Base(what)
}
