package codec

// Flags of tables, in nft's words. Only the owner can change a table.
// With persist the table remains when its owner ends, and another process can adopt it.
const (
	FlagPersist = "persist"
	FlagsOwned  = "owner,persist"
)
