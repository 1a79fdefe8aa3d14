package compiler

import (
	"net/netip"
	"strconv"

	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// parseAddr reads an IP address as the API does (SNAP-20); IPv4-mapped IPv6 is IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	a, ok := inet.ParseAddr(s)
	return a.Unmap(), ok
}

// number returns a port number, and whether it is valid.
func number(n int32) (uint16, bool) { return uint16(n), n > 0 && n <= 65535 }

// counted returns "1 thing" or "5 things".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// list gives the elements of a list field their names: ports[0], ports[1], …
// The first ones are made once, as they are needed for every object.
type list struct {
	before, after string
	made          []string
}

// newList prepares n names, "before0after", "before1after", …
func newList(before, after string, n int) list {
	l := list{before: before, after: after}
	for i := range n {
		l.made = append(l.made, l.name(i))
	}
	return l
}

func (l *list) name(i int) string { return l.before + strconv.Itoa(i) + l.after }

// at names element i.
func (l *list) at(i int) string {
	if i < len(l.made) {
		return l.made[i]
	}
	return l.name(i)
}

// unusable returns what is wrong with an address as that of an endpoint, or as
// an external IP; empty: nothing. The API server refuses the same
// (ValidateEndpointIP), and so what is refused here are files, and objects of
// servers that are older than that.
func unusable(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "unspecified"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsLinkLocalMulticast():
		return "a link-local multicast address"
	}
	return ""
}

// unusableVIP is unusable for an address of a Service. The API server says
// nothing of the addresses of load balancers, and of ClusterIPs only that they
// are of a ServiceCIDR, which may hold anything. But rules for 127.0.0.1 would
// take what the node's own programs send to each other, no set holds 0.0.0.0,
// and multicast is not translated. A link-local load balancer there can be.
func unusableVIP(kind ir.Kind, a netip.Addr) string {
	switch {
	case kind == ir.LoadBalancer && a.IsLinkLocalUnicast():
		return ""
	case kind != ir.ExternalIP && a.IsMulticast() && !a.IsLinkLocalMulticast():
		return "a multicast address"
	}
	return unusable(a)
}
