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

// service is a Service as every node sees it: validated, parsed, and joined with
// its endpoints.
type service struct {
	*snapshot.Service
	object string // for Origins
	ports  []port // by ir.ServicePort
	views  ir.PerFamily[view]
	costs  ir.PerFamily[cost]
	tables *tables // of external frontends with policy Cluster; nil for random selection
	diags  diag.List
}

// port is a valid entry of spec.ports.
type port struct {
	ir.ServicePort
	index    int    // in spec.ports
	number   uint16 // port
	nodePort uint16 // 0 if none
}

// view is a service in one IP family.
type view struct {
	addrs     []address          // by Kind, without duplicates; empty if the Service is not in this family (SNAP-20)
	at        map[netip.Addr]int // index in addrs, during parsing
	ranges    []ir.SourceRange
	closed    bool         // admits no client, because no range could be parsed
	endpoints [][]endpoint // of each port
	over      []bool       // ports whose endpoints exceed the limit; nil if none
}

// address is an address of a Service.
type address struct {
	netip.Addr
	kind  ir.Kind
	field string
}

// has reports whether the view has an address of a kind. A Service without a
// ClusterIP in the family does not exist there.
func (v *view) has(kind ir.Kind) bool {
	return slices.ContainsFunc(v.addrs, func(a address) bool { return a.kind == kind })
}

// overs reports whether the endpoints of a port are ignored because of the limit.
func (v *view) overs(port int) bool { return v.over != nil && v.over[port] }

// externallyAccessible reports whether a port is reachable from outside: by node
// port, load balancer address or external IP (SNAP-29).
func (v *view) externallyAccessible(p *port) bool {
	return p.nodePort != 0 || v.addrs[len(v.addrs)-1].kind.External()
}

// Ignored returns why kube-proxy ignores a Service, with the field that decides,
// or "". Ignored are Services of another proxy (SNAP-1), and Services without
// clusterIP, headless or of type ExternalName (SNAP-3).
func Ignored(s *snapshot.Service) string {
	switch {
	case s.ProxyName:
		return "metadata.labels: service.kubernetes.io/service-proxy-name assigns it to another proxy"
	case s.Type == "ExternalName":
		return "spec.type: ExternalName applies only to DNS"
	case s.ClusterIP == "None":
		return "spec.clusterIP: None (headless) applies only to DNS, which returns the addresses of the endpoints"
	case s.ClusterIP == "":
		return "spec.clusterIP: is not set"
	}
	return ""
}

// Invalid returns the errors about values of Services and their endpoints that the API server rejects. Limits
// and contests are no such errors.
func Invalid(snap *snapshot.Snapshot) (found diag.List) {
	c, ends := newCluster(&config.Config{Mode: string(ir.ModeNFTables)}, snapshot.New()), []*snapshot.EndpointSlice{}
	for _, svc := range snap.Services() {
		if Ignored(svc) != "" {
			continue
		}
		s := &service{Service: svc, object: svc.Object}
		c.parsePorts(s)
		c.parseAddrs(s, ir.PerFamily[excess]{})
		found.Add(s.diags...)
		ends = append(ends, snap.Slices(svc.Name)...)
	}
	found.Add(Faults(slices.DeleteFunc(ends, func(s *snapshot.EndpointSlice) bool { // a slice for all ports is valid
		return slices.ContainsFunc(s.Ports, func(p snapshot.EndpointPort) bool { return !p.HasPort })
	}))...)
	return slices.DeleteFunc(found, func(d diag.Diagnostic) bool { return d.Severity != diag.Error || d.Code == diag.TooManyFrontends })
}

// service validates a Service and joins it with its endpoints. It returns nil for
// an ignored Service. over is what exceeds the limits of all Services.
func (c *cluster) service(svc *snapshot.Service, over ir.PerFamily[excess]) *service {
	if Ignored(svc) != "" {
		return nil
	}
	s := &service{Service: svc, object: svc.Object}
	if s.object == "" {
		s.object = "Service " + svc.Name.String()
	}
	c.parsePorts(s)
	c.parseAddrs(s, over)
	for _, f := range ir.Families() {
		if v := s.views.At(f); v.has(ir.ClusterIP) {
			v.endpoints = c.endpointsPass(s, f)
			if c.caps.Has(ir.OneBackendPort) {
				c.windowsPorts(s, v)
			}
		}
	}
	c.checkCapabilities(s)
	c.balancePass(s)
	return s
}

// report adds an error: a part of the Service is invalid.
func (s *service) report(code diag.Code, field, msg string) {
	s.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: code, Object: s.object, Path: field, Msg: msg})
}

