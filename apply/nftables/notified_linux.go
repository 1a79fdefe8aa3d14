package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// notifiedKeys are keys of elements, in the fixed sets of a table.
type notifiedKeys map[rules.SetID]map[rules.Key]struct{}

// parseNotified returns the elements that messages are about; not ok where some are
// about others than those of our own make in our own sets, or say nothing.
func parseNotified(what monitor.Changes) (t ir.PerFamily[notifiedKeys], ok bool) {
	if what.Other || len(what.Elements) == 0 {
		return t, false
	}
	for _, m := range what.Elements {
		f := ir.IPv4
		if m[0] == unix.NFPROTO_IPV6 {
			f = ir.IPv6
		}
		a, err := codec.Parse(m[codec.NfgenHead:])
		if err != nil {
			return t, false
		}
		id, ok := fixedSet(a.Text(unix.NFTA_SET_ELEM_LIST_SET))
		if !ok {
			return t, false
		}
		set := *id.Set()
		if err := codec.DecodeElements(m[codec.NfgenHead:], &set, f, &codec.Comments{}); err != nil || set.Foreign {
			return t, false
		}
		of := t.At(f)
		if *of == nil {
			*of = notifiedKeys{}
		}
		if (*of)[id] == nil {
			(*of)[id] = map[rules.Key]struct{}{}
		}
		for i := range set.Elements {
			(*of)[id][set.Elements[i].Key] = struct{}{}
		}
	}
	return t, true
}

// compareNotified returns what leads from what the node has of some elements to
// what was applied last; nil where that cannot be told from them alone. It costs
// what they are, and a look at each Service.
func (d *Dataplane) compareNotified(ctx context.Context, all ir.PerFamily[notifiedKeys]) (*Plan, error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	if time.Since(d.readAt) >= apply.CompareEvery {
		return nil, nil
	}
	var have ir.PerFamily[*rules.Ruleset]
	for f := range ir.Present(d.applied.Node()) {
		r := &rules.Ruleset{Family: f}
		for id, keys := range all.Of(f) {
			set := id.Set()
			for key := range keys {
				if err := lookupElement(ctx, d.r, f, set, key); err != nil || set.Foreign {
					return nil, err
				}
			}
			r.Sets = append(r.Sets, *set)
		}
		sortSets(r.Sets)
		*have.At(f) = r
	}
	mayBe := ir.PerFamily[func(*ir.Service) bool]{IPv4: all.IPv4.mayAffect(), IPv6: all.IPv6.mayAffect()}
	// After the reading: a change that is in neither would seem to be drift.
	want := rules.LowerAll(d.applied.Some(func(f ir.Family, s *ir.Service) bool { return mayBe.Of(f)(s) }))
	p := &Plan{}
	for f, h := range ir.Present(have) {
		w := &rules.Ruleset{Family: f}
		for i := range h.Sets {
			id, _ := fixedSet(h.Sets[i].Name)
			s := want.Of(f).Sets[id]
			s.Elements = slices.DeleteFunc(s.Elements, func(e rules.Element) bool {
				_, ok := all.Of(f)[id][e.Key]
				return !ok
			})
			w.Sets = append(w.Sets, s)
		}
		*p.families.At(f) = difference(h, w)
	}
	return p, nil
}

// mayAffect returns a func that reports whether some of the elements may be of a
// Service: each has an address of a frontend or of a backend, or is of a node
// port, which has none.
func (t notifiedKeys) mayAffect() func(*ir.Service) bool {
	addrs := map[netip.Addr]bool{}
	for _, keys := range t {
		for k := range keys {
			addrs[k.Addr] = true
			if k.Addr2.IsValid() {
				addrs[k.Addr2] = true
			}
		}
	}
	frontend := func(f ir.Frontend) bool { return addrs[f.Match.Addr] }
	backend := func(b ir.Backend) bool { return addrs[b.AddrPort.Addr()] }
	return func(s *ir.Service) bool {
		return slices.ContainsFunc(s.Frontends, frontend) ||
			slices.ContainsFunc(s.Pools, func(p ir.Pool) bool { return slices.ContainsFunc(p.Backends, backend) })
	}
}

// lookupElement adds the element of a key to the set, if the kernel has one.
func lookupElement(ctx context.Context, c *conn.Conn, f ir.Family, s *rules.Set, key rules.Key) error {
	b := &batch{}
	b.elements(&change{family: f}, unix.NFT_MSG_DELSETELEM, s, []rules.Element{{Key: key}}, false)
	err := c.Fetch(ctx, b.messages[0].Data(), func(attrs []byte) error {
		return codec.DecodeElements(attrs, s, f, &codec.Comments{})
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
