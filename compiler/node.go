package compiler

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// nodeInput is the input of nodePass.
type nodeInput struct {
	cfg     *config.Config
	mode    ir.Mode
	facts   Facts
	object  *snapshot.Node // nil if not in the snapshot
	invalid bool           // the Node was not decoded because of an error
	nodes   []*snapshot.Node
	cidrs   []*snapshot.ServiceCIDR
}

// newNodeInput returns the snapshot's part of the input for the node that the
// facts name.
func newNodeInput(snap *snapshot.Snapshot, facts Facts) nodeInput {
	return nodeInput{facts: facts, object: snap.Node(facts.NodeName), invalid: snap.InvalidNode(facts.NodeName) != nil,
		nodes: snap.Nodes(), cidrs: snap.ServiceCIDRs()}
}

// nodePass returns the node's part of a Program.
func nodePass(in nodeInput, family ir.Family) (ir.Node, diag.List) {
	var diags diag.List
	n := ir.Node{
		Name:          in.facts.NodeName,
		Mode:          in.mode,
		IP:            in.primaryAddr(family),
		MasqueradeBit: in.cfg.MasqueradeBit(),
		ServiceCIDRs:  in.serviceCIDRs(family),
	}
	if in.object != nil {
		n.Zone = in.object.Zone
	}
	n.Addrs = in.addrs(family, n.IP)
	n.MasqueradeAll = in.linux() && in.cfg.MasqueradeAll()
	n.NodePorts = in.nodePorts(family, n.IP, &diags)
	n.Detector = in.detector(family, n.IP, &diags)
	if in.caps().Has(ir.DropsInvalid) {
		n.DropInvalid = !in.cfg.Conntrack.TCPBeLiberal && !in.facts.TCPBeLiberal
		if in.facts.TCPBeLiberal && !in.cfg.Conntrack.TCPBeLiberal && family == ir.IPv4 {
			diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.ConfigNoEffect, Object: "config", Path: "conntrack.tcpBeLiberal",
				Msg: "is false, but this node's kernel has nf_conntrack_tcp_be_liberal: packets in state INVALID are not dropped"})
		}
	}
	switch in.mode { // settings of one mode
	case ir.ModeIPVS:
		n.IPVS = in.ipvs(family)
	case ir.ModeKernelspace:
		n.HNS = in.hns(family, &diags)
	case ir.ModeUserspace:
		n.Userspace = in.userspace(family)
	}
	return n, diags
}

// CheckNodeName reports that a snapshot has no Node with the name in the facts.
// Compile includes this finding; callers that compile in steps call
// CheckNodeName.
func CheckNodeName(snap *snapshot.Snapshot, facts Facts) diag.List {
	return newNodeInput(snap, facts).nodeDiags()
}

// nodeDiags reports an unknown node.
func (in nodeInput) nodeDiags() diag.List {
	switch {
	case in.facts.NodeName == "":
		return diag.List{{Severity: diag.Warning, Code: diag.NodeUnknown, Object: "config", Path: "hostnameOverride",
			Msg:  "the node's name is unknown: no endpoint is treated as local",
			Hint: "set --hostname-override to the name of the node"}}
	case in.invalid: // reported with the object's error
	case in.object == nil:
		return diag.List{{Severity: diag.Warning, Code: diag.NodeUnknown, Object: "Node " + in.facts.NodeName,
			Msg:  "not in the snapshot" + otherNodes(in.nodes) + ": its addresses, zone and pod ranges are unknown",
			Hint: "add the Node object, or set --hostname-override to another node"}}
	}
	return nil
}

// otherNodes lists the names of existing Nodes, for a hint.
func otherNodes(nodes []*snapshot.Node) string {
	const shown = 5
	text := ""
	for i, n := range nodes[:min(shown, len(nodes))] {
		text += [...]string{", which has ", ", "}[min(i, 1)] + n.Name
	}
	if more := len(nodes) - shown; more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return text
}

