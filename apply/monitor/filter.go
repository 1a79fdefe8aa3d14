package monitor

import (
	"slices"
	"strings"

	rules "github.com/proxyc/proxyc/render/iptables"
	nft "github.com/proxyc/proxyc/render/nftables"
)

// Filter reports whether a change may affect our rules: a change of a chain or its content, or of
// a table if chain is empty. loss is true if something is removed or may be disabled, and for a new
// rule that may jump to one of our chains.
type Filter func(table, chain string, loss bool) bool

// NFTables is the Concern of mode nftables.
func NFTables(table, _ string, _ bool) bool { return table == nft.Table }

// IPTables is the Concern of mode iptables with iptables-nft.
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
