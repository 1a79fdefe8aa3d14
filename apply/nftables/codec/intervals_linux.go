package codec

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Edge is the start of an interval, or the address after its end.
type Edge struct {
	at  netip.Addr
	End bool
}

// DecodeEdges appends the edges in a message. The edge of another element has no address.
func DecodeEdges(b []byte, f ir.Family, edges []Edge) ([]Edge, error) {
	items, err := ElementList(b)
	for _, item := range items {
		edges = append(edges, DecodeEdge(item.Data, f))
	}
	return edges, err
}

func DecodeEdge(b []byte, f ir.Family) (e Edge) {
	all, err := Attrs(b)
	for _, a := range all {
		switch a.Type {
		case unix.NFTA_SET_ELEM_KEY:
			if v, err := Value(a.Data); err == nil && len(v) == addrBytes(f) {
				e.at, _ = netip.AddrFromSlice(v)
			}
		case unix.NFTA_SET_ELEM_FLAGS:
			if len(a.Data) != 4 || binary.BigEndian.Uint32(a.Data)&^unix.NFT_SET_ELEM_INTERVAL_END != 0 {
				return Edge{}
			}
			e.End = !zero(a.Data)
		case unix.NFTA_SET_ELEM_USERDATA: // a comment, or nft's note of an open end
		default:
			if !zero(a.Data) {
				return Edge{}
			}
		}
	}
	if err != nil {
		return Edge{}
	}
	return e
}

// Intervals returns the elements for the edges of a set. foreign reports whether some edges are not
// those of a prefix. nft adds an end at the lowest address.
func Intervals(edges []Edge) (all []rules.Element, foreign bool) {
	slices.SortFunc(edges, func(a, b Edge) int {
		return cmp.Or(a.at.Compare(b.at), ir.Int(b.End)-ir.Int(a.End))
	})
	add := func(first, last netip.Addr) {
		if of := ir.PrefixesOf(first, last); len(of) == 1 {
			all = append(all, rules.Element{Key: rules.Key{Addr2: first, Bits: uint8(of[0].Bits())}, Origin: &ir.Origin{}})
		} else {
			foreign = true
		}
	}
	var open netip.Addr
	for _, e := range edges {
		switch {
		case !e.at.IsValid() || !e.End && open.IsValid():
			return nil, true
		case !e.End:
			open = e.at
		case open.IsValid():
			add(open, e.at.Prev())
			open = netip.Addr{}
		default:
			foreign = foreign || !e.at.IsUnspecified()
		}
	}
	if open.IsValid() {
		add(open, ir.LastOf(netip.PrefixFrom(open, 0)))
	}
	return all, foreign
}
