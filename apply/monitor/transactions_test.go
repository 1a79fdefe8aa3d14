package monitor

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// by returns a transaction that changes something of ours.
func by(program string, process, generation uint32) transaction {
	return transaction{generation, program, process, true}
}

func TestTransactions(t *testing.T) {
	tool := func(process, generation uint32) transaction { return by("iptables-nft-re", process, generation) }
	for _, tc := range []struct {
		name string
		play func(*transactions) (foreign bool)
		want bool
	}{
		{"another program", func(s *transactions) bool { return s.add(by("nft", 7, 5)) }, true},
		{"not about us", func(s *transactions) bool { return s.add(transaction{5, "nft", 7, false}) }, false},
		{"our own", func(s *transactions) bool {
			w := s.begin(4)
			return s.add(tool(7, 5)) || s.end(w, 5, true)
		}, false},
		{"our own, reported late", func(s *transactions) bool {
			w := s.begin(4)
			return s.end(w, 5, true) || s.add(tool(7, 5))
		}, false},
		{"our own, several of one process", func(s *transactions) bool {
			w := s.begin(4)
			return s.add(tool(7, 5)) || s.end(w, 6, true) || s.add(tool(7, 6))
		}, false},
		{"our own, one after the other", func(s *transactions) bool {
			one := s.begin(4)
			foreign := s.end(one, 5, true)
			two := s.begin(5)
			return foreign || s.end(two, 6, true) || s.add(tool(7, 5)) || s.add(tool(8, 6))
		}, false},
		{"the same tool, when ours does not run", func(s *transactions) bool {
			w := s.begin(4)
			return !s.end(w, 5, true) && !s.add(tool(7, 5)) && s.add(tool(8, 6))
		}, true},
		{"the same tool, right before ours", func(s *transactions) bool {
			s.begin(4)
			return s.add(tool(8, 4))
		}, true},
		{"the same tool beside ours, before", func(s *transactions) bool {
			w := s.begin(4)
			foreign := s.add(tool(8, 5))
			foreign = s.add(tool(7, 6)) || foreign
			return s.end(w, 6, true) || foreign
		}, true},
		{"the same tool beside ours, after, reported late", func(s *transactions) bool {
			w := s.begin(4)
			return !s.end(w, 6, true) && !s.add(tool(7, 5)) && s.add(tool(8, 6))
		}, true},
		{"the same tool beside ours, which touches nothing that is watched", func(s *transactions) bool {
			w := s.begin(4)
			foreign := s.add(tool(8, 5))
			foreign = s.add(transaction{6, "iptables-nft-re", 7, false}) || foreign
			return s.end(w, 6, true) || foreign
		}, true},
		{"the same tool beside one of ours that fails", func(s *transactions) bool {
			w := s.begin(4)
			return !s.add(tool(8, 5)) && s.end(w, 5, false)
		}, true},
		{"the same tool beside one of ours that fails, reported late", func(s *transactions) bool {
			w := s.begin(4)
			return !s.end(w, 5, false) && s.add(tool(8, 5))
		}, true},
		{"the same tool in one of two windows at a time", func(s *transactions) bool {
			one, two := s.begin(4), s.begin(4)
			foreign := s.add(tool(7, 5)) || s.end(one, 5, true) // a third process, after the first window
			return !foreign && !s.add(tool(7, 6)) && s.add(tool(8, 7)) && !s.end(two, 7, true)
		}, true},
		{"beside ours, whose messages are lost", func(s *transactions) bool {
			w := s.begin(4)
			s.lost()
			return s.add(tool(8, 6)) && !s.end(w, 6, true)
		}, true},
		{"another program beside ours", func(s *transactions) bool {
			w := s.begin(4)
			return s.add(by("nft", 8, 5)) && !s.add(tool(7, 6)) && !s.end(w, 6, true)
		}, true},
		{"around the end of the numbers", func(s *transactions) bool {
			s.last = 1<<32 - 2
			w := s.begin(s.last)
			return s.end(w, 3, true) || s.add(tool(7, 1<<32-1)) || s.add(tool(7, 2))
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := transactions{own: []string{"iptables-nft-re"}, last: 4}
			if got := tc.play(&s); got != tc.want {
				t.Errorf("foreign: %t, want %t", got, tc.want)
			}
		})
	}
}

// In any order of messages and windows, foreign changes of our rules are reported, and nothing is
// without them.
func TestTransactionsRandom(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := transactions{own: []string{"iptables-nft-re"}, last: 1<<32 - 10}
		var reported []transaction // what the kernel will report
		got := false
		deliver := func() {
			if len(reported) > 0 {
				got = s.add(reported[0]) || got
				reported = reported[1:]
			}
		}
		generation, process := uint32(1<<32-10), uint32(100)
		foreign := false
		commit := func(process uint32, touched bool) {
			generation++
			reported = append(reported, transaction{generation, "iptables-nft-re", process, touched})
		}
		others := func() {
			for r.IntN(40) == 0 {
				foreign = true
				commit(9, true)
			}
		}
		for range 10 {
			others()
			w := s.begin(generation)
			process++
			certain := r.IntN(20) > 0
			for range 1 + r.IntN(3) {
				others()
				if certain || r.IntN(2) == 0 {
					commit(process, certain && r.IntN(4) > 0)
				}
				if r.IntN(2) == 0 {
					deliver()
				}
			}
			others()
			until := generation
			others()
			if r.IntN(2) == 0 {
				deliver()
			}
			got = s.end(w, until, certain) || got
		}
		for len(reported) > 0 {
			deliver()
		}
		if got != foreign {
			t.Fatalf("seed %d: reported %t, want %t", seed, got, foreign)
		}
		if len(s.windows) > 0 {
			t.Fatalf("seed %d: %d windows are kept", seed, len(s.windows))
		}
	}
}

func TestFilters(t *testing.T) {
	for _, tc := range []struct {
		c            Filter
		table, chain string
		loss         bool
		want         bool
	}{
		{NFTables, "proxyc", "", true, true},
		{NFTables, "filter", "KUBE-SERVICES", true, false},
		{IPTables, "nat", "KUBE-SERVICES", false, true},
		{IPTables, "nat", "PREROUTING", true, true},
		{IPTables, "nat", "PREROUTING", false, false}, // other programs add rules there, too
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

// The programs that changed something of ours are kept until they are returned, up to a limit.
func TestTransactionsBy(t *testing.T) {
	s := transactions{own: []string{"proxyc"}}
	more := true
	s.add(transaction{5, "nft", 7, more})
	s.add(transaction{6, "nft", 7, more})
	s.add(transaction{7, "iptables", 8, false}) // changes nothing of ours
	s.add(transaction{8, "", 0, more})
	if want := []string{"nft (process 7)", "a program that the kernel does not name"}; !slices.Equal(s.programs, want) {
		t.Errorf("got %q, want %q", s.programs, want)
	}
	for i := range uint32(100) {
		s.add(transaction{9 + i, "nft", 100 + i, more})
	}
	if len(s.programs) != maxPrograms {
		t.Errorf("%d are remembered, want %d", len(s.programs), maxPrograms)
	}
}
