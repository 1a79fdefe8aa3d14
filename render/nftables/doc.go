// Package nftables lowers Programs to nftables: one table "proxyc" for each
// IP family, in which the number of sets and chains does not depend on the
// number of Services, so that nearly every change is a handful of elements. Session
// affinity has some of its own, and each list of source ranges.
//
//	Program → Lower → Ruleset → Write   (a script for nft -f)
//	                          → eval    (the fate of a packet)
//	          nft list → parse ↗
//
// A Ruleset is typed: chains of statements from a small closed vocabulary
// (Stmt), sets and maps, and elements. It is the union of a fixed part, which
// depends on the node alone (Fixed), and one Fragment for each Service
// (LowerService); lowering a Service reads nothing of another's. Chains that tell
// frontends apart by the number of their backends come of all Fragments together.
//
// The script needs nft 1.0.1 and kernel 5.13, is applied as one transaction,
// and may be loaded again and again. What it makes can be listed, flushed and
// loaded again from its listing with nft 1.0.6.
//
// The package is pure: the same Programs give the same bytes.
package nftables
