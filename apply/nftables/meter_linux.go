package nftables

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// meter reads the counters of elements. A nil meter reads nothing.
type meter struct {
	*apply.Meter[counterID]
	*reader // with a connection of its own, since Read is concurrent
	applied *apply.Applied
}

// counterID identifies the counter of an element. That of the rules for unused addresses has no key.
type counterID struct {
	family ir.Family
	set    rules.SetID
	key    rules.Key
}

type (
	reading = apply.Reading[counterID]
	value   = apply.Value[counterID]
)

// meterIn makes the Dataplane count connections in a network namespace.
func (d *Dataplane) meterIn(netns int) error {
	c, err := conn.New(netns)
	d.writer.meter = &meter{apply.NewMeter[counterID](d.log), &reader{conn: c}, &d.applied}
	return err
}

func (m *meter) close() error {
	if m == nil {
		return nil
	}
	return m.conn.Close()
}

// traffic implements apply.Counters.
func (m *meter) traffic(ctx context.Context) (map[ir.ServicePort]apply.Traffic, error) {
	return m.Read(ctx, m.all)
}

// all reads all counters.
func (m *meter) all(ctx context.Context) (r reading, err error) {
	r.Of = countedIn(m.applied.Programs)
	for f := range ir.Present(m.applied.Node()) {
		unused := value{ID: counterID{family: f}}
		err := m.packets(ctx, f, func(r *rules.Rule, packets uint64) {
			if r.DropsUnused() {
				unused.Count += packets
			}
		})
		r.Values = append(r.Values, unused)
		for _, id := range rules.CountedSets() {
			_, failed := m.conn.Dump(ctx, unix.NFT_MSG_GETSETELEM, codec.Family(f), codec.ElementsIn(id.String()), func(b []byte) error {
				items, err := codec.ElementList(b)
				r.Values = appendCounters(r.Values, f, id, items)
				return err
			})
			if err == nil || failed != nil && !errors.Is(failed, unix.ENOENT) {
				err = failed
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) { // no table yet
			return r, err
		}
	}
	return r, nil
}

// appendCounters appends the counters of elements of a set.
func appendCounters(all []value, f ir.Family, id rules.SetID, items []codec.Attr) []value {
	codec.DecodeCounts(items, id.Set(), f, func(k rules.Key, packets uint64) {
		all = append(all, value{ID: counterID{f, id, k}, Count: packets})
	})
	return all
}

// countedIn returns what elements count under Programs.
func countedIn(programs func() ir.Programs) func(counterID) (render.Counted, bool) {
	of := render.FrontendsIn(programs)
	return func(id counterID) (render.Counted, bool) {
		if id.key == (rules.Key{}) {
			return render.Counted{Connections: true, Reason: render.UnusedAddress}, true
		}
		return id.set.Counted(id.key, of(id.family))
	}
}

// around calls commit, and counts what the elements counted that a Plan removes.
func (m *meter) around(ctx context.Context, c *conn.Conn, p *Plan, commit func() bool) {
	if m == nil {
		commit()
		return
	}
	changed := map[counterID]bool{}
	m.Around(func() (r reading, err error) {
		r.Of = countedIn(func() ir.Programs { return p.desired.Before(m.applied) })
		for f, change := range ir.Present(p.families) {
			for _, e := range change.sets.elements {
				id, ok := fixedSet(e.set.Name)
				if !ok || !slices.Contains(rules.CountedSets(), id) {
					continue
				}
				for i := range e.added {
					changed[counterID{f, id, e.added[i].Key}] = true
				}
				for i := range e.removed {
					changed[counterID{f, id, e.removed[i].Key}] = true
					found, failed := c.Get(ctx, unix.NFT_MSG_GETSETELEM, codec.Family(f), codec.ElementOf(e.set, f, &e.removed[i]))
					items, _ := codec.Attrs(found[unix.NFTA_SET_ELEM_LIST_ELEMENTS])
					r.Values, err = appendCounters(r.Values, f, id, items), cmp.Or(err, failed)
				}
			}
		}
		return r, err
	}, func(id counterID) bool {
		of := p.families.Of(id.family)
		return changed[id] || of != nil && of.recounts(id)
	}, commit)
}

// recounts reports whether a change starts a counter again with its table, its set, or the rules for unused
// addresses. What it has counted since the last read is lost.
func (c *change) recounts(id counterID) bool {
	return c.table.drop || c.table.create ||
		id.key == (rules.Key{}) && slices.ContainsFunc(c.chains.fill, func(ch *rules.Chain) bool { return ch.Name == rules.LocalhostChain }) ||
		slices.ContainsFunc(c.sets.elements, func(e elementChange) bool { return e.flush && e.set.Name == id.set.String() })
}
