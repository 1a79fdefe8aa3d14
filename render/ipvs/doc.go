// Package ipvs lowers Programs for mode ipvs. The result consists of virtual
// servers with their real servers for the kernel's load balancer, and the
// addresses of the dummy device kube-ipvs0. The kernel accepts packets to these
// addresses. It also contains the ipsets and iptables rules that masquerade and
// filter these packets.
//
// The iptables rules depend only on the node's settings, and on source ranges
// that exclude the node itself. A Service consists of virtual servers and set
// elements, so that updates change no rule.
//
// Names and sets are those of kube-proxy. IPV-1 to IPV-14 define the device,
// virtual servers, node ports, sets and rules.
package ipvs
