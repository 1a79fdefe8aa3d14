package monitor

import (
	"slices"
	"strings"
)

// Concern tells whether a change of a chain, or of what is in it, or of a
// table where the chain is empty, may be one of our rules.
type Concern func(table, chain string, removal bool) bool

// NFTables is what concerns mode nftables.
func NFTables(table, _ string, _ bool) bool { return table == "proxyc" }

// kubeletChains are chains by which the kubelet shows that it is there.
var kubeletChains = []string{"KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"}

// builtin are the chains that our jumps are in.
var builtin = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// IPTables is what concerns mode iptables in its nft variant.
func IPTables(table, chain string, removal bool) bool {
	switch {
	case table != "nat" && table != "filter":
		return false
	case chain == "":
		return removal
	case slices.Contains(builtin, chain):
		return removal
	}
	return strings.HasPrefix(chain, "KUBE-") && !slices.Contains(kubeletChains, chain)
}
