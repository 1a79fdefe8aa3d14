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
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// notifiedKeys are the keys of changed elements, by fixed set.
type notifiedKeys map[rules.SetID]map[rules.Key]struct{}

// parseNotified returns the keys in notifications. ok is false if there are none, or if other
// objects were changed.
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

// compareNotified compares the elements of some keys with what was last applied. It returns nil if
// more has to be read. Its cost follows the number of keys, and the number of Services.
func (d *Dataplane) compareNotified(ctx context.Context, all ir.PerFamily[notifiedKeys]) (*Plan, error) {
	have, ok, err := d.reader.readNotified(ctx, d.applied.Node(), all)
	if !ok || err != nil {
		return nil, err
	}
	of := ir.PerFamily[func(*ir.Service) bool]{IPv4: all.IPv4.mayBeOf(), IPv6: all.IPv6.mayBeOf()}
	// Services are selected after reading. Otherwise a change in between would seem to be drift.
	want := rules.LowerAll(d.applied.Some(func(f ir.Family, s *ir.Service) bool { return of.Of(f)(s) }))
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

// readNotified reads the elements of some keys. ok is false if more has to be read: a foreign
// element is among them, or a complete comparison is due.
func (r *reader) readNotified(ctx context.Context, nodes ir.Programs, all ir.PerFamily[notifiedKeys]) (have ir.PerFamily[*rules.Ruleset], ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.readAt) >= apply.CompareEvery {
		return have, false, nil
	}
	for f := range ir.Present(nodes) {
		t := &rules.Ruleset{Family: f}
		for id, keys := range all.Of(f) {
			set := id.Set()
			for key := range keys {
				err := lookup(ctx, r.conn, f, set, []rules.Element{{Key: key}})
				if set.Foreign || err != nil && !errors.Is(err, unix.ENOENT) {
					return have, false, err
				}
			}
			t.Sets = append(t.Sets, *set)
		}
		sortSets(t.Sets)
		*have.At(f) = t
	}
	return have, true, nil
}

// mayBeOf returns a function that reports whether some of the elements may belong to a Service. It
// compares addresses of frontends and backends; those of node ports have no address.
func (t notifiedKeys) mayBeOf() func(*ir.Service) bool {
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
