package monitor

import (
	"slices"
	"strings"

	rules "github.com/proxyc/proxyc/render/iptables"
	nft "github.com/proxyc/proxyc/render/nftables"
)

// Concern reports whether a change of a chain, or of what is in it, or of a
// table where the chain is empty, may be one of our rules. loss is true if something
// goes or may be in force no longer, and for a new rule that may jump to a chain of ours.
type Concern func(table, chain string, loss bool) bool

// NFTables is what concerns mode nftables.
func NFTables(table, _ string, _ bool) bool { return table == nft.Table }

// IPTables is what concerns mode iptables in its nft variant.
func IPTables(table, chain string, loss bool) bool {
	builtIn, kubelet := rules.BuiltInChains(), rules.KubeletChains()
	switch {
	case table != "nat" && table != "filter":
		return false
	case chain == "":
		return loss
	case slices.Contains(builtIn[:], chain):
		return loss
	}
	return strings.HasPrefix(chain, "KUBE-") && !slices.Contains(kubelet[:], chain)
}
