// Package flowtable keeps the fast path of mode nftables: a flowtable of the kernel, through which
// established connections to Services bypass its hooks.
package flowtable
