// Package ipvs makes the ip_vs of a node hold what render/ipvs wants, with the
// ipsets, the device kube-ipvs0 and the rules of iptables that belong to it.
//
// Plan is pure: it gives requests in the order in which they are made, and a
// plan of apply/iptables in their midst. Sets come first, then virtual servers
// with their real ones, then rules, then addresses, which draw traffic; what
// goes does so the other way round. The kernel has no transactions here: a
// request that it refuses has its Service left out as a whole, and after an
// error everything is read again.
//
// Real servers that drain are known from the kernel, by their weight of 0. What
// belongs to others stays, unlike with kube-proxy, which removes every virtual
// server whoever made it (IPV-7).
package ipvs
