package lint

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// knownOwner returns the owner of a well-known public or link-local address that
// no Service should use, or "".
func knownOwner(a netip.Addr) string {
	for _, known := range [...]struct{ owner, addrs string }{
		{"Google's resolver", "8.8.8.8 8.8.4.4 2001:4860:4860::8888 2001:4860:4860::8844"},
		{"Cloudflare's resolver", "1.1.1.1 1.0.0.1 2606:4700:4700::1111 2606:4700:4700::1001"},
		{"Quad9's resolver", "9.9.9.9 149.112.112.112 2620:fe::fe 2620:fe::9"},
		{"OpenDNS's resolver", "208.67.222.222 208.67.220.220 2620:119:35::35 2620:119:53::53"},
		{"Level 3's resolver", "4.2.2.1 4.2.2.2"},
		{"AliDNS's resolver", "223.5.5.5 223.6.6.6"},
		{"DNSPod's resolver", "119.29.29.29"},
		{"Yandex's resolver", "77.88.8.8 77.88.8.1"},
		{"Azure's resolver and health prober", "168.63.129.16"},
		{"the clouds' metadata server", "169.254.169.254 fd00:ec2::254"},
		{"the address of the node-local DNS cache", "169.254.20.10"},
	} {
		if slices.Contains(strings.Fields(known.addrs), a.String()) {
			return known.owner
		}
	}
	return ""
}

// externalAddresses reports external addresses that are owned by something else
// (CVE-2020-8554). The compiler rejects unusable external IPs. Addresses in
// status.loadBalancer come from a load balancer controller, or from anybody who
// may write status.
func externalAddresses(c *cluster, s *service) {
	for i, text := range s.ExternalIPs {
		if addr, ok := inet.ParseUnmapped(text); ok {
			c.externalAddress(s, at("spec.externalIPs", i), text, addr, false)
		}
	}
	for i, in := range s.LoadBalancer {
		if addr, ok := inet.ParseUnmapped(in.IP); ok && in.Served() {
			c.externalAddress(s, at("status.loadBalancer.ingress", i)+".ip", in.IP, addr, true)
		}
	}
}

func (c *cluster) externalAddress(s *service, path, text string, addr netip.Addr, balancer bool) {
	if node, is := c.nodeAddrs[addr]; is {
		severity := diag.Warning
		if balancer { // k3s' ServiceLB assigns node addresses to every Service
			severity = diag.Info
		}
		c.addService(s, severity, diag.ExternalIPOfNode, path, text+c.ofNode(node))
		return
	}
	if owner := knownOwner(addr); owner != "" {
		c.warn(s, diag.ExternalIPKnown, path, addr.String()+" is "+owner+": packets from pods to it go to the Service's endpoints")
		return
	}
	whose, shared := c.inside(s, addr), c.vips[addr]
	switch older := c.externals[addr]; {
	case balancer && older != nil && older.older(s):
		whose = "an external IP of " + older.Object
	case shared.kind != ir.LoadBalancer:
	case balancer && shared.service != s: // controllers share an address among Services; PX501 reports a port that two Services claim
		return
	case !balancer && s.older(shared.service): // the finding belongs to the younger one
		return
	}
	if whose != "" && c.hijacks(s, path) {
		c.warn(s, diag.ExternalIPInside, path, text+" is "+whose+": the Service receives its packets")
	}
}

// ofNode describes the effect of an external address that is a Node's.
func (c *cluster) ofNode(node string) string {
	text := " is an address of Node " + node + ": "
	if c.caps.Has(ir.CarriesVIPs) {
		return text + "all nodes carry it in mode " + string(c.config.ProxyMode()) + ", so no other node reaches this Node at it, at any port"
	}
	return text + "packets to its ports go to the Service instead of the node's programs"
}

// hijacks reports whether the Service serves at least one port of an external
// address. PX501 reports the ports that it does not serve.
func (c *cluster) hijacks(s *service, path string) bool {
	return c.invalid[place{s.Object, path}] < len(s.Ports)
}

// inside returns the owner of an external IP inside the cluster, or "".
func (c *cluster) inside(s *service, addr netip.Addr) string {
	if v, is := c.vips[addr]; is && v.service != s {
		return "the " + v.kind.String() + " of " + v.service.Object
	}
	if of, is := c.endpoints[addr]; is {
		return "an endpoint of Service " + of
	}
	if c.cidrs.contains(addr) {
		return "in a ServiceCIDR, and any Service may get it"
	}
	if c.pods.contains(addr) {
		return "in the pods' ranges, and any pod may get it"
	}
	return ""
}