// primaryAddr returns the node's address of a family: bindAddress, InternalIP,
// then ExternalIP (SNAP-71). It is invalid if there is none.
func (in nodeInput) primaryAddr(family ir.Family) netip.Addr {
	for _, a := range in.ownAddrs() {
		if family.Has(a) {
			return a
		}
	}
	return netip.Addr{}
}

// ownAddrs returns the node's addresses, the primary one first.
func (in nodeInput) ownAddrs() []netip.Addr {
	addrs := slices.Concat(in.statusAddrs("InternalIP"), in.statusAddrs("ExternalIP"))
	if a, ok := inet.ParseUnmapped(in.cfg.BindAddress); ok && !a.IsUnspecified() {
		return slices.Insert(addrs, 0, a)
	}
	return addrs
}

// NodeFamilies returns the IP families of a node by its addresses, for
// config.CheckNode. ok is false if no address is known. node may be nil. If the
// interfaces are known, they decide whether the kernel supports the other family.
func NodeFamilies(cfg *config.Config, node *snapshot.Node, interfaces []Interface) (f config.NodeFamilies, ok bool) {
	addrs := nodeInput{cfg: cfg, object: node}.ownAddrs()
	if node == nil || len(addrs) == 0 {
		return f, false
	}
	f.Primary, f.PodCIDRs = ir.FamilyOf(addrs[0]), node.PodCIDRs
	f.DualStack = slices.ContainsFunc(addrs, func(a netip.Addr) bool { return ir.FamilyOf(a) != f.Primary })
	f.OnlyOne = interfaces != nil && !slices.ContainsFunc(interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return ir.FamilyOf(p.Addr()) != f.Primary })
	})
	return f, true
}

