// Package nftables lowers Programs to nftables: one table "proxyc" for each IP
// family. The number of sets and chains does not depend on the number of
// Services, so that nearly every change consists of a few elements. Exceptions
// are session affinity, lists of source ranges and shared pools, which have their
// own.
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
// A pool is shared if that saves many elements. Measured on Linux 6.18 with pools,
// frontends of each and backends of each; unshared, then shared:
//
//	pools × frontends × backends   load             kernel memory   commit of another Service
//	1,000 × 4 × 16                 0.41 s, 0.28 s    7 MB, 4 MB     0.02 ms, 1.1 ms
//	1,000 × 4 × 128                9.5 s, 2.2 s     54 MB, 15 MB    0.46 ms, 1.2 ms
//	1,000 × 16 × 32                7.9 s, 0.75 s    50 MB, 7 MB     0.04 ms, 5.9 ms
//	100 × 100 × 50                 5.9 s, 0.15 s    57 MB, 1.5 MB   0.09 ms, 1.0 ms
//	5,000 × 4 × 32                 7.2 s, 6.8 s     78 MB, 34 MB    0.04 ms, 13 ms
//	10,000 × 3 × 8                 0.9 s, 12.7 s    29 MB, 35 MB
//
// A chain and a map cost the memory of 40 elements, and a jump of a frontend adds
// 0.1 to 0.4 µs to each commit. The kernel finds a set by traversing the names of all, so
// thousands of maps take longer to load than the elements that they save. Hence
// ir.MinShared: 150,000 endpoints, the most of a cluster, make at most 1,800 shared
// pools with four frontends each.
//
// The script requires nft 1.0.1 and kernel 5.13. It is applied as one transaction
// and can be loaded repeatedly. With nft 1.0.6 the tables can be listed, flushed
// and loaded again from their listing.
//
// The package is pure: equal Programs yield equal bytes.
package nftables
