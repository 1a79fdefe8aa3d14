package nftables

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// addr gives the address of a family whose text ends in s.
func addr(f ir.Family, s string) netip.Addr {
	if f == ir.IPv6 {
		return netip.MustParseAddr("fd00:10::" + s)
	}
	return netip.MustParseAddr("10.0.0." + s)
}

func testNode(f ir.Family) ir.Node {
	pods := netip.MustParsePrefix("10.128.0.0/9")
	if f == ir.IPv6 {
		pods = netip.MustParsePrefix("fd00:10:128::/48")
	}
	return ir.Node{
		Name: "node1", Mode: ir.ModeNFTables, MasqueradeBit: 14,
		NodePorts: ir.NodePortAddrs{All: true, Origin: ir.Origin{Object: "config", Field: "nodePortAddresses"}},
		Detector:  ir.Detector{Mode: ir.DetectCIDR, Prefix: pods, Origin: ir.Origin{Object: "config", Field: "clusterCIDR"}},
	}
}
