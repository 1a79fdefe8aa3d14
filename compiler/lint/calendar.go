package lint

import (
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// mode reports a deprecated proxy mode.
func mode(c *cluster) {
	if c.config.ProxyMode() == ir.ModeIPVS {
		c.found.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.ModeIPVS, Object: "config", Path: "mode",
			Msg: "ipvs is deprecated since 1.35, disabled by default from 1.40 on, and removed in 1.43 (KEP-5495)", Hint: "change to nftables: docs/operate.md"})
	}
}

func externalIPsEnd(c *cluster, s *service) {
	if len(s.ExternalIPs) > 0 {
		c.warn(s, diag.ExternalIPsEnd, "spec.externalIPs", "is deprecated since 1.36, disabled by default from 1.40 on, and removed in 1.43 (KEP-5707)")
	}
}

func preferClose(c *cluster, s *service) {
	if s.written.Distribution == "PreferClose" {
		c.info(s, diag.PreferClose, "spec.trafficDistribution", "PreferClose is deprecated since 1.35: PreferSameZone means the same (KEP-3015)")
	}
}

// kernels reports nodes whose kernel is too old for mode nftables. This is a
// warning if nftables is the mode, or will be by default.
func kernels(c *cluster) {
	severity := diag.Info
	if c.config.ProxyMode() == ir.ModeNFTables || c.Config.ModeDefaulted() {
		severity = diag.Warning
	}
	if c.config.ProxyMode() == ir.ModeKernelspace {
		return
	}
	for _, n := range c.nodes {
		object := "Node " + n.Name
		kernel := c.Written[object].Kernel
		if major, minor, ok := version(kernel); ok && (major < 5 || major == 5 && minor < 13) {
			c.found.Add(diag.Diagnostic{Severity: severity, Code: diag.KernelOld, Object: object, Path: "status.nodeInfo.kernelVersion",
				Msg: "must be 5.13 or newer for mode nftables, the default from 1.40 on (KEP-5343), got " + strconv.Quote(kernel)})
		}
	}
}

// version parses the leading major and minor number of a kernel version such as
// 5.10.0-28-amd64.
func version(text string) (major, minor int, ok bool) {
	first, rest, ok := strings.Cut(text, ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(rest[:end])
	return major, minor, ok && err1 == nil && err2 == nil
}
