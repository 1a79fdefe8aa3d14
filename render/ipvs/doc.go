// Package ipvs lowers Programs for the ipvs mode: virtual servers with their
// real servers for the kernel's load balancer, the addresses of the dummy
// device kube-ipvs0 that make the kernel take packets for them as its own, and
// the ipsets and iptables rules that masquerade and filter around it.
//
// The iptables rules depend on the node's settings alone (and on source ranges
// that shut the node itself out): a Service lives in virtual servers and set
// elements, so that updates touch no rule.
//
// Names and sets are those of kube-proxy (rules IPV-1 to IPV-14).
package ipvs