func clusterIPOutside(c *cluster, s *service) {
	if s.pending {
		return
	}
	texts := s.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.ClusterIP}
	}
	for i, text := range texts {
		if addr, ok := inet.ParseUnmapped(text); ok && c.cidrs.has(ir.FamilyOf(addr)) && !c.cidrs.contains(addr) {
			c.warn(s, diag.ClusterIPOutside, at("spec.clusterIPs", i), text+" is in no ServiceCIDR: the address is not reserved for the Service")
		}
	}
}

// cidrsOverlap reports ServiceCIDRs that overlap pod ranges.
func cidrsOverlap(c *cluster) {
	for _, s := range c.Snapshot.ServiceCIDRs() {
		for i, p := range s.CIDRs {
			if o, overlaps := c.pods.overlapping(p); overlaps {
				c.found.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.CIDRsOverlap, Object: "ServiceCIDR " + s.Name, Path: at("spec.cidrs", i),
					Msg: p.String() + " overlaps the pods' range " + o.String()})
			}
		}
	}
}

// nodePortsFamily reports a nodePortAddresses list without a CIDR of a node's
// second family. config.CheckNode reports a missing primary family.
func nodePortsFamily(c *cluster) {
	var has ir.PerFamily[bool]
	for _, entry := range c.config.NodePortAddresses {
		p, ok := inet.ParsePrefix(entry)
		if !ok {
			return // a keyword, which covers both families
		}
		*has.At(ir.FamilyOf(p.Addr())) = true
	}
	if !has.IPv4 && !has.IPv6 || has.IPv4 && has.IPv6 {
		return
	}
	for _, n := range c.nodes {
		families := familiesOf(n)
		if len(families) > 0 && !has.Of(families[0]) {
			return
		}
		if i := slices.IndexFunc(families, func(f ir.Family) bool { return !has.Of(f) }); i >= 0 {
			f := families[i].String()
			c.found.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NodePortsFamily, Object: "config", Path: "nodePortAddresses",
				Msg: "has no " + f + " CIDR: on nodes such as " + n.Name + " node ports answer at all " + f + " addresses"})
			return
		}
	}
}

// familiesOf returns the families of a Node's addresses, the primary one first.
func familiesOf(n *snapshot.Node) (families []ir.Family) {
	for _, a := range n.Addresses {
		if addr, ok := inet.ParseUnmapped(a.Address); ok && (a.Type == "InternalIP" || a.Type == "ExternalIP") {
			families = append(families, ir.FamilyOf(addr))
		}
	}
	return families
}

// nodePortsNowhere reports a nodePortAddresses list that, in a family of the
// Nodes, contains no Node address. Loopback ranges are accepted: they serve the
// node itself.
func nodePortsNowhere(c *cluster) {
	for _, f := range ir.Families() {
		var ranges []string
		known, held := false, false
		for _, entry := range c.config.NodePortAddresses {
			p, ok := inet.ParsePrefix(entry)
			switch {
			case !ok:
				return // a keyword, which always matches an address
			case ir.FamilyOf(p.Addr()) != f:
				continue
			}
			ranges = append(ranges, entry)
			for addr := range c.nodeAddrs {
				known = known || f.Has(addr)
				held = held || p.Contains(addr) || p.Overlaps(f.Loopback())
			}
		}
		if known && !held {
			c.found.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NodePortsNowhere, Object: "config", Path: "nodePortAddresses",
				Msg: some(ranges, len(ranges)) + " contains no address of a Node of the snapshot: node ports answer nowhere in " + f.String() + ", according to the Node objects"})
		}
	}
}

func healthPort(c *cluster, s *service) {
	if !s.wantsHealth() {
		return
	}
	const path = "spec.healthCheckNodePort"
	port := strconv.Itoa(int(s.HealthPort))
	if other := c.health[s.HealthPort]; other != s {
		c.warn(s, diag.HealthPortClaimed, path, port+" is also that of "+other.Object+": one of them cannot listen")
	}
	if other := c.nodePorts[uint16(s.HealthPort)]; other != nil {
		c.warn(s, diag.HealthPortClaimed, path, port+" is a node port of "+other.Object+", which receives the health checks")
	}
}

// The default of the API server's flag --service-node-port-range.
const firstNodePort, lastNodePort = 30000, 32767

// OtherRange reports whether a Service of a cluster has a node port outside the default range, so that
// the cluster has another one.
func OtherRange(s *snapshot.Snapshot, written map[string]manifest.Written) bool {
	return slices.ContainsFunc(s.Services(), func(svc *snapshot.Service) bool {
		return written[svc.Object].Live && len(unusual(svc)) > 0
	})
}

