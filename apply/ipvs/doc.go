// Package ipvs applies the output of render/ipvs to the ip_vs of a node, with its ipsets, the
// device kube-ipvs0 and the iptables rules.
//
// Plan is a pure function. It returns requests in the order of execution, with a plan of
// apply/iptables among them. Additions start with sets, then virtual servers with their real
// servers, then rules, then addresses, which attract traffic. Removals use the opposite order. The
// kernel has no transactions here: if it rejects a request, the whole Service is omitted, and after
// an error everything is read again.
//
// Draining real servers are recognized in the kernel by their weight of 0. Virtual servers of other
// programs are kept. kube-proxy instead removes every virtual server of the node (IPV-7).
package ipvs
