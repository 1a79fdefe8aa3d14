package compiler

import "net/netip"

// Facts are what is known of the node besides its Node object. Offline, only
// NodeName is: then the addresses of the Node object stand for its interfaces'.
type Facts struct {
	// NodeName is the host name or its override, trimmed and in lower case (SNAP-70).
	NodeName string
	// Interfaces are the node's network interfaces; nil: not known.
	Interfaces []Interface
	// Named are addresses of the node that somebody named, beside those of the
	// Node object; they do not count where Interfaces are known.
	Named []Interface
	// PodCIDRs are the node's pod ranges as they were last known; they count in
	// mode NodeCIDR where the Node names none (any more).
	PodCIDRs []netip.Prefix
	// TCPBeLiberal reports whether the kernel accepts out-of-window TCP packets
	// (nf_conntrack_tcp_be_liberal), whoever set it.
	TCPBeLiberal bool
	// HNSNetworkType is "Overlay" or "L2Bridge" (kernelspace); "" counts as L2Bridge.
	HNSNetworkType string
	// HNSEndpoints are addresses of the endpoints that HNS has of this node (kernelspace):
	// pods of the node, whatever nodeName says. nil: not known.
	HNSEndpoints map[netip.Addr]struct{}
}

// AllAddrsKnown reports whether all addresses of the node are known, so that others are not its own.
func (f *Facts) AllAddrsKnown() bool { return f.Interfaces != nil || len(f.Named) > 0 }

// Interface is a network interface with its addresses.
type Interface struct {
	Name  string
	Addrs []netip.Prefix
}
