package compiler

import (
	"net/netip"
	"strconv"

	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// number returns a port number and whether it is valid.
func number(n int32) (uint16, bool) { return uint16(n), n > 0 && n <= 65535 }

// counted returns "1 thing" or "5 things".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// list returns the names of list elements: ports[0], ports[1], … The first names
// are built once, because every object needs them.
type list struct {
	before, after string
	made          []string
}

// newList prepares n names: "before0after", "before1after", …
func newList(before, after string, n int) list {
	l := list{before: before, after: after}
	for i := range n {
		l.made = append(l.made, l.name(i))
	}
	return l
}

func (l *list) name(i int) string { return l.before + strconv.Itoa(i) + l.after }

// at returns the name of element i.
func (l *list) at(i int) string {
	if i < len(l.made) {
		return l.made[i]
	}
	return l.name(i)
}

// unusableVIP returns why an address cannot be a Service address of the kind, or
// "". The API server does not validate load balancer addresses, and requires only
// that a ClusterIP is in a ServiceCIDR. Rules for 127.0.0.1 would intercept
// traffic between the node's own programs, sets reject 0.0.0.0, and multicast is
// never translated. A link-local load balancer address is valid.
func unusableVIP(kind ir.Kind, a netip.Addr) string {
	switch {
	case kind == ir.LoadBalancer && a.IsLinkLocalUnicast():
		return ""
	case kind != ir.ExternalIP && a.IsMulticast() && !a.IsLinkLocalMulticast():
		return "a multicast address"
	}
	return inet.Unusable(a)
}
