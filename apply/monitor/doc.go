// Package monitor reports when others may have changed the rules of the node: by
// the kernel's messages for nf_tables, by looking at the tables for the older
// iptables.
//
// Own work is done inside [Monitor].Own, and is not reported. What others do at
// the same time is.
package monitor
