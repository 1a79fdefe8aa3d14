// Package nftables makes a kernel's nf_tables hold what render/nftables wants.
//
// A Dataplane reads the live tables over netlink, plans what makes the wanted ones out of
// them (Plan), and sends it, for both families, in one batch that the kernel commits as a
// whole or not at all (Commit). The change of one Service is planned without reading and
// without its neighbours, from the fragments that the Lowerers of render/nftables keep. Both
// plans are made by one function: difference.
//
//	codec      objects of render/nftables ↔ attributes of nf_tables
//	conn       the connection: batches, lists, generations
//	flowtable  the fast path
//
// The library google/nftables is not used for rules and sets. It cannot give sets the memory
// of their typeof, without which nft lists maps of backends in a form that it does not read.
// It cuts lists of elements at 64 KiB without an error. And it does not report which message
// of a batch was refused, which the quarantine of Services needs.
package nftables
