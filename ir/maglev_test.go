package ir

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func maglevBackends(n int) []Backend {
	all := make([]Backend, n)
	for i := range all {
		all[i].AddrPort = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
	}
	return all
}

// Every slot has a backend, and the backends' numbers of slots differ by at most
// one. The order of the backends does not matter, because nodes may learn about
// them in any order.
func TestMaglevTable(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, slots := range []uint32{251, 4099} {
		m := Maglev{Slots: slots}
		for _, n := range []int{1, 2, 3, 10, 100, 251} {
			backends := maglevBackends(n)
			table := m.Table(backends)
			counts := make([]int, n)
			for _, b := range table {
				counts[b]++
			}
			if low, high := slices.Min(counts), slices.Max(counts); high-low > 1 || low == 0 {
				t.Errorf("%d slots, %d backends: from %d to %d slots each", slots, n, low, high)
			}
			shuffled := slices.Clone(backends)
			random.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			for slot, b := range m.Table(shuffled) {
				if shuffled[b].AddrPort != backends[table[slot]].AddrPort {
					t.Fatalf("%d slots, %d backends: slot %d depends on their order", slots, n, slot)
				}
			}
		}
	}
	m := Maglev{Slots: 251}
	if got := m.Table(nil); slices.Max(got) != -1 {
		t.Error("without backends a slot leads somewhere")
	}
	if got := m.Table(maglevBackends(300)); slices.Min(got) < 0 {
		t.Error("with more backends than slots one is free")
	}
}

// disruption returns the average share of slots of the remaining backends that
// change when one of n backends is removed.
func disruption(slots uint32, n int) float64 {
	m := Maglev{Slots: slots}
	backends := maglevBackends(n)
	before := m.Table(backends)
	moved, all := 0, 0
	for gone := range min(n, 20) {
		left := slices.Delete(slices.Clone(backends), gone, gone+1)
		for slot, b := range m.Table(left) {
			if was := before[slot]; was != gone {
				all++
				if backends[was].AddrPort != left[b].AddrPort {
					moved++
				}
			}
		}
	}
	return float64(moved) / float64(all)
}

// When one backend of n is removed, few clients of the others change their
// backend. With a hash modulo n, (n-1)/n of them would.
func TestMaglevDisruption(t *testing.T) {
	for _, tt := range []struct {
		slots uint32
		n     int
		most  float64
	}{
		{251, 3, 0.02}, {251, 10, 0.06}, {251, 25, 0.09},
		{1021, 10, 0.04}, {1021, 100, 0.09},
		{4099, 3, 0.01}, {4099, 10, 0.02}, {4099, 100, 0.04},
		{65537, 100, 0.01}, {65537, 1000, 0.01},
	} {
		got := disruption(tt.slots, tt.n)
		t.Logf("%d slots, one of %d backends goes: %.2f %% of the others' slots move", tt.slots, tt.n, got*100)
		if got > tt.most {
			t.Errorf("at most %.2f %% wanted", tt.most*100)
		}
	}
}

// Table 1 of the paper, before and after B1 is removed.
func TestMaglevPaper(t *testing.T) {
	b0, b1, b2 := claimant{0, 3, 4}, claimant{1, 0, 2}, claimant{2, 3, 1}
	for _, tt := range []struct {
		of   []claimant
		want []int
	}{
		{[]claimant{b0, b1, b2}, []int{1, 0, 1, 0, 2, 2, 0}},
		{[]claimant{b0, b2}, []int{0, 0, 0, 0, 2, 2, 2}},
	} {
		if got := populate(7, slices.Clone(tt.of)); !slices.Equal(got, tt.want) {
			t.Errorf("want %v, got %v", tt.want, got)
		}
	}
}

// jhash is Jenkins' lookup3 for bytes, and these values are from its author.
// apply/nftables tests the kernel's result with packets.
func TestJHash(t *testing.T) {
	for _, tt := range []struct {
		key  string
		seed uint32
		want uint32
	}{
		{"", 0, 0xdeadbeef},
		{"", 0xdeadbeef, 0xbd5b7dde},
		{"Four score and seven years ago", 0, 0x17770551},
		{"Four score and seven years ago", 1, 0xcd628161},
	} {
		if got := jhash([]byte(tt.key), tt.seed); got != tt.want {
			t.Errorf("%q, %x: want %08x, got %08x", tt.key, tt.seed, tt.want, got)
		}
	}
}