// warn adds a warning: a part of the Service has no effect or another effect.
func (s *service) warn(code diag.Code, field, msg string) {
	s.diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: code, Object: s.object, Path: field, Msg: msg})
}

// parsePorts sets s.ports from spec.ports: protocols and ports (SNAP-21), and
// node ports (SNAP-25).
func (c *cluster) parsePorts(s *service) {
	s.ports = make([]port, 0, len(s.Service.Ports))
	for i := range s.Service.Ports {
		if p, ok := c.parsePort(s, i); ok {
			s.ports = append(s.ports, p)
		}
	}
	if len(s.ports) < 2 {
		return
	}
	slices.SortStableFunc(s.ports, func(a, b port) int { return a.ServicePort.Compare(b.ServicePort) })
	c.dropDuplicates(s)
}

func (c *cluster) parsePort(s *service, i int) (port, bool) {
	in := &s.Service.Ports[i]
	protocol, ok := protocolOf(in.Protocol)
	if !ok {
		s.report(diag.PortValue, c.names.protocols.at(i), "must be TCP, UDP or SCTP, got "+diag.Quote(in.Protocol))
		return port{}, false
	}
	if protocol == ir.SCTP && !c.caps.Has(ir.ServesSCTP) {
		s.warn(diag.ModeSCTP, c.names.protocols.at(i), "mode "+string(c.mode)+" does not support SCTP: the port is ignored")
		return port{}, false
	}
	n, ok := number(in.Port)
	if !ok {
		got := "is 0 or not set"
		if in.Port != 0 {
			got = "got " + strconv.Itoa(int(in.Port))
		}
		s.report(diag.PortValue, c.names.portNumbers.at(i), "must be 1-65535, "+got)
		return port{}, false
	}
	p := port{ServicePort: ir.ServicePort{Service: s.Name, Port: in.Name, Protocol: protocol}, index: i, number: n}
	if in.NodePort != 0 {
		if p.nodePort, ok = number(in.NodePort); !ok {
			p.nodePort = 0
			s.report(diag.PortValue, c.names.nodePorts.at(i), "must be 1-65535, got "+strconv.Itoa(int(in.NodePort)))
		}
	}
	return p, true
}

// protocolOf parses a protocol. As in the API, the default is TCP.
func protocolOf(s string) (ir.Protocol, bool) {
	p, ok := ir.ParseProtocol(cmp.Or(s, "TCP"))
	return p, ok && s == strings.ToUpper(s)
}

// dropDuplicates removes ports that the API does not allow next to another one:
// the same name, port or node port for one protocol. The first in spec.ports is
// kept.
func (c *cluster) dropDuplicates(s *service) {
	byIndex := slices.Clone(s.ports)
	slices.SortFunc(byIndex, func(a, b port) int { return cmp.Compare(a.index, b.index) })
	type number struct {
		protocol ir.Protocol
		number   uint16
	}
	var ( // index in spec.ports of the port that uses it
		names     = map[ir.ServicePort]int{}
		numbers   = map[number]int{}
		nodePorts = map[number]int{}
	)
	leave := func(field string, first int) {
		s.report(diag.PortDuplicate, field, "is that of "+c.names.ports.at(first)+" too, for the same protocol: the port is ignored")
	}
	kept := byIndex[:0]
	for _, p := range byIndex {
		if first, taken := names[p.ServicePort]; taken {
			leave(c.names.ports.at(p.index)+".name", first)
			continue
		}
		if first, taken := numbers[number{p.Protocol, p.number}]; taken {
			leave(c.names.portNumbers.at(p.index), first)
			continue
		}
		if first, taken := nodePorts[number{p.Protocol, p.nodePort}]; taken {
			s.report(diag.PortDuplicate, c.names.nodePorts.at(p.index), "is that of "+c.names.ports.at(first)+" too, which keeps it")
			p.nodePort = 0
		}
		names[p.ServicePort], numbers[number{p.Protocol, p.number}] = p.index, p.index
		if p.nodePort != 0 {
			nodePorts[number{p.Protocol, p.nodePort}] = p.index
		}
		kept = append(kept, p)
	}
	slices.SortFunc(kept, func(a, b port) int { return a.ServicePort.Compare(b.ServicePort) })
	s.ports = kept
}

