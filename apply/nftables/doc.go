// Package nftables makes a kernel's nf_tables hold what render/nftables wants.
//
// A Dataplane reads the live tables over netlink, compares them with the wanted
// ones element by element (Plan), and sends what differs, for both families, in
// one batch that the kernel takes or refuses as a whole (Commit). The change of
// one Service is planned without reading and without looking at other Services,
// from that Service's fragments, which the Lowerers of render/nftables keep.
//
// The package speaks netlink itself, over a socket of mdlayher/netlink. The
// library google/nftables cannot give sets the memory of their typeof, without
// which nft lists maps of backends in a form that it does not read; it cuts
// lists of elements at 64 KiB without a word; and it does not tell which message
// of a batch was refused, on which the quarantine of Services rests.
package nftables
