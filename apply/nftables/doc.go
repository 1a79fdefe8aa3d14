// Package nftables applies the tables of render/nftables to the nf_tables of a node.
//
// A Dataplane reads the tables over netlink, plans the changes (Plan), and sends those of both
// families in one batch, which the kernel commits completely or not at all (Commit). It plans the
// change of one Service without reading, and without the other Services, from the fragments that
// the Lowerers of render/nftables keep. One function makes both kinds of plan: difference.
//
//	codec      objects of render/nftables ↔ attributes of nf_tables
//	conn       the connection: batches, lists, generations
//	flowtable  the fast path
//
// The library google/nftables is not used for rules and sets. It cannot set the typeof of sets,
// without which nft lists maps of backends in a form that it cannot read. It truncates lists of
// elements at 64 KiB without an error. And it does not report which message of a batch was
// rejected, which is needed to find the Service.
package nftables
