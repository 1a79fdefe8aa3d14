package codec

import rules "github.com/proxyc/proxyc/render/nftables"

// Flags of tables, in nft's words. Only the owner can change a table.
// With persist the table remains when its owner ends, and another process can adopt it.
const (
	FlagPersist = "persist"
	FlagsOwned  = "owner,persist"
)

// ChainType returns the type of a base chain, as in nft and in the kernel.
func ChainType(base *rules.Base) string {
	if base.NAT {
		return "nat"
	}
	return "filter"
}
