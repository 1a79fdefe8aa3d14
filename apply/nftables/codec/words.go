package codec

import rules "github.com/proxyc/proxyc/render/nftables"

// Flags of tables, in nft's words. An owner keeps others from changing a table, and
// persist keeps the table when the owner has ended; then a next one can adopt it.
const (
	FlagPersist = "persist"
	FlagsOwned  = "owner,persist"
)

// ChainType is nft's and the kernel's word for the type of a base chain.
func ChainType(base *rules.Base) string {
	if base.NAT {
		return "nat"
	}
	return "filter"
}
