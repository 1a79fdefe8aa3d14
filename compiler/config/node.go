package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// NodeFamilies describes the node's IP families, as detected at run time.
type NodeFamilies struct {
	Primary   ir.Family
	DualStack bool           // the node has addresses of both
	OnlyOne   bool           // the node's kernel supports only the primary one
	PodCIDRs  []netip.Prefix // spec.podCIDRs of the Node
}

// CheckNode checks the configuration against the families of the node. Settings
// for only the other family are warnings, because rules of the primary family
// then differ from the intent. They are errors if pods cannot be detected
// (CFG-14). A nodePortAddresses without the primary family is a warning (CFG-15).
func (r *Resolved) CheckNode(n NodeFamilies) diag.List {
	v := &nodeCheck{c: r.Config, node: n}
	v.detectLocal()
	v.nodePortAddresses()
	v.sourceVip()
	if !n.DualStack {
		v.singleStack()
	}
	r.sources.locate(r.file(), v.diags)
	v.diags.Sort()
	return v.diags
}

// Advice returns settings that should be set explicitly, such as
// nodePortAddresses (CFG-15).
func (r *Resolved) Advice() diag.List {
	var list diag.List
	if r.ModeDefaulted() {
		list.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.ModeUnset, Path: "mode", Msg: fmt.Sprintf("is not set, %s is used", r.Config.Mode),
			Hint: "set it, since kube-proxy 1.40 will use nftables"})
	}
	mode := r.Config.ProxyMode()
	if len(r.Config.NodePortAddresses) == 0 && (mode == ir.ModeIPTables || mode == ir.ModeIPVS) {
		list.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.NodePortsAll, Path: "nodePortAddresses",
			Msg: "is not set, node ports answer on all addresses of the node", Hint: `set it to ["primary"]`})
	}
	r.sources.locate(r.file(), list)
	return list
}

// ModeDefaulted reports whether the mode is a default.
func (r *Resolved) ModeDefaulted() bool { return r.Source("mode").isDefault }

// file returns the configuration file, or "" if there is none.
func (r *Resolved) file() string { return r.sources["kind"].File }

type nodeCheck struct {
	c     *Config
	node  NodeFamilies
	diags diag.List
}

func (v *nodeCheck) add(sev diag.Severity, code diag.Code, path, msg, hint string) {
	v.diags.Add(diag.Diagnostic{Severity: sev, Code: code, Path: path, Msg: msg, Hint: hint})
}

func (v *nodeCheck) detectLocal() {
	switch v.c.DetectLocalMode {
	case DetectClusterCIDR:
		cidrs := v.c.ClusterCIDRs()
		switch {
		case v.otherFamily(cidrs):
			sev := diag.Warning
			if v.node.OnlyOne {
				sev = diag.Error
			}
			v.add(sev, diag.ClusterCIDRFamily, "clusterCIDR", fmt.Sprintf("must have an %s CIDR, the node's primary family, got %q", v.node.Primary, v.c.ClusterCIDR), "")
		case v.node.DualStack && len(cidrs) == 1:
			v.add(diag.Warning, diag.ClusterCIDRFamily, "clusterCIDR", fmt.Sprintf("has one family on a dual-stack node, got %q", v.c.ClusterCIDR), "add a CIDR of the other family")
		}
	case DetectNodeCIDR:
		if v.otherFamily(v.node.PodCIDRs) {
			v.add(diag.Error, diag.NodeCIDRFamily, "detectLocalMode", fmt.Sprintf("must not be %s, because no podCIDR of the Node is %s, its primary family", DetectNodeCIDR, v.node.Primary), "")
		}
	}
}

func (v *nodeCheck) nodePortAddresses() {
	const path = "nodePortAddresses"
	var cidrs []netip.Prefix
	for _, entry := range v.c.NodePortAddresses {
		p, ok := inet.ParsePrefix(entry)
		if !ok {
			return // a keyword covers both families
		}
		cidrs = append(cidrs, p)
	}
	if v.otherFamily(cidrs) {
		v.add(diag.Warning, diag.NodePortsFamily, path, fmt.Sprintf("has no %s CIDR, the node's primary family: node ports answer on all its %s addresses", v.node.Primary, v.node.Primary), "")
	}
}

func (v *nodeCheck) sourceVip() {
	if ip, ok := inet.ParseAddr(v.c.Winkernel.SourceVip); ok && !v.node.Primary.Has(ip) {
		v.add(diag.Warning, diag.AddressFamily, "winkernel.sourceVip", fmt.Sprintf("must be %s, the node's primary family, got %q", v.node.Primary, v.c.Winkernel.SourceVip), "")
	}
}

// singleStack checks settings that matter only on a single-stack node.
func (v *nodeCheck) singleStack() {
	var exclude []netip.Prefix
	for _, entry := range v.c.IPVS.ExcludeCIDRs {
		if p, ok := inet.ParsePrefix(entry); ok {
			exclude = append(exclude, p)
		}
	}
	if v.otherFamily(exclude) {
		v.add(diag.Warning, diag.AddressFamily, "ipvs.excludeCIDRs", fmt.Sprintf("has no %s CIDR, the node's only family", v.node.Primary), "")
	}
	for _, a := range []struct{ path, value string }{
		{"healthzBindAddress", v.c.HealthzBindAddress}, {"metricsBindAddress", v.c.MetricsBindAddress},
	} {
		host, _, _ := splitHostPort(a.value)
		if ip, ok := inet.ParseAddr(host); ok && !ip.IsUnspecified() && !v.node.Primary.Has(ip.Unmap()) {
			v.add(diag.Warning, diag.AddressFamily, a.path, fmt.Sprintf("must be %s, the node's only family, got %q", v.node.Primary, a.value), "")
		}
	}
}

// otherFamily reports whether the list is not empty and contains no CIDR of the
// primary family.
func (v *nodeCheck) otherFamily(cidrs []netip.Prefix) bool {
	return len(cidrs) > 0 && !slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return v.node.Primary.Has(p.Addr()) })
}
