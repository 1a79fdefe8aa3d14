// Package codec writes the objects of render/nftables as attributes of nf_tables, and reads
// them. It has no connection and no state.
//
// encode and stmt write sets, elements, chains and rules. decode reads them as the kernel
// lists them. What is not proxyc's is read, too: a rule as a description, an element as
// foreign. wire has the attributes of netlink, attributes the kernel's numbers.
package codec
