package config

import (
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// Values of detectLocalMode.
const (
	DetectClusterCIDR         = "ClusterCIDR"
	DetectNodeCIDR            = "NodeCIDR"
	DetectBridgeInterface     = "BridgeInterface"
	DetectInterfaceNamePrefix = "InterfaceNamePrefix"
)

// Keywords of nodePortAddresses.
const (
	NodePortsPrimary   = "primary"   // the addresses of the Node object
	NodePortsLocalhost = "localhost" // 127.0.0.0/8 and ::1/128
	NodePortsAll       = "all"       // 0.0.0.0/0 and ::/0
)

// DefaultMasqueradeBit is the bit of the packet mark that requests masquerade.
const DefaultMasqueradeBit = 14

// The methods below return the effective value from the sections of the modes, as
// kube-proxy's conversion to its internal type does. A section is used only by
// its modes; iptables is the fallback (CFG-7).

// ProxyMode returns the mode as an ir.Mode.
func (c *Config) ProxyMode() ir.Mode { return ir.Mode(c.Mode) }

// MasqueradeAll reports whether all packets to a ClusterIP are masqueraded. All
// modes except nftables use the iptables section.
func (c *Config) MasqueradeAll() bool {
	if c.ProxyMode() == ir.ModeNFTables {
		return c.NFTables.MasqueradeAll
	}
	return c.IPTables.MasqueradeAll
}

// MasqueradeAllField returns the path of the field that MasqueradeAll uses.
func (c *Config) MasqueradeAllField() string {
	if c.ProxyMode() == ir.ModeNFTables {
		return "nftables.masqueradeAll"
	}
	return "iptables.masqueradeAll"
}

// MasqueradeBit returns the bit of the packet mark that requests masquerade. All
// modes except nftables use the iptables section.
func (c *Config) MasqueradeBit() uint8 {
	bit := c.IPTables.MasqueradeBit
	if c.ProxyMode() == ir.ModeNFTables {
		bit = c.NFTables.MasqueradeBit
	}
	if bit == nil {
		return DefaultMasqueradeBit
	}
	return uint8(*bit)
}

// SyncPeriod returns the maximum delay before a failed sync is retried. All modes
// except ipvs and nftables use the iptables section.
func (c *Config) SyncPeriod() time.Duration {
	period, _ := c.periods()
	return period.Duration
}

func (c *Config) periods() (period, least metav1.Duration) {
	switch c.ProxyMode() {
	case ir.ModeIPVS:
		return c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod
	case ir.ModeNFTables:
		return c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod
	}
	return c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod
}

// MinSyncPeriod returns the minimum time between two writes of rules. All modes
// except ipvs and nftables use the iptables section.
func (c *Config) MinSyncPeriod() time.Duration {
	_, least := c.periods()
	return least.Duration
}

// ClusterCIDRs returns the parts of clusterCIDR, at most one for each family.
func (c *Config) ClusterCIDRs() []netip.Prefix {
	var out []netip.Prefix
	for _, part := range strings.Split(c.ClusterCIDR, ",") {
		if p, ok := inet.ParsePrefix(part); ok {
			out = append(out, p)
		}
	}
	return out
}

// Scheduler returns the ipvs scheduler; the default is round robin.
func (c *Config) Scheduler() string {
	if c.IPVS.Scheduler == "" {
		return "rr"
	}
	return c.IPVS.Scheduler
}

// ProxyPorts returns the port range of mode userspace. ok is false if the kernel
// selects the ports: the range is empty or "0-0".
func (c *Config) ProxyPorts() (lo, hi uint16, ok bool) {
	lo, hi, valid := parsePortRange(c.PortRange)
	return lo, hi, valid && hi > 0
}
