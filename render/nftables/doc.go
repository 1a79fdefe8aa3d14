// Package nftables lowers Programs to nftables: one table "proxyc" for each IP
// family. The number of sets and chains does not depend on the number of
// Services, so that nearly every change consists of a few elements. Exceptions
// are session affinity and lists of source ranges, which have their own.
//
//	Program → Lower → Ruleset → Write   (a script for nft -f)
//	                          → eval    (the outcome for a packet)
//	          nft list → parse ↗
//
// A Ruleset is typed: chains of statements from a small closed vocabulary (Stmt),
// sets and maps, and elements. It is the union of a fixed part, which depends
// only on the node (Fixed), and one Fragment for each Service (LowerService). A
// Fragment is independent of other Services. Chains that distinguish frontends by
// their number of backends depend on all Fragments.
//
// The script requires nft 1.0.1 and kernel 5.13. It is applied as one transaction
// and can be loaded repeatedly. With nft 1.0.6 the tables can be listed, flushed
// and loaded again from their listing.
//
// The package is pure: equal Programs yield equal bytes.
package nftables
