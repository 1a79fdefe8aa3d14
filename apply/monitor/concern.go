package monitor

import (
	"slices"
	"strings"

	rules "github.com/proxyc/proxyc/render/iptables"
)

// Concern tells whether a change of a chain, or of what is in it, or of a
// table where the chain is empty, may be one of our rules.
type Concern func(table, chain string, removal bool) bool

// NFTables is what concerns mode nftables.
func NFTables(table, _ string, _ bool) bool { return table == "proxyc" }

// IPTables is what concerns mode iptables in its nft variant.
func IPTables(table, chain string, removal bool) bool {
	builtIn, kubelet := rules.BuiltInChains(), rules.KubeletChains()
	switch {
	case table != "nat" && table != "filter":
		return false
	case chain == "":
		return removal
	case slices.Contains(builtIn[:], chain):
		return removal
	}
	return strings.HasPrefix(chain, "KUBE-") && !slices.Contains(kubelet[:], chain)
}