// statusAddrs returns the addresses of one type in the Node object.
func (in nodeInput) statusAddrs(kind string) []netip.Addr {
	if in.object == nil {
		return nil
	}
	var addrs []netip.Addr
	for _, a := range in.object.Addresses {
		if addr, ok := inet.ParseUnmapped(a.Address); ok && a.Type == kind {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// addrs returns all known addresses of the node except loopback, sorted.
func (in nodeInput) addrs(family ir.Family, primary netip.Addr) []netip.Addr {
	var all []netip.Addr
	interfaces := in.facts.Interfaces
	if interfaces == nil {
		all = slices.Concat([]netip.Addr{primary}, in.statusAddrs("InternalIP"), in.statusAddrs("ExternalIP"))
		interfaces = in.facts.Named
	}
	for _, i := range interfaces {
		for _, p := range i.Addrs {
			if i.Name != ir.IPVSDevice {
				all = append(all, p.Addr().Unmap().WithZone(""))
			}
		}
	}
	all = slices.DeleteFunc(all, func(a netip.Addr) bool {
		return !family.Has(a) || a.IsLoopback() || a.IsUnspecified()
	})
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Clip(slices.Compact(all))
}

// linux reports whether the mode consists of Linux kernel rules alone. Other
// modes read neither detectLocalMode nor masqueradeAll.
func (in nodeInput) linux() bool { return in.caps().Has(ir.Masquerades) }

func (in nodeInput) caps() ir.Capability { return in.mode.Capabilities() }

// serviceCIDRs returns the ranges of the ServiceCIDR objects in a family. Mode
// nftables filters unused addresses in them (SNAP-65).
func (in nodeInput) serviceCIDRs(family ir.Family) []ir.CIDR {
	var out []ir.CIDR
	for _, c := range in.cidrs {
		for i, p := range c.CIDRs {
			if family.Has(p.Addr()) {
				out = append(out, ir.CIDR{Prefix: p.Masked(), Origin: ir.Origin{
					Object: "ServiceCIDR " + c.Name, Field: "spec.cidrs[" + strconv.Itoa(i) + "]"}})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b ir.CIDR) int { return a.Prefix.Compare(b.Prefix) })
	return slices.CompactFunc(out, func(a, b ir.CIDR) bool { return a.Prefix == b.Prefix })
}

// nodePorts resolves nodePortAddresses: ranges or keywords, or all addresses of a
// family that no entry names (SNAP-73).
func (in nodeInput) nodePorts(family ir.Family, primary netip.Addr, diags *diag.List) ir.NodePortAddrs {
	origin := configOrigin("nodePortAddresses")
	if !in.caps().Has(ir.ListsNodePortAddresses) {
		if len(in.cfg.NodePortAddresses) > 0 {
			diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.ModeNodePorts, Object: "config", Path: "nodePortAddresses",
				Msg: "has no effect in mode " + string(in.mode)})
		}
		origin.Reason = "mode " + string(in.mode) + " serves every address"
		return ir.NodePortAddrs{All: true, Origin: origin}
	}
	addrs := ir.NodePortAddrs{Origin: origin}
	named := false      // an entry names this family
	var localhost []int // indexes of entries about localhost
	for i, entry := range in.cfg.NodePortAddresses {
		o := configOrigin("nodePortAddresses[" + strconv.Itoa(i) + "]")
		p, ok := inet.ParsePrefix(entry)
		if namesLocalhost(family, entry, p) {
			localhost = append(localhost, i)
		}
		switch {
		case entry == config.NodePortsAll:
			addrs.All, named = true, true
		case entry == config.NodePortsLocalhost:
			o.Reason, named = entry, true
			addrs.Prefixes = append(addrs.Prefixes, ir.NodePortPrefix{Prefix: family.Loopback(), Assigned: true, Origin: o})
		case entry == config.NodePortsPrimary:
			o.Reason, named = "the node's primary address", true
			if primary.IsValid() {
				addrs.Prefixes = append(addrs.Prefixes, ir.NodePortPrefix{Prefix: netip.PrefixFrom(primary, family.Bits()), Origin: o})
			}
		case !ok:
			diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.ConfigValue, Object: "config", Path: o.Field,
				Msg: "must be a CIDR, primary, localhost or all, got " + strconv.Quote(entry)})
		case !family.Has(p.Addr()):
		case p.Bits() == 0:
			addrs.All, named = true, true
		default:
			named = true
			addrs.Prefixes = append(addrs.Prefixes, ir.NodePortPrefix{Prefix: p, Assigned: true, Origin: o})
		}
	}
	switch {
	case len(in.cfg.NodePortAddresses) == 0:
		addrs.All, addrs.Origin.Reason = true, "not set: every address"
	case !named:
		addrs.All, addrs.Origin.Reason = true, "names no "+family.String()+" range: every address"
	}
	if addrs.All {
		addrs.Prefixes = nil
	}
	addrs.Prefixes = sortPrefixes(addrs.Prefixes)
	addrs.Loopback = in.loopbackNodePorts(family, addrs)
	addrs.Rejected = in.caps().Has(ir.ProxiesLocalhost) && in.cfg.Enabled(config.GateLocalhost)
	addrs.Proxied = len(localhost) > 0 && addrs.Rejected
	if !addrs.Loopback && !addrs.Proxied {
		in.checkLocalhost(family, localhost, diags)
	}
	return addrs
}

// namesLocalhost reports whether an entry of nodePortAddresses covers only
// loopback addresses, 127.0.0.1 or not. Only then does kube-proxy serve localhost
// in mode nftables (KEP-6032).
func namesLocalhost(family ir.Family, entry string, p netip.Prefix) bool {
	return entry == config.NodePortsLocalhost ||
		p.IsValid() && family.Has(p.Addr()) && p.Masked().Addr().IsLoopback()
}

