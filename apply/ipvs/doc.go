// Package ipvs finds and removes what the ipvs mode of kube-proxy left on a
// node: virtual servers, the device kube-ipvs0 and ipsets. What belongs to
// others stays, unlike with kube-proxy --cleanup, which removes every virtual
// server whoever made it (IPV-7).
package ipvs
