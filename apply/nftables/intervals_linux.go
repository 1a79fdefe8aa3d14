package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// edge is where an interval begins, or where it no longer holds.
type edge struct {
	at  netip.Addr
	end bool
}

// decodeEdges appends those of one message. An element that is none is invalid.
func decodeEdges(b []byte, f ir.Family, edges []edge) ([]edge, error) {
	items, err := elementList(b)
	for _, item := range items {
		edges = append(edges, decodeEdge(item.data, f))
	}
	return edges, err
}

func decodeEdge(b []byte, f ir.Family) (e edge) {
	all, err := attrs(b)
	for _, a := range all {
		switch a.typ {
		case unix.NFTA_SET_ELEM_KEY:
			if v, err := value(a.data); err == nil && len(v) == addrBytes(f) {
				e.at, _ = netip.AddrFromSlice(v)
			}
		case unix.NFTA_SET_ELEM_FLAGS:
			if len(a.data) != 4 || binary.BigEndian.Uint32(a.data)&^unix.NFT_SET_ELEM_INTERVAL_END != 0 {
				return edge{}
			}
			e.end = !zero(a.data)
		case unix.NFTA_SET_ELEM_USERDATA: // a comment, or nft's note of an open end
		default:
			if !zero(a.data) {
				return edge{}
			}
		}
	}
	if err != nil {
		return edge{}
	}
	return e
}

// intervals returns the elements that the edges of a set make; strays: some make none of
// ours. nft marks the very first address as one where nothing holds.
func intervals(edges []edge) (all []rules.Element, strays bool) {
	slices.SortFunc(edges, func(a, b edge) int {
		if d := a.at.Compare(b.at); d != 0 || a.end == b.end {
			return d
		}
		if a.end {
			return -1
		}
		return 1
	})
	add := func(first, last netip.Addr) {
		if of := ir.PrefixesOf(first, last); len(of) == 1 {
			all = append(all, rules.Element{Key: rules.Key{Addr2: first, Bits: uint8(of[0].Bits())}, Origin: &ir.Origin{}})
		} else {
			strays = true
		}
	}
	var open netip.Addr
	for _, e := range edges {
		switch {
		case !e.at.IsValid() || !e.end && open.IsValid():
			return nil, true
		case !e.end:
			open = e.at
		case open.IsValid():
			add(open, e.at.Prev())
			open = netip.Addr{}
		default:
			strays = strays || !e.at.IsUnspecified()
		}
	}
	if open.IsValid() {
		add(open, lastAddr(netip.PrefixFrom(open, 0)))
	}
	return all, strays
}
