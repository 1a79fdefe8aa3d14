package monitor

import (
	"slices"
	"testing"
)

func TestTransactions(t *testing.T) {
	ours := func(generation uint32) transaction { return transaction{generation, "proxyc", 7, Touched{More: true}} }
	others := func(generation uint32) transaction { return transaction{generation, "nft", 7, Touched{More: true}} }
	for _, tc := range []struct {
		name string
		play func(*transactions) (foreign bool)
		want bool
	}{
		{"somebody else", func(s *transactions) bool { return s.met(others(5)) }, true},
		{"not about us", func(s *transactions) bool { return s.met(transaction{5, "nft", 7, Touched{}}) }, false},
		{"our own", func(s *transactions) bool {
			s.begin()
			return s.met(ours(5)) || s.end(5)
		}, false},
		{"our own, told late", func(s *transactions) bool {
			s.begin()
			return s.end(5) || s.met(ours(5))
		}, false},
		{"our own name, when we were not at work", func(s *transactions) bool {
			s.begin()
			return !s.end(5) && s.met(ours(6))
		}, true},
		{"somebody else, while we were at work", func(s *transactions) bool {
			s.begin()
			return !s.met(others(4)) && s.end(5)
		}, true},
		{"somebody else, while we were at work, told late", func(s *transactions) bool {
			s.begin()
			return !s.end(5) && s.met(others(4))
		}, true},
		{"around the end of the numbers", func(s *transactions) bool {
			s.begin()
			return s.end(3) || s.met(ours(1<<32-2))
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.play(&transactions{own: []string{"proxyc"}}); got != tc.want {
				t.Errorf("foreign: %t, want %t", got, tc.want)
			}
		})
	}
}

// What others touched is held until it is taken, element by element as long as
// that is little; our own work is not.
func TestTouched(t *testing.T) {
	s := transactions{own: []string{"proxyc"}}
	one := func(program string, elements int) transaction {
		return transaction{5, program, 7, Touched{Elements: make([][]byte, elements)}}
	}
	s.begin()
	s.met(one("proxyc", 7))
	s.met(one("nft", 2))
	s.end(5)
	s.met(one("nft", 1))
	if got := s.touched; len(got.Elements) != 3 || got.More {
		t.Errorf("got %d elements, more %t, want 3", len(got.Elements), got.More)
	}
	if s.met(one("nft", mostElements)); s.touched.Elements != nil || !s.touched.More {
		t.Error("elements are held without bound")
	}
}

func TestConcerns(t *testing.T) {
	for _, tc := range []struct {
		c            Concern
		table, chain string
		loss         bool
		want         bool
	}{
		{NFTables, "proxyc", "", true, true},
		{NFTables, "filter", "KUBE-SERVICES", true, false},
		{IPTables, "nat", "KUBE-SERVICES", false, true},
		{IPTables, "nat", "PREROUTING", true, true},
		{IPTables, "nat", "PREROUTING", false, false}, // others put rules there, too
		{IPTables, "nat", "CNI-HOSTPORT-DNAT", true, false},
		{IPTables, "nat", "KUBE-KUBELET-CANARY", false, false},
		{IPTables, "mangle", "KUBE-SERVICES", true, false},
		{IPTables, "nat", "", true, true}, // the table itself
	} {
		if got := tc.c(tc.table, tc.chain, tc.loss); got != tc.want {
			t.Errorf("%s %s, loss %t: %t, want %t", tc.table, tc.chain, tc.loss, got, tc.want)
		}
	}
}

// Who changed something of ours is remembered until it is asked for, by what the
// kernel says of them; a few of them.
func TestTransactionsBy(t *testing.T) {
	s := transactions{own: []string{"proxyc"}}
	more := Touched{More: true}
	s.met(transaction{5, "nft", 7, more})
	s.met(transaction{6, "nft", 7, more})
	s.met(transaction{7, "iptables", 8, Touched{}}) // nothing of ours
	s.met(transaction{8, "", 0, more})
	if want := []string{"nft (process 7)", "a program that the kernel does not name"}; !slices.Equal(s.by, want) {
		t.Errorf("got %q, want %q", s.by, want)
	}
	for i := range uint32(100) {
		s.met(transaction{9 + i, "nft", 100 + i, more})
	}
	if len(s.by) != mostBy {
		t.Errorf("%d are remembered, want %d", len(s.by), mostBy)
	}
}
