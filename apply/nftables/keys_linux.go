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

// A dump of a set takes quadratic time: for each message the kernel walks the set from its start. A
// lookup of a key takes the same time in any set. A large set is therefore read by looking up all
// expected keys. If they exist, and the number of elements shows that there are no others, the
// result is the same as that of a dump. Otherwise the set is dumped.

// lookupFrom is the number of elements from which lookups are cheaper than a dump.
const lookupFrom = 100_000

// keysPerRequest is the number of keys in a request. The kernel queues a message of about 1 KiB for
// each, and readBuffer has ample room for them.
const keysPerRequest = 400

// readByKey reads a set with count elements by looking up the expected ones. It returns false, and
// does not change the set, if it may have others. The set is then dumped.
func (r *reader) readByKey(ctx context.Context, f ir.Family, s *rules.Set, count int, e *expected) bool {
	prints := e.ofFamily(f)
	id, ok := fixedSet(s.Name)
	if count < r.lookupFrom || prints == nil || !ok || len(prints[id].sums) != count || setDifference(s, id.Set()) != "" {
		return false
	}
	m := &prints[id]
	clear(m.present)
	var differing []rules.Element
	err := r.conn.Request(nil, func() (err error) {
		differing, err = lookupElements(ctx, r.conn, f, id, e.programs.Of(f), m)
		return err
	})
	if err != nil {
		return false
	}
	if now, err := r.conn.Generation(ctx); err != nil || now != e.generation {
		return false
	}
	s.Elements = differing
	return true
}

var errUnexpected = errors.New("the set has other elements")

// lookupElements looks up the elements of a set that a Program requires. It marks those that exist,
// and returns elements that have the same keys but differ. It returns an error if an element is
// missing or foreign, or if the set has a catch-all element.
func lookupElements(ctx context.Context, c *conn.Conn, f ir.Family, id rules.SetID, p *ir.Program, m *setFingerprints) (differing []rules.Element, err error) {
	got := *id.Set()
	part := make([]rules.Element, 0, keysPerRequest)
	repeated := false
	flush := func() {
		if len(part) == 0 || err != nil {
			return
		}
		got.Elements = got.Elements[:0]
		err = lookup(ctx, c, f, &got, part)
		if err == nil && len(got.Elements) != len(part) {
			err = errUnexpected
		}
		some, marked := m.markPresent(id, got.Elements)
		differing, repeated, part = append(differing, some...), repeated || marked, part[:0]
	}
	rules.LowerBare(p, func(of rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			if of == id {
				if part = append(part, elements[i]); len(part) == keysPerRequest {
					flush()
				}
			}
		}
		return err == nil
	})
	if flush(); err != nil {
		return nil, err
	}
	err = c.Fetch(ctx, append([]byte{codec.Family(f), 0, 0, 0}, codec.CatchAllIn(got.Name)...), func([]byte) error { return nil })
	if !errors.Is(err, unix.ENOENT) || got.Foreign || repeated || hasDuplicates(differing) {
		return nil, errors.Join(errUnexpected, err)
	}
	return differing, nil
}

// lookup adds the elements in the kernel that have the keys of some elements to a set.
func lookup(ctx context.Context, c *conn.Conn, f ir.Family, s *rules.Set, elements []rules.Element) error {
	b := &batch{}
	b.elements(&change{family: f}, unix.NFT_MSG_DELSETELEM, s, elements, false)
	for i := range b.messages {
		err := c.Fetch(ctx, b.messages[i].Data(), func(attrs []byte) error {
			return codec.DecodeElements(attrs, s, f, &codec.Comments{})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
