package ir

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
)

// Maglev makes a frontend select backends by a hash of the client's address and
// port instead of at random, so that every node selects the same backend. The
// lookup table is that of Eisenbud et al., Maglev (NSDI 2016), 3.4. The
// hash is jhash as used by nf_tables, so that mode nftables can compute it.
type Maglev struct {
	Slots  uint32 `json:"slots"` // size of the table: one of MaglevSlots
	Origin Origin `json:"origin"`
}

// MinShared is the number of elements or slots that a pool with its own table must
// save, in modes with StableBackends. Otherwise each frontend has its own table.
const MinShared = 256

// MaglevSlots returns the valid table sizes, which are prime numbers. The first
// is the default. Few sizes need few chains.
func MaglevSlots() []uint32 { return []uint32{251, 1021, 4099, 16381, 65537} }

// MaglevSeed is the seed of the client's hash on all nodes.
const MaglevSeed = 0x6d61676c

// Table returns the index of the backend for each slot. The result depends only
// on the addresses and ports of the backends, not on their order. Each backend
// has its own permutation of the slots, and the backends claim their next free
// slot in turn.
func (m *Maglev) Table(backends []Backend) []int {
	n := uint64(m.Slots)
	order := make([]claimant, len(backends))
	for i := range backends {
		sum := sha256.Sum256([]byte(backends[i].AddrPort.String()))
		order[i] = claimant{i, binary.BigEndian.Uint64(sum[:]) % n, binary.BigEndian.Uint64(sum[8:])%(n-1) + 1}
	}
	slices.SortFunc(order, func(a, b claimant) int {
		return backends[a.backend].AddrPort.Compare(backends[b.backend].AddrPort)
	})
	return populate(n, order)
}

// claimant is a backend with its next slot and the distance between its slots.
type claimant struct {
	backend    int
	next, skip uint64
}

// populate implements pseudocode 1 of the paper. Without claimants all slots are
// -1.
func populate(n uint64, order []claimant) []int {
	table := make([]int, n)
	for i := range table {
		table[i] = -1
	}
	for filled := 0; len(order) > 0; {
		for i := range order {
			c := &order[i]
			for table[c.next] >= 0 {
				c.next = (c.next + c.skip) % n
			}
			table[c.next] = c.backend
			if filled++; filled == len(table) {
				return table
			}
		}
	}
	return table
}

// Slot returns the slot of a client, as computed by nf_tables for "jhash ip saddr
// . th sport mod SLOTS seed SEED".
func (m *Maglev) Slot(src netip.Addr, port uint16) uint32 {
	key := binary.BigEndian.AppendUint16(src.AsSlice(), port)
	h := jhash(append(key, 0, 0), MaglevSeed) // registers have four bytes
	return uint32(uint64(h) * uint64(m.Slots) >> 32)
}

// MaglevChoice returns a fingerprint of a table of backends by slot. Two tables
// with the same fingerprint map every client to the same backend. A slot may be
// empty.
func MaglevChoice(table []netip.AddrPort) string {
	h := sha256.New()
	for _, b := range table {
		fmt.Fprintln(h, b)
	}
	return fmt.Sprintf("maglev:%d:%.4x", len(table), h.Sum(nil))
}

// jhash is the kernel's hash function (linux/jhash.h). For long keys, such as
// those of IPv6, the result depends on the machine's byte order, as in the
// kernel.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	rol := bits.RotateLeft32
	for ; len(key) > 12; key = key[12:] {
		a += binary.NativeEndian.Uint32(key)
		b += binary.NativeEndian.Uint32(key[4:])
		c += binary.NativeEndian.Uint32(key[8:])
		for _, r := range [...]int{4, 6, 8, 16, 19, 4} {
			a -= c
			a ^= rol(c, r)
			c += b
			a, b, c = b, c, a
		}
	}
	if len(key) == 0 {
		return c
	}
	var rest [12]byte
	copy(rest[:], key)
	a += binary.LittleEndian.Uint32(rest[:])
	b += binary.LittleEndian.Uint32(rest[4:])
	c += binary.LittleEndian.Uint32(rest[8:])
	for _, r := range [...]int{14, 11, 25, 16, 4, 14, 24} {
		c ^= b
		c -= rol(b, r)
		a, b, c = b, c, a
	}
	return b
}