// checkLocalhost reports entries of nodePortAddresses that request localhost in a
// mode that does not serve it. The keyword localhost is checked for IPv4 only:
// clients rarely need ::1 if 127.0.0.1 answers.
func (in nodeInput) checkLocalhost(family ir.Family, entries []int, diags *diag.List) {
	why := "in mode " + string(in.mode)
	switch caps := in.caps(); {
	case caps.Has(ir.LocalhostNodePorts) && family == ir.IPv4:
		why = "while iptables.localhostNodePorts is false"
	case caps.Has(ir.ProxiesLocalhost):
		why = "in mode " + string(in.mode) + " while feature gate " + config.GateLocalhost + " is off"
	}
	for _, i := range entries {
		if family == ir.IPv6 && in.cfg.NodePortAddresses[i] == config.NodePortsLocalhost {
			continue
		}
		diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.ModeLocalhost, Object: "config", Path: "nodePortAddresses[" + strconv.Itoa(i) + "]",
			Msg: "node ports do not answer at " + family.Localhost().String() + " " + why})
	}
}

func sortPrefixes(list []ir.NodePortPrefix) []ir.NodePortPrefix {
	slices.SortStableFunc(list, func(a, b ir.NodePortPrefix) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), ir.Int(a.Assigned)-ir.Int(b.Assigned)) // prefer the entry that applies even if the address is not assigned
	})
	return slices.CompactFunc(list, func(a, b ir.NodePortPrefix) bool { return a.Prefix == b.Prefix })
}

// loopbackNodePorts reports whether node ports answer at loopback addresses. Mode
// iptables requires iptables.localhostNodePorts (PKT-16).
func (in nodeInput) loopbackNodePorts(family ir.Family, addrs ir.NodePortAddrs) bool {
	wanted := in.cfg.IPTables.LocalhostNodePorts == nil || *in.cfg.IPTables.LocalhostNodePorts
	if caps := in.caps(); !caps.Has(ir.LocalhostNodePorts) || !caps.Has(ir.LocalhostByProcess) && (family != ir.IPv4 || !wanted) {
		return false
	}
	return addrs.All || slices.ContainsFunc(addrs.Prefixes, func(p ir.NodePortPrefix) bool {
		return p.Prefix.Overlaps(family.Loopback())
	})
}

// detector resolves detectLocalMode, which selects how pods are detected (DET-1
// to DET-5).
func (in nodeInput) detector(family ir.Family, primary netip.Addr, diags *diag.List) ir.Detector {
	if !in.linux() {
		return ir.Detector{Origin: ir.Origin{Object: "config", Field: "detectLocalMode",
			Reason: "mode " + string(in.mode) + " cannot detect local pods"}}
	}
	switch in.cfg.DetectLocalMode {
	case config.DetectBridgeInterface:
		return ir.Detector{Mode: ir.DetectInterface, Interface: in.cfg.DetectLocal.BridgeInterface,
			Origin: configOrigin("detectLocal.bridgeInterface")}
	case config.DetectInterfaceNamePrefix:
		return ir.Detector{Mode: ir.DetectPrefix, Interface: in.cfg.DetectLocal.InterfaceNamePrefix,
			Origin: configOrigin("detectLocal.interfaceNamePrefix")}
	case config.DetectNodeCIDR:
		origin := ir.Origin{Object: "Node " + in.facts.NodeName, Field: "spec.podCIDRs"}
		if in.object != nil && len(in.object.PodCIDRs) > 0 {
			return cidrDetector(in.object.PodCIDRs, family, primary, origin, diags)
		}
		if len(in.facts.PodCIDRs) > 0 && family == ir.IPv4 {
			diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoPodRange, Object: origin.Object, Path: origin.Field,
				Msg: "names no pod range: the previous ranges remain effective"})
		}
		return cidrDetector(in.facts.PodCIDRs, family, primary, origin, diags)
	}
	d := cidrDetector(in.cfg.ClusterCIDRs(), family, primary, configOrigin("clusterCIDR"), diags)
	if d.Mode == ir.DetectCIDR && in.object != nil {
		for _, p := range in.object.PodCIDRs {
			if family.Has(p.Addr()) && (p.Bits() < d.Prefix.Bits() || !d.Prefix.Contains(p.Addr())) {
				diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.PodRangeOutside, Object: "config", Path: "clusterCIDR",
					Msg: d.Prefix.String() + " does not contain the pods' range " + p.String() + " of Node " + in.facts.NodeName + ": traffic from its pods is treated as external and masqueraded"})
			}
		}
	}
	return d
}

