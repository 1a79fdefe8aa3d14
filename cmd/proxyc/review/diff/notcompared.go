package diff

import (
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// notCompared returns what differs between two sides beside the selected Services, sorted.
func notCompared(was, is *snapshot.Snapshot, of func(ir.Name) bool) (out []string) {
	before, after := was.Uncompared(), is.Uncompared()
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, object := range slices.Sorted(maps.Keys(all)) {
		old, had := before[object]
		now, has := after[object]
		switch {
		case !of(all[object].Name) || had && has && reflect.DeepEqual(old.Content, now.Content) || had != has && all[object].Part:
		case !had:
			out = append(out, object+" (added)")
		case !has:
			out = append(out, object+" (removed)")
		default:
			out = append(out, object+" (changed)")
		}
	}
	return out
}

// shownNotCompared is the maximum number of objects in a line.
const shownNotCompared = 5

// writeNotCompared writes lines about what changed and was not compared, as paragraphs of markdown or as
// text.
func (d *Diff) writeNotCompared(w io.Writer, paragraph bool) {
	for _, line := range [...]struct {
		title string
		what  []string
	}{{"Not compared", d.NotCompared}, {"Not compared, because their objects are unknown", d.NotRead}} {
		if len(line.what) == 0 {
			continue
		}
		fmt.Fprintf(w, "%s: %s.\n", line.title, review.FirstOf(line.what, shownNotCompared, func(what string) string { return what }))
		if paragraph {
			fmt.Fprintln(w)
		}
	}
}
