package compiler

import "net/netip"

// Facts describe the node beyond its Node object. Offline only NodeName is set;
// the addresses of the Node object then replace those of the interfaces.
type Facts struct {
	// NodeName is the host name or its override, trimmed and in lower case
	// (SNAP-70).
	NodeName string
	// Interfaces are the node's network interfaces; nil if unknown.
	Interfaces []Interface
	// Named are additional node addresses from the command line. They are ignored
	// if Interfaces is set.
	Named []Interface
	// PodCIDRs are the last known pod ranges of the node. Mode NodeCIDR uses them
	// if the Node object has none.
	PodCIDRs []netip.Prefix
	// Files reports that the objects are those of files, whose authors may set what an API server owns:
	// times of creation, allocated addresses and ports, the status of load balancers.
	Files bool
	// TCPBeLiberal reports whether the kernel accepts out-of-window TCP packets
	// (nf_conntrack_tcp_be_liberal), whichever program set it.
	TCPBeLiberal bool
	// HNSNetworkType is "Overlay" or "L2Bridge" (kernelspace). The default is
	// L2Bridge.
	HNSNetworkType string
	// HNSEndpoints are the addresses of local pods that HNS reports
	// (kernelspace). They are local whatever their nodeName. nil if unknown.
	HNSEndpoints map[netip.Addr]struct{}
}

// AllAddrsKnown reports whether all addresses of the node are known, so that any
// other address is foreign.
func (f *Facts) AllAddrsKnown() bool { return f.Interfaces != nil || len(f.Named) > 0 }

// Interface is a network interface with its addresses.
type Interface struct {
	Name  string
	Addrs []netip.Prefix
}
