package nftables

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// For each message of a dump the kernel goes through a set from its beginning, so
// that a dump takes the square of the elements. To ask for one key takes the same in
// any set. So of a large set all keys are asked for that it is expected to have.
// Where it has these, and by the number of its elements no other, what the answers
// say is all that a dump would. In all other cases it is dumped.

// lookupFrom is from how many elements on asking for each costs less than a dump
// (BenchmarkReadBack).
const lookupFrom = 100_000

// keysPerRequest is how many keys a request asks for. While the kernel takes it, it queues
// a message of about 1 KiB for each, for which readBuffer has room many times over.
const keysPerRequest = 400

// expectation is what the tables are expected to hold. It costs time where it is not
// met, and never changes what is read.
type expectation struct {
	*expected         // nil: nobody knows
	generation uint32 // of all tables, at the beginning of the reading
}

// readByKey reads a set of so many elements by asking for those that it is expected
// to have. It reports whether they are all that the set has; else the set is as it was,
// and is to be dumped, which also tells what is wrong.
func (d *Dataplane) readByKey(ctx context.Context, f ir.Family, s *rules.Set, count int, e expectation) bool {
	prints := e.ofFamily(f)
	id, ok := fixedSet(s.Name)
	if count < d.lookupFrom || prints == nil || !ok || len(prints[id].sums) != count || setDifference(s, id.Set()) != "" {
		return false
	}
	m := &prints[id]
	clear(m.present)
	var others []rules.Element
	err := d.r.Request(nil, func() (err error) {
		others, err = lookupElements(ctx, d.r, f, id, e.programs.Of(f), m)
		return err
	})
	if err != nil {
		return false
	}
	if now, err := d.r.Generation(ctx); err != nil || now != e.generation {
		return false
	}
	s.Elements = others
	return true
}

var errUnexpected = errors.New("the set has other elements")

// lookupElements marks what the kernel has of the elements that a Program wants in a set, and returns what it has else under their
// keys. It is an error if one is missing or not ours, or if the set has one for all keys that it has not.
func lookupElements(ctx context.Context, c *conn.Conn, f ir.Family, id rules.SetID, p *ir.Program, m *setFingerprints) (others []rules.Element, err error) {
	got := *id.Set()
	part := make([]rules.Element, 0, keysPerRequest)
	again := false
	ask := func() {
		if len(part) == 0 || err != nil {
			return
		}
		b := &batch{}
		b.elements(&change{family: f}, unix.NFT_MSG_DELSETELEM, &got, part, false)
		got.Elements = got.Elements[:0]
		for i := range b.messages {
			if err == nil {
				err = c.Fetch(ctx, b.messages[i].Data(), func(attrs []byte) error {
					return codec.DecodeElements(attrs, &got, f, &codec.Comments{})
				})
			}
		}
		if err == nil && len(got.Elements) != len(part) {
			err = errUnexpected
		}
		some, marked := m.markPresent(id, got.Elements)
		others, again, part = append(others, some...), again || marked, part[:0]
	}
	rules.LowerBare(p, func(of rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			if of == id {
				if part = append(part, elements[i]); len(part) == keysPerRequest {
					ask()
				}
			}
		}
		return err == nil
	})
	if ask(); err != nil {
		return nil, err
	}
	err = c.Fetch(ctx, append([]byte{codec.Family(f), 0, 0, 0}, codec.CatchAllIn(got.Name)...), func([]byte) error { return nil })
	if !errors.Is(err, unix.ENOENT) || got.Foreign || again || hasDuplicates(others) {
		return nil, errors.Join(errUnexpected, err)
	}
	return others, nil
}
