package compiler

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// maxSlots is the maximum number of slots in the tables of all Services together,
// in one family. Each slot is an element of a kernel map. A transaction with all
// of them lasts 0.7 s or more, during which the node applies no other change.
const maxSlots = 1 << 18

// tables are the tables that a Service requests with its annotation.
type tables struct {
	ir.Maglev                   // of each
	number    ir.PerFamily[int] // of tables

	fitting, noRoom diag.List // findings if the tables fit, and if they do not
}

// need returns the number of slots that a Service requires. t may be nil. It
// depends neither on the node nor on endpoints. Thus all nodes decide alike, and
// changes of endpoints never affect the tables of other Services.
func (t *tables) need() (n ir.PerFamily[int]) {
	if t != nil {
		n.IPv4, n.IPv6 = t.number.IPv4*int(t.Slots), t.number.IPv6*int(t.Slots)
	}
	return n
}

// slots are the Services that request tables. Older Services are served first.
// One that does not fit is passed over, and a younger one with smaller tables may
// still fit. So a younger Service never displaces an older one. A Service has
// tables in all its families or in none.
type slots struct {
	wanted map[*entry]bool
	moved  bool // since settle: a need or age has changed
}

func (s *slots) add(e *entry) {
	if e.tables != nil {
		s.wanted[e], s.moved = true, true
	}
}

// remove undoes add.
func (s *slots) remove(e *entry) {
	if e.tables != nil {
		delete(s.wanted, e)
		e.noRoom, s.moved = false, true
	}
}

// settle decides which Services get tables. It calls touched with all Services
// whose result may have changed, except removed ones.
func (s *slots) settle(touched func(*entry)) {
	if !s.moved {
		return
	}
	s.moved = false
	var taken ir.PerFamily[int]
	for _, e := range slices.SortedFunc(maps.Keys(s.wanted), (*entry).age) {
		n := e.tables.need()
		noRoom := taken.IPv4+n.IPv4 > maxSlots || taken.IPv6+n.IPv6 > maxSlots
		if !noRoom {
			taken.IPv4, taken.IPv6 = taken.IPv4+n.IPv4, taken.IPv6+n.IPv6
		}
		if noRoom != e.noRoom {
			e.noRoom = noRoom
			touched(e)
		}
	}
}

// slotsPass removes the tables of a Service for which there is no room. Its
// backends are then chosen at random.
func slotsPass(e *entry, s *ir.Service) *ir.Service {
	if !e.noRoom || s == nil {
		return s
	}
	out := *s
	out.Frontends = slices.Clone(s.Frontends)
	for i := range out.Frontends {
		out.Frontends[i].Maglev = nil
	}
	return &out
}

// tabled returns the diagnostics about the tables of a Service.
func (e *entry) tabled() diag.List {
	switch {
	case e.tables == nil:
		return nil
	case e.noRoom:
		return e.tables.noRoom
	}
	return e.tables.fitting
}

func (t *tables) finding(code diag.Code, msg string) diag.List {
	return diag.List{{Severity: diag.Warning, Code: code, Object: t.Origin.Object, Path: t.Origin.Field, Msg: msg}}
}

// tooMany returns the message for tables that do not fit. It does not mention
// other Services, so that their changes do not alter it.
func (t *tables) tooMany() string {
	n := max(t.number.IPv4, t.number.IPv6)
	why := "do not fit after those of older Services: a node has " + strconv.Itoa(maxSlots)
	if n*int(t.Slots) > maxSlots {
		why = "are more than the limit of a node, " + strconv.Itoa(maxSlots)
	}
	fewer := "a smaller table"
	if t.Slots == ir.MaglevSlots()[0] {
		fewer = "fewer frontends"
	}
	return fmt.Sprintf("its tables, %d of %d slots, %s slots in a family; %s may fit", n, t.Slots, why, fewer)
}
