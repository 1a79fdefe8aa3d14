package iptables

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables/iptest"
)

// chainsOf returns the text of each chain.
func chainsOf(t *Table, f ir.Family) map[string]string {
	chains := map[string]string{}
	for _, c := range t.Chains {
		var b []byte
		for i := range c.Rules {
			b = append(c.Rules[i].Append(b, f), '\n')
		}
		chains[c.Name] = string(b)
	}
	return chains
}

// TestChangeTouchesALeaf adds and removes one Service. In addition to its own
// chains, at most two chains of a tree may differ: the one that gets a rule and
// one that is split off.
func TestChangeTouchesALeaf(t *testing.T) {
	for _, family := range []ir.Family{ir.IPv4, ir.IPv6} {
		p := iptest.Many(family, 1000, 3)
		random := rand.New(rand.NewPCG(5, uint64(family)))
		with := chainsOf(&Lower(p).Nat, family)
		for range 50 {
			q := *p
			i := random.IntN(len(p.Services))
			if i%10 == 0 {
				i++ // these have three frontends
			}
			q.Services = append(append([]ir.Service(nil), p.Services[:i]...), p.Services[i+1:]...)
			own := map[string]bool{}
			for _, pool := range p.Services[i].Pools {
				own[poolChain(&pool)] = true
			}
			without := chainsOf(&Lower(&q).Nat, family)
			services, hairpin := 0, 0
			for name, rules := range with {
				switch changed := without[name] != rules; {
				case !changed || own[name]:
				case name[:8] == "KUBE-HPS" || name == chainHairpin:
					hairpin++
				default:
					services++
				}
			}
			if services > 2 || hairpin > 4 {
				t.Errorf("%s: %d dispatch chains and %d hairpin chains differ for one Service of three backends", family, services, hairpin)
			}
		}
	}
}

func TestTreeOfPorts(t *testing.T) {
	var entries []*Rule
	for _, protocol := range []ir.Protocol{ir.UDP, ir.TCP, ir.SCTP} {
		for i := range 25 {
			entries = append(entries, &Rule{Protocol: protocol, Ports: Port(uint16(30000 + 7*i)), Target: Accept})
		}
	}
	rules, chains := dispatch(byPort(), stemNodePortsTree, entries)
	show := func(rules []Rule) (out []string) {
		for i := range rules {
			out = append(out, string(rules[i].Append(nil, ir.IPv4)))
		}
		return out
	}
	want := []string{
		"-p tcp -m tcp --dport 29952:30207 -j KUBE-NPS-tcp-75", "-p udp -m udp --dport 29952:30207 -j KUBE-NPS-udp-75",
		"-p sctp -m sctp --dport 29952:30207 -j KUBE-NPS-sctp-75",
	}
	if diff := cmp.Diff(want, show(rules)); diff != "" {
		t.Errorf("root (-want +got):\n%s", diff)
	}
	want = []string{"-p tcp -m tcp --dport 30000 -j ACCEPT", "-p tcp -m tcp --dport 30007 -j ACCEPT", "-p tcp -m tcp --dport 30014 -j ACCEPT"}
	for _, c := range chains {
		if c.Name == "KUBE-NPS-tcp-753" {
			if diff := cmp.Diff(want, show(c.Rules)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.Name, diff)
			}
			return
		}
	}
	t.Error("no chain KUBE-NPS-tcp-753")
}

func TestThreshold(t *testing.T) {
	for _, n := range []int{treeThreshold, treeThreshold + 1} {
		var entries []*Rule
		for i := range n {
			entries = append(entries, &Rule{Dst: Single(netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})), Target: Accept})
		}
		rules, chains := dispatch(byDst(ir.IPv4), stemServicesTree, entries)
		if tree := n > treeThreshold; tree != (len(chains) > 0) || tree == (len(rules) == n) {
			t.Errorf("%d entries: %d rules and %d chains", n, len(rules), len(chains))
		}
	}
}

// dispatch returns the rules of a dispatch chain, and the chains below it.
func dispatch(s space, stem string, rules []*Rule) ([]Rule, []Chain) {
	var entries []entry
	for _, r := range rules {
		entries = append(entries, entry{key: s.key(r), rule: r})
	}
	d := newTree(s, stem, entries).all()
	return d.rules, d.below
}
