package nftables

import (
	"math/bits"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// inUse is the state on which the rules of shared chains depend.
type inUse struct {
	numbers [2][]int // numbers of backends, sorted, for addresses and for node ports
	affine  [2]bool  // some frontend has affinity: an address, a node port
}

// note records that a chain was added or removed. It reports whether this changes
// other chains.
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
	numbers := &u.numbers[ir.Int(nodePort)]
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

// noteAll is note for several chains.
func (u *inUse) noteAll(chains []Chain, exist bool) (changes bool) {
	for i := range chains {
		changes = u.note(chains[i].Name, exist) || changes
	}
	return changes
}

// flag returns the flag for a chain to which shared chains jump, or nil.
func (u *inUse) flag(chain string) *bool {
	switch chain {
	case chainAffinity:
		return &u.affine[0]
	case chainAffinityPorts:
		return &u.affine[1]
	}
	return nil
}

// chains returns the chains that depend on the state. Rules that few clusters
// need do not exist in others.
func (u *inUse) chains(node *ir.Node) []Chain {
	return slices.Concat([]Chain{postrouting(node, u.affine)}, countingChains(node, u.numbers))
}

// Shared returns the chains that no Service decides, for a table with some chains. If none of
// those sets the mark of the node, they have the mark of an older configuration, and Shared uses it.
func Shared(node *ir.Node, family ir.Family, existing []Chain) []Chain {
	var u inUse
	u.noteAll(existing, true)
	marking, same := *node, false
	for _, c := range existing {
		for _, r := range c.Rules {
			for _, s := range r.Stmts {
				if m, ok := s.(SetMark); ok && !same {
					same, marking.MasqueradeBit = m.Mask == node.MasqueradeMark(), uint8(bits.TrailingZeros32(m.Mask))
				}
			}
		}
	}
	return slices.Concat(baseChains(), fixedChains(node, family), u.chains(&marking))
}

// depend updates the shared chains for the given chains, and appends the chains
// that these require.
func (r *Ruleset) depend(node *ir.Node, chains []Chain) []Chain {
	var u inUse
	u.noteAll(chains, true)
	for _, c := range u.chains(node) {
		if i := slices.IndexFunc(r.Chains, func(o Chain) bool { return o.Name == c.Name }); i >= 0 {
			r.Chains[i] = c
		} else {
			chains = append(chains, c)
		}
	}
	return chains
}
