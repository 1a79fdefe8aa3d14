package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// Default ports of kube-proxy's own servers.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// Default returns the configuration of an empty file, before Complete.
func Default() *Config {
	c := &Config{APIVersion: APIVersion, Kind: Kind}
	SetDefaults(c)
	return c
}

// SetDefaults sets the defaults of unset fields, as kube-proxy does for a
// configuration file. A zero value counts as unset, except in pointers (CFG-5).
func SetDefaults(c *Config) { setDefaults(c, sources{}) }

func setDefaults(c *Config, s sources) {
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	fill(s, "clientConnection.contentType", &c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf", "")
	fill(s, "clientConnection.qps", &c.ClientConnection.QPS, 5, "")
	fill(s, "clientConnection.burst", &c.ClientConnection.Burst, 10, "")

	fill(s, "logging.format", &c.Logging.Format, "text", "")
	fill(s, "logging.flushFrequency", &c.Logging.FlushFrequency.Duration, seconds(5), "")
	fill(s, "logging.options.text.infoBufferSize", &c.Logging.Options.Text.InfoBufferSize, "0", "")
	fill(s, "logging.options.json.infoBufferSize", &c.Logging.Options.JSON.InfoBufferSize, "0", "")

	setAddresses(c, s)

	fill(s, "iptables.masqueradeBit", &c.IPTables.MasqueradeBit, new(int32(14)), "")
	fill(s, "iptables.localhostNodePorts", &c.IPTables.LocalhostNodePorts, new(true), "")
	fill(s, "iptables.syncPeriod", &c.IPTables.SyncPeriod, seconds(30), "")
	fill(s, "iptables.minSyncPeriod", &c.IPTables.MinSyncPeriod, seconds(1), "")
	fill(s, "ipvs.syncPeriod", &c.IPVS.SyncPeriod, seconds(30), "")
	fill(s, "nftables.masqueradeBit", &c.NFTables.MasqueradeBit, new(int32(14)), "")
	fill(s, "nftables.syncPeriod", &c.NFTables.SyncPeriod, seconds(30), "")
	fill(s, "nftables.minSyncPeriod", &c.NFTables.MinSyncPeriod, seconds(1), "")

	fill(s, "oomScoreAdj", &c.OOMScoreAdj, new(int32(-999)), "")
	fill(s, "conntrack.maxPerCore", &c.Conntrack.MaxPerCore, new(int32(32*1024)), "")
	fill(s, "conntrack.min", &c.Conntrack.Min, new(int32(128*1024)), "")
	fill(s, "conntrack.tcpEstablishedTimeout", &c.Conntrack.TCPEstablishedTimeout, new(seconds(24*60*60)), "")
	fill(s, "conntrack.tcpCloseWaitTimeout", &c.Conntrack.TCPCloseWaitTimeout, new(seconds(60*60)), "")
	fill(s, "configSyncPeriod", &c.ConfigSyncPeriod, seconds(15*60), "")
}

// setAddresses sets the servers' addresses by the family of bindAddress, and adds
// the default port to an address without one.
func setAddresses(c *Config, s sources) {
	fill(s, "bindAddress", &c.BindAddress, "0.0.0.0", "")
	healthz, metrics, why := "0.0.0.0", "127.0.0.1", ""
	if ip, ok := inet.ParseAddr(c.BindAddress); !ok || !ip.Unmap().Is4() {
		healthz, metrics, why = "::", "::1", "from bindAddress, which is not IPv4"
	}
	fill(s, "healthzBindAddress", &c.HealthzBindAddress, hostPort(healthz, HealthzPort), why)
	fill(s, "metricsBindAddress", &c.MetricsBindAddress, hostPort(metrics, MetricsPort), why)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, HealthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, MetricsPort)
}

// Complete sets the defaults that depend on the mode and platform (CFG-20). The
// default mode is iptables, as in kube-proxy on Linux before release 1.40
// (KEP-5343, CFG-23). A configuration for Windows must set mode kernelspace.
func Complete(c *Config) { complete(c, sources{}) }

func complete(c *Config, s sources) {
	fill(s, "mode", &c.Mode, string(ir.ModeIPTables), "on Linux")
	switch c.ProxyMode() {
	case ir.ModeKernelspace:
		return
	case ir.ModeUserspace:
		fill(s, "udpIdleTimeout", &c.UDPIdleTimeout, metav1.Duration{Duration: 250 * time.Millisecond}, "of mode userspace")
	case ir.ModeNFTables:
		if len(c.NodePortAddresses) == 0 {
			c.NodePortAddresses = []string{NodePortsPrimary}
			s.setDefault("nodePortAddresses", "of mode nftables")
		}
	}
	fill(s, "detectLocalMode", &c.DetectLocalMode, DetectClusterCIDR, "on Linux")
}

// fill sets a zero value to its default, and records the reason.
func fill[T comparable](s sources, path string, value *T, to T, why string) {
	var zero T
	if *value == zero {
		*value = to
		s.setDefault(path, why)
	}
}

func seconds(n int) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(n) * time.Second}
}
