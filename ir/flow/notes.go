package flow

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// notes adds changes that affect no first packet.
func (d *describer) notes() {
	for _, c := range ir.Diff(d.sides[0].Program, d.sides[1].Program) {
		was, is := notesOf(c.Old), notesOf(c.New)
		for _, what := range sortedKeys(was, is) {
			if was[what] != is[what] {
				s := d.service(c.Name)
				n := Note{What: what, Before: was[what], After: is[what], Family: d.family, Effect: Other}
				if strings.HasPrefix(what, draining) {
					n.Effect = Backends
				}
				s.Notes = append(s.Notes, n)
			}
		}
		if c.Old != nil && c.New != nil && !d.sides[1].Node.Mode.Capabilities().Has(ir.GuardEmpty) {
			d.sourceRanges(c.New)
		}
	}
}

// sourceRanges adds changes of source ranges that apply only while there are endpoints. They open
// what the next endpoint serves.
func (d *describer) sourceRanges(s *ir.Service) {
	for i := range s.Frontends {
		is := &s.Frontends[i]
		was := d.sides[0].at[is.Match]
		if was == nil || len(was.Routes)+len(is.Routes) > 0 || was.Port.Service != s.Name || slices.Equal(sourceRanges(was), sourceRanges(is)) {
			continue
		}
		n := Note{What: fmt.Sprintf("source ranges of %s %s, once an endpoint is ready", is.Kind, is.Match),
			Before: rangesText(was), After: rangesText(is), Family: d.family, Effect: Other}
		if len(d.admitted(is).without(d.admitted(was))) > 0 {
			n.Effect = Opens
		}
		service := d.service(s.Name)
		service.Notes = append(service.Notes, n)
	}
}

// rangesText describes the clients that a frontend admits.
func rangesText(f *ir.Frontend) string {
	const shown = 4
	if list := sourceRanges(f); len(list) > 0 {
		return some(list, shown)
	}
	return "anyone"
}

// draining begins notes about endpoints that only keep their clients.
const draining = "UDP clients that "

// notesOf returns the properties of a Service outside of flows.
func notesOf(s *ir.Service) map[string]string {
	notes := map[string]string{}
	if s == nil {
		return notes
	}
	if h := s.Health; h != nil {
		answer := "503, as no ready endpoint is on the node"
		if h.Local > 0 {
			answer = "200, as ready endpoints are on the node"
		}
		notes[fmt.Sprintf("health check on port %d", h.Port)] = answer
	}
	for _, d := range s.Draining {
		var addrs []string
		for _, b := range d.Backends {
			addrs = append(addrs, b.AddrPort.String())
		}
		notes[draining+cmp.Or(d.Port.Port, "the port")+" keeps"] = strings.Join(addrs, ", ")
	}
	if h := s.HNS; h != nil && (h.PreserveDIP || h.NoOptimize) {
		notes["HNS"] = fmt.Sprintf("preserve destination %t, recreate %t", h.PreserveDIP, h.NoOptimize)
	}
	return notes
}

func sortedKeys(maps ...map[string]string) (keys []string) {
	for _, m := range maps {
		for k := range m {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