func configOrigin(field string) ir.Origin { return ir.Origin{Object: "config", Field: field} }

// cidrDetector returns a detector for the first range of the family, or none. A
// missing range is reported if the node has an address of the family.
func cidrDetector(cidrs []netip.Prefix, family ir.Family, primary netip.Addr, origin ir.Origin, diags *diag.List) ir.Detector {
	for _, p := range cidrs {
		if family.Has(p.Addr()) {
			return ir.Detector{Mode: ir.DetectCIDR, Prefix: p.Masked(), Origin: origin}
		}
	}
	if primary.IsValid() {
		diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoPodRange, Object: origin.Object, Path: origin.Field,
			Msg: "names no " + family.String() + " range: local pods are not detected in " + family.String()})
	}
	origin.Reason = "no " + family.String() + " range"
	return ir.Detector{Origin: origin}
}

func (in nodeInput) ipvs(family ir.Family) *ir.IPVS {
	c := in.cfg.IPVS
	v := &ir.IPVS{
		Scheduler: in.cfg.Scheduler(), StrictARP: c.StrictARP,
		TCPTimeout: c.TCPTimeout.Duration, TCPFinTimeout: c.TCPFinTimeout.Duration, UDPTimeout: c.UDPTimeout.Duration,
	}
	for _, s := range c.ExcludeCIDRs {
		if p, ok := inet.ParsePrefix(s); ok && family.Has(p.Addr()) {
			v.ExcludeCIDRs = append(v.ExcludeCIDRs, p)
		}
	}
	slices.SortFunc(v.ExcludeCIDRs, netip.Prefix.Compare)
	v.ExcludeCIDRs = slices.Compact(v.ExcludeCIDRs)
	return v
}

func (in nodeInput) hns(family ir.Family, diags *diag.List) *ir.HNS {
	c := in.cfg.Winkernel
	h := &ir.HNS{
		NetworkName: c.NetworkName, NetworkType: cmp.Or(in.facts.HNSNetworkType, "L2Bridge"),
		EnableDSR: c.EnableDSR, RootEndpoint: c.RootHnsEndpointName, ForwardHealthCheckVIP: c.ForwardHealthCheckVip,
		HealthzPort: config.HealthzPort,
	}
	if c.NetworkName == "" {
		diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.ConfigValue, Object: "config", Path: "winkernel.networkName",
			Msg:  "must be the name of the HNS network, got none", // the name may come from the environment (WIN-2)
			Hint: "kube-proxy reads the node's environment variable KUBE_NETWORK instead, which is unknown here"})
	}
	if c.SourceVip == "" && strings.EqualFold(h.NetworkType, "Overlay") {
		diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.ConfigValue, Object: "config", Path: "winkernel.sourceVip",
			Msg: "must be the source IP address of masqueraded packets in overlay networks, got none"}) // overlay networks require a source VIP (WIN-4)
	}
	switch a, ok := inet.ParseUnmapped(c.SourceVip); {
	case ok && family.Has(a):
		h.SourceVIP = a
	case !ok && c.SourceVip != "":
		diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.ConfigValue, Object: "config", Path: "winkernel.sourceVip",
			Msg: "must be an IP address, got " + strconv.Quote(c.SourceVip)})
	}
	if a, err := netip.ParseAddrPort(in.cfg.HealthzBindAddress); err == nil {
		h.HealthzPort = a.Port()
	}
	return h
}

func (in nodeInput) userspace(family ir.Family) *ir.Userspace {
	u := &ir.Userspace{BindAddress: family.Any().Addr(), UDPIdleTimeout: in.cfg.UDPIdleTimeout.Duration}
	if a, ok := inet.ParseUnmapped(in.cfg.BindAddress); ok && family.Has(a) {
		u.BindAddress = a
	}
	if low, high, ok := in.cfg.ProxyPorts(); ok {
		u.PortMin, u.PortMax = low, high
	}
	return u
}