// parseAddrs sets the views' source ranges and addresses.
func (c *cluster) parseAddrs(s *service, over ir.PerFamily[excess]) {
	c.sourceRanges(s)
	if len(s.IPFamilies) == 0 {
		c.clusterIP(s, s.ClusterIP, "spec.clusterIP", "")
	}
	for i, family := range s.IPFamilies {
		if i < len(s.ClusterIPs) {
			c.clusterIP(s, s.ClusterIPs[i], c.names.clusterIPs.at(i), family)
		} else {
			s.report(diag.FamilyNoAddress, "spec.ipFamilies["+strconv.Itoa(i)+"]", family+" has no address: there is no spec.clusterIPs["+strconv.Itoa(i)+"]")
		}
	}
	if c.externalIPs {
		for i, text := range s.ExternalIPs {
			s.address(ir.ExternalIP, text, c.names.externals.at(i))
		}
	} else if len(s.ExternalIPs) > 0 {
		s.warn(diag.ExternalIPsOff, "spec.externalIPs", "is ignored: feature gate AllowServiceExternalIPs is off")
	}
	for i := range s.LoadBalancer {
		if in := &s.LoadBalancer[i]; in.IP != "" && in.Served() {
			s.address(ir.LoadBalancer, in.IP, c.names.ingresses.at(i))
		}
	}
	for _, f := range ir.Families() {
		v := s.views.At(f)
		slices.SortStableFunc(v.addrs, func(a, b address) int { return cmp.Compare(a.kind, b.kind) })
		v.at = nil
		c.boundsPass(s, f, over.Of(f))
	}
	s.warnClosed()
}

// clusterIP adds the address of a family; want is its entry in spec.ipFamilies.
// Without spec.ipFamilies only spec.clusterIP counts (SNAP-20), and
// spec.clusterIPs is ignored. The API server and manifest.Decode always set
// spec.ipFamilies.
func (c *cluster) clusterIP(s *service, text, field, want string) {
	addr, ok := inet.ParseUnmapped(text)
	switch {
	case !ok:
		s.report(diag.VIPValue, field, "must be an IP address, got "+diag.Quote(text))
	case unusableVIP(ir.ClusterIP, addr) != "":
		s.report(diag.VIPValue, field, "must be an address that a Service can have, got "+text+", which is "+unusableVIP(ir.ClusterIP, addr))
	case want != "" && want != ir.IPv4.String() && want != ir.IPv6.String():
		s.report(diag.VIPValue, field, "is ignored: its family in spec.ipFamilies must be IPv4 or IPv6, got "+diag.Quote(want))
	case want != "" && ir.FamilyOf(addr).String() != want:
		s.report(diag.VIPValue, field, "must be "+want+" as spec.ipFamilies has it, got "+diag.Quote(text))
	case s.view(addr).has(ir.ClusterIP):
		s.report(diag.VIPValue, field, "a second "+want+" address is ignored")
	default:
		s.view(addr).addrs = []address{{addr, ir.ClusterIP, field}}
	}
}

// address adds an external IP (SNAP-22) or a load balancer address (SNAP-23).
func (s *service) address(kind ir.Kind, text, field string) {
	addr, ok := inet.ParseUnmapped(text)
	if !ok {
		s.report(diag.VIPValue, field, "must be an IP address, got "+diag.Quote(text))
		return
	}
	if why := unusableVIP(kind, addr); why != "" {
		s.report(diag.VIPValue, field, "must be an address that a Service can have, got "+text+", which is "+why)
		return
	}
	v := s.view(addr)
	if !v.has(ir.ClusterIP) {
		s.warn(diag.VIPNotServed, field, text+" is not served: the Service has no clusterIP in "+ir.FamilyOf(addr).String())
		return
	}
	if v.at == nil {
		v.at = map[netip.Addr]int{v.addrs[0].Addr: 0}
	}
	i, known := v.at[addr]
	switch {
	case !known:
		v.at[addr] = len(v.addrs)
		v.addrs = append(v.addrs, address{addr, kind, field})
	case kind.Rank() < v.addrs[i].kind.Rank():
		s.outrank(v, i, address{addr, kind, field})
	default:
		s.diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.VIPDuplicate, Object: s.object, Path: field, Msg: text + " is in " + v.addrs[i].field + " already, which is used"})
	}
}

// outrank replaces an external IP, v.addrs[i], by the equal load balancer
// address. It warns if the Service has source ranges, because kube-proxy differs
// by mode. Its iptables mode matches the external IP first and admits every
// client; its nftables mode enforces the ranges. Here the ranges are enforced, as
// the Service requests.
func (s *service) outrank(v *view, i int, lb address) {
	if field := v.addrs[i].field; len(v.ranges) > 0 {
		s.warn(diag.VIPBothKinds, lb.field, lb.String()+" is in "+field+" too: spec.loadBalancerSourceRanges applies to both")
	} else {
		s.diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.VIPDuplicate, Object: s.object, Path: field, Msg: lb.String() + " is in " + lb.field + " too, which is used"})
	}
	v.addrs[i] = lb
}

// view returns the service in the family of an address.
func (s *service) view(a netip.Addr) *view {
	return s.views.At(ir.FamilyOf(a))
}
