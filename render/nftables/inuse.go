package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// inUse is what the rules of shared chains depend on.
type inUse struct {
	numbers [2][]int // of backends, in order, for addresses and for node ports
	guarded bool     // some frontend has source ranges
	affine  [2]bool  // some has affinity: an address, a node port
}

// note takes account of a chain that comes or goes, and reports whether that makes
// a difference to others.
func (u *inUse) note(chain string, comes bool) bool {
	nodePort, n, ok := counted(chain)
	if !ok {
		flag := u.flag(chain)
		if flag == nil || *flag == comes {
			return false
		}
		*flag = comes
		return true
	}
	numbers := &u.numbers[btoi(nodePort)]
	i, there := slices.BinarySearch(*numbers, n)
	switch {
	case there == comes:
		return false
	case comes:
		*numbers = slices.Insert(slices.Clip(*numbers), i, n)
	default:
		*numbers = slices.Delete(slices.Clone(*numbers), i, i+1)
	}
	return true
}

// flag returns what says whether a chain is there to which shared ones lead; nil: it is none of these.
func (u *inUse) flag(chain string) *bool {
	switch chain {
	case chainFirewallCheck:
		return &u.guarded
	case chainAffinity:
		return &u.affine[0]
	case chainAffinityPorts:
		return &u.affine[1]
	}
	return nil
}

// chains returns those that depend on what is in use: what few clusters need is in no
// packet's way elsewhere.
func (u *inUse) chains(node *ir.Node, family ir.Family) []Chain {
	return slices.Concat([]Chain{postrouting(node, u.affine)}, checkChains(node, family, u.guarded), countingChains(node, u.numbers))
}

// depend has shared chains do what the chains need, and adds what chains that takes.
func (r *Ruleset) depend(node *ir.Node, chains []Chain) []Chain {
	var u inUse
	for i := range chains {
		u.note(chains[i].Name, true)
	}
	for _, c := range u.chains(node, r.Family) {
		if i := slices.IndexFunc(r.Chains, func(o Chain) bool { return o.Name == c.Name }); i >= 0 {
			r.Chains[i] = c
		} else {
			chains = append(chains, c)
		}
	}
	return chains
}