// unusual returns the ports of nodes that are outside the default range, by their fields. The compiler
// reports numbers that are no ports.
func unusual(svc *snapshot.Service) map[string]int32 {
	out := map[string]int32{}
	add := func(path string, port int32) {
		if 0 < port && port < firstNodePort || lastNodePort < port && port <= math.MaxUint16 {
			out[path] = port
		}
	}
	for i, p := range svc.Ports {
		add(at("spec.ports", i)+".nodePort", p.NodePort)
	}
	add("spec.healthCheckNodePort", svc.HealthPort)
	return out
}

// portRange reports ports that the API server does not allocate by default.
func portRange(c *cluster, s *service) {
	if c.OtherRange {
		return
	}
	for path, port := range unusual(s.Service) {
		if c.StandIns.PortName(port) == "" {
			c.warn(s, diag.NodePortRange, path, fmt.Sprintf("is %d, outside %d to %d, the default of --service-node-port-range: with it, the API server rejects the Service", port, firstNodePort, lastNodePort))
		}
	}
}

// ownPorts reports ports on which the proxy itself listens.
func ownPorts(c *cluster, s *service) {
	tell := func(path string, port int32) {
		for _, own := range [...]struct{ field, address string }{
			{"healthzBindAddress", c.config.HealthzBindAddress}, {"metricsBindAddress", c.config.MetricsBindAddress},
		} {
			if a, err := netip.ParseAddrPort(own.address); err == nil && int32(a.Port()) == port {
				c.warn(s, diag.OwnPort, path, strconv.Itoa(int(port))+" is the port of "+own.field+" "+own.address+": kube-proxy itself listens there")
			}
		}
	}
	for i, p := range s.Ports {
		if p.NodePort != 0 && isTCP(p.Protocol) {
			tell(at("spec.ports", i)+".nodePort", p.NodePort)
		}
	}
	if s.wantsHealth() {
		tell("spec.healthCheckNodePort", s.HealthPort)
	}
}

// localhostNodePorts reports node ports that answer at 127.0.0.1 today, and UDP
// and SCTP node ports, which mode nftables never serves at localhost.
func localhostNodePorts(c *cluster) {
	first, other := localNodePorts(c.services)
	wanted := c.config.IPTables.LocalhostNodePorts
	switch {
	case c.caps.Has(ir.ProxiesLocalhost) && c.config.Enabled(config.GateLocalhost) && slices.ContainsFunc(c.config.NodePortAddresses, isLocalhost) && other != "":
		c.found.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.ModeLocalhost, Object: "config", Path: "nodePortAddresses",
			Msg: "mode " + string(c.config.ProxyMode()) + " serves node ports at localhost over TCP only: " + other + " does not answer there"})
	case first == "" || !c.caps.Has(ir.LocalhostNodePorts) || c.caps.Has(ir.LocalhostByProcess) || wanted != nil && !*wanted || !c.loopback():
	default:
		msg := "node ports, such as " + first + ", answer at 127.0.0.1: in nftables, the default from 1.40 on, only over TCP, with feature gate " +
			config.GateLocalhost + " and localhost in nodePortAddresses (KEP-5343, KEP-6032)"
		if other != "" {
			msg += "; those over UDP and SCTP, such as " + other + ", do not answer there in nftables"
		}
		c.found.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.LocalhostNodePorts, Object: "config", Path: "iptables.localhostNodePorts", Msg: msg})
	}
}

// localNodePorts returns the first node port that a node has at 127.0.0.1, and the first that is not TCP.
func localNodePorts(services []*service) (first, other string) {
	for _, s := range services {
		for _, p := range s.Ports {
			if !s.proxied || !s.inFam.IPv4 || p.NodePort == 0 {
				continue
			}
			port := strconv.Itoa(int(p.NodePort))
			first = cmp.Or(first, port+" of "+s.Object)
			if !isTCP(p.Protocol) {
				other = cmp.Or(other, port+"/"+strings.ToLower(p.Protocol)+" of "+s.Object)
			}
		}
	}
	return first, other
}

// isLocalhost reports whether an entry of nodePortAddresses covers only
// localhost.
func isLocalhost(entry string) bool {
	p, ok := inet.ParsePrefix(entry)
	return entry == config.NodePortsLocalhost || ok && p.Addr().IsLoopback()
}

// loopback reports whether nodePortAddresses includes 127.0.0.1.
func (c *cluster) loopback() bool {
	return len(c.config.NodePortAddresses) == 0 || slices.ContainsFunc(c.config.NodePortAddresses, func(entry string) bool {
		p, ok := inet.ParsePrefix(entry)
		return entry == config.NodePortsLocalhost || entry == config.NodePortsAll || ok && p.Overlaps(ir.IPv4.Loopback())
	})
}
