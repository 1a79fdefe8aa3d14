package ir

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
)

// Maglev has a frontend choose backends by a hash of the client's address and port
// in place of chance, so that every node makes the same choice: the lookup table of
// Eisenbud et al., Maglev (NSDI 2016), 3.4. The hash is that of nf_tables
// (jhash), so that mode nftables can make it.
type Maglev struct {
	Slots  uint32 `json:"slots"` // of the table: one of MaglevSlots
	Origin Origin `json:"origin"`
}

// MaglevSlots returns the sizes that a table can have, which are prime, the default
// first. Few sizes are few chains.
func MaglevSlots() []uint32 { return []uint32{251, 1021, 4099, 16381, 65537} }

// MaglevSeed is what all nodes begin the client's hash with.
const MaglevSeed = 0x6d61676c

// Table returns for each slot which of the backends it leads to. It depends on
// nothing but their addresses and ports, whatever their order: each has all slots in an
// order of its own, and they take turns to claim their next one that is free.
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

// claimant is a backend, its next slot, and how far it goes from one to the one after it.
type claimant struct {
	backend    int
	next, skip uint64
}

// populate is the paper's pseudocode 1. Without claimants all slots have -1.
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

// Slot returns the slot of a client: what nf_tables makes of
// "jhash ip saddr . th sport mod SLOTS seed SEED".
func (m *Maglev) Slot(src netip.Addr, port uint16) uint32 {
	key := binary.BigEndian.AppendUint16(src.AsSlice(), port)
	h := jhash(append(key, 0, 0), MaglevSeed) // registers have four bytes
	return uint32(uint64(h) * uint64(m.Slots) >> 32)
}

// MaglevChoice names what a table of backends by slot makes of clients: two tables
// of one name send every client to the same backend. A slot may lead nowhere.
func MaglevChoice(table []netip.AddrPort) string {
	h := sha256.New()
	for _, b := range table {
		fmt.Fprintln(h, b)
	}
	return fmt.Sprintf("maglev:%d:%.4x", len(table), h.Sum(nil))
}

// jhash is the kernel's hash of that name (linux/jhash.h). Of long keys, such as
// those of IPv6, it depends on the machine's byte order, as the kernel's does.
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
