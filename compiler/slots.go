package compiler

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// maxSlots is how many slots the tables of all Services together can have, in one
// family. Each is an element of a kernel map: a transaction with all of them takes
// 0.7 s and more, in which the node learns of nothing else.
const maxSlots = 1 << 18

// tables are what a Service asks for with its annotation: one for each external
// frontend.
type tables struct {
	ir.Maglev                   // of each
	frontends ir.PerFamily[int] // how many have one

	fitting, crowded diag.List // what there is to say where they fit, and where they do not
}

// need returns how many slots a Service takes; tables may be nil. It depends neither on the
// node nor on endpoints: all nodes decide alike, and whose endpoints come and go makes no other win or lose.
func (t *tables) need() (n ir.PerFamily[int]) {
	if t != nil {
		n.IPv4, n.IPv6 = t.frontends.IPv4*int(t.Slots), t.frontends.IPv6*int(t.Slots)
	}
	return n
}

// slots are the Services that want tables. An older one goes before a younger one;
// who finds no room is passed over, and one that comes after it and needs less may
// fit. So nobody loses tables by what is younger. A Service has tables in all its families, or none.
type slots struct {
	wanted map[*entry]bool
	moved  bool // since settle: somebody needs more or less, or is of another age
}

func (s *slots) add(e *entry) {
	if e.tables != nil {
		s.wanted[e], s.moved = true, true
	}
}

// remove takes back what add noted.
func (s *slots) remove(e *entry) {
	if e.tables != nil {
		delete(s.wanted, e)
		e.crowded, s.moved = false, true
	}
}

// settle finds who has tables, after changes. touched is called with all for whom
// that may have changed, but for those that were removed.
func (s *slots) settle(touched func(*entry)) {
	if !s.moved {
		return
	}
	s.moved = false
	var taken ir.PerFamily[int]
	for _, e := range slices.SortedFunc(maps.Keys(s.wanted), (*entry).age) {
		n := e.tables.need()
		crowded := taken.IPv4+n.IPv4 > maxSlots || taken.IPv6+n.IPv6 > maxSlots
		if !crowded {
			taken.IPv4, taken.IPv6 = taken.IPv4+n.IPv4, taken.IPv6+n.IPv6
		}
		if crowded != e.crowded {
			e.crowded = crowded
			touched(e)
		}
	}
}

// slotsPass leaves chance to choose among the backends of a Service that finds no room for its tables.
func slotsPass(e *entry, s *ir.Service) *ir.Service {
	if !e.crowded || s == nil {
		return s
	}
	out := *s
	out.Frontends = slices.Clone(s.Frontends)
	for i := range out.Frontends {
		out.Frontends[i].Maglev = nil
	}
	return &out
}

// tabled returns what there is to say about the tables of a Service.
func (e *entry) tabled() diag.List {
	switch {
	case e.tables == nil:
		return nil
	case e.crowded:
		return e.tables.crowded
	}
	return e.tables.fitting
}

func (t *tables) finding(code diag.Code, msg string) diag.List {
	return diag.List{{Severity: diag.Warning, Code: code, Object: t.Origin.Object, Path: t.Origin.Field, Msg: msg}}
}

// tooMany says that there is no room, and what may help. It tells nothing of other
// Services, so that it does not change with each of them.
func (t *tables) tooMany() string {
	n := max(t.frontends.IPv4, t.frontends.IPv6)
	why := "do not fit beside those of older Services: a node has " + strconv.Itoa(maxSlots)
	if n*int(t.Slots) > maxSlots {
		why = "are more than a node has, " + strconv.Itoa(maxSlots)
	}
	fewer := "a smaller table"
	if t.Slots == ir.MaglevSlots()[0] {
		fewer = "fewer frontends"
	}
	return fmt.Sprintf("the tables of %s, of %d slots each, %s slots in a family; %s may fit", counted(n, "external frontend"), t.Slots, why, fewer)
}
