// Package lint holds the checks that are about a cluster and not about the rules of
// a node: what nobody who makes rules needs to know, and everybody who reviews them
// does. The compiler's own findings are others; diag has the table of all.
//
// Each check is a pure function; checks lists them. Their cost is linear in the
// snapshot.
package lint

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

// Input is what is judged.
type Input struct {
	Config   *config.Resolved
	Snapshot *snapshot.Snapshot
	// Compiled is what the compiler found: what it leaves out, with an error or because it stands twice, does
	// nothing that could be judged.
	Compiled diag.List
	// Written is what stands in the objects beside what the snapshot has of them, by name.
	Written map[string]snapshot.Written
	// Pending are the Services that were not at an API server yet, as Complete returns them.
	Pending Pending
}

// Check returns what all checks find, sorted.
func Check(in Input) diag.List {
	c := newCluster(in)
	for _, check := range clusterChecks() {
		check(c)
	}
	for _, s := range c.services {
		for _, check := range serviceChecks() {
			check(c, s)
		}
	}
	c.found.Sort()
	return c.found
}

// Refused returns the endpoints of Services that are addresses of Services themselves, so that packets to them
// go nowhere: who writes rules is warned of these, since the compiler looks at one Service at a time.
func Refused(in Input) diag.List {
	c := newCluster(in)
	for _, s := range c.services {
		endpoints(c, s)
	}
	c.found = slices.DeleteFunc(c.found, func(d diag.Diagnostic) bool { return d.Code != diag.EndpointIsVIP })
	c.found.Sort()
	return c.found
}

// clusterChecks are about the cluster as a whole, once each.
func clusterChecks() []func(*cluster) {
	return []func(*cluster){noSlices, nodePortsFamily, nodePortsNowhere, cidrsOverlap, orphans, mode, localhostNodePorts, kernels}
}

// serviceChecks are about one Service, with its slices.
func serviceChecks() []func(*cluster, *service) {
	return []func(*cluster, *service){
		otherProxy,
		noEndpoints, unservedPorts, sliceFamilies, endpoints, hints, hintsNowhere, localAbsent,
		externalAddresses, clusterIPOutside, healthPort, ownPorts,
		sourceRanges, externalIPsEnd, preferClose,
	}
}

// cluster is the input, indexed.
type cluster struct {
	Input
	config   *config.Config
	caps     ir.Capability
	services []*service // by name
	found    diag.List

	nodes     []*snapshot.Node
	only      bool // the first Node is the only one that is known: other nodes and selectors are not judged
	zones     map[string]bool
	nodeAddrs map[netip.Addr]string // whose address it is
	hasSlices bool
	lost      map[ir.Name]bool        // Services of whose endpoints something is left out
	externals map[netip.Addr]*service // the oldest Service with an external IP
	endpoints map[netip.Addr]string   // of which Service it is one, as far as that is a pod's
	leftOut   map[place]int           // how often the compiler leaves out something of what stands there
	vips      map[netip.Addr]vip
	pods      ranges              // of clusterCIDR, or of the Nodes where there is none
	cidrs     ranges              // of the ServiceCIDRs
	nodePorts map[uint16]*service // TCP, the first by name
	health    map[int32]*service  // the first by name
}

// place is a field of an object.
type place struct{ object, path string }

// vip is an address that a Service has for itself.
type vip struct {
	kind    ir.Kind
	service *service
}

// service is a Service with all that belongs to it.
type service struct {
	*snapshot.Service
	written snapshot.Written
	pending bool // it has no address yet
	proxied bool // kube-proxy looks at it
	slices  []*snapshot.EndpointSlice
	inFam   ir.PerFamily[bool]
}

func newCluster(in Input) *cluster {
	c := &cluster{Input: in, config: in.Config.Config, nodes: in.Snapshot.Nodes(),
		zones: map[string]bool{}, nodeAddrs: map[netip.Addr]string{}, lost: map[ir.Name]bool{},
		externals: map[netip.Addr]*service{}, endpoints: map[netip.Addr]string{}, leftOut: leftOut(in.Compiled), vips: map[netip.Addr]vip{}, nodePorts: map[uint16]*service{}, health: map[int32]*service{}}
	c.caps = c.config.ProxyMode().Capabilities()
	c.only = len(c.nodes) == 1 && c.nodes[0].Only
	var pods, cidrs []netip.Prefix
	for _, n := range c.nodes {
		if n.Zone != "" {
			c.zones[n.Zone] = true
		}
		for _, a := range n.Addresses {
			if addr, ok := parse(a.Address); ok {
				c.nodeAddrs[addr] = n.Name
			}
		}
		pods = append(pods, n.PodCIDRs...)
	}
	if own := c.config.ClusterCIDRs(); len(own) > 0 {
		pods = own
	}
	for _, s := range in.Snapshot.ServiceCIDRs() {
		cidrs = append(cidrs, s.CIDRs...)
	}
	c.pods, c.cidrs = newRanges(pods), newRanges(cidrs)
	_, known, _ := in.Snapshot.Count()
	c.hasSlices = known > 0
	for _, l := range in.Snapshot.LeftOut() {
		if l.Service.Name != "" && !l.IsService() {
			c.lost[l.Service], c.hasSlices = true, true
		}
	}
	for _, svc := range in.Snapshot.Services() {
		c.add(svc)
	}
	return c
}

// leftOut returns what the compiler leaves out of endpoints and addresses.
func leftOut(found diag.List) map[place]int {
	at := map[place]int{}
	for _, d := range found {
		switch d.Code {
		case diag.EndpointAddress, diag.EndpointUnusable, diag.EndpointTwice:
			path := strings.TrimSuffix(d.Path, ".ip")
			if strings.HasPrefix(path, "endpoints[") {
				path = strings.TrimSuffix(path, ".addresses[0]")
			}
			at[place{d.Object, path}]++
		case diag.VIPClaimed:
			at[place{d.Object, d.Path}] += 1 + d.More
		}
	}
	return at
}

func (c *cluster) add(svc *snapshot.Service) {
	s := &service{Service: svc, written: c.Written[svc.Object], pending: c.Pending.Has(svc.Name),
		proxied: !svc.ProxyName && svc.Type != "ExternalName" && svc.ClusterIP != "" && svc.ClusterIP != "None"}
	for _, slice := range c.Snapshot.Slices(svc.Name) {
		c.hasSlices = true
		if !slice.Headless {
			s.slices = append(s.slices, slice)
		}
	}
	c.services = append(c.services, s)
	if !s.proxied {
		return
	}
	for _, text := range append([]string{svc.ClusterIP}, svc.ClusterIPs...) {
		if addr, ok := parse(text); ok {
			*s.inFam.At(ir.FamilyOf(addr)) = true
			if !s.pending {
				c.vips[addr] = vip{ir.ClusterIP, s}
			}
		}
	}
	for _, addr := range s.balancers() {
		if _, taken := c.vips[addr]; !taken {
			c.vips[addr] = vip{ir.LoadBalancer, s}
		}
	}
	for _, text := range svc.ExternalIPs {
		if addr, ok := parse(text); ok && (c.externals[addr] == nil || s.older(c.externals[addr])) {
			c.externals[addr] = s
		}
	}
	for _, p := range svc.Ports {
		if port := uint16(p.NodePort); port != 0 && isTCP(p.Protocol) && c.nodePorts[port] == nil {
			c.nodePorts[port] = s
		}
	}
	if s.wantsHealth() && c.health[svc.HealthPort] == nil {
		c.health[svc.HealthPort] = s
	}
	for _, slice := range s.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if addr := e.Addr.Unmap(); addr.IsValid() && c.ofPod(s, e, addr) {
				c.endpoints[addr] = svc.Name.String()
			}
		}
	}
}

// older reports whether a Service was created before another one, as far as that is known. One
// without creationTimestamp counts as younger, as in contests for an address.
func (s *service) older(o *service) bool {
	return !s.Created.IsZero() && (o.Created.IsZero() || s.Created.Before(o.Created))
}

// balancers returns the addresses of load balancers whose packets are the proxy's.
func (s *service) balancers() (addrs []netip.Addr) {
	for _, in := range s.LoadBalancer {
		if addr, ok := parse(in.IP); ok && serves(in) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// serves reports whether what is sent to a load balancer's address is the proxy's.
func serves(in snapshot.Ingress) bool { return in.IPMode == "" || in.IPMode == "VIP" }

func (s *service) isBalancer() bool { return s.Type == "LoadBalancer" || len(s.balancers()) > 0 }

func (s *service) wantsHealth() bool {
	return s.Type == "LoadBalancer" && s.ExternalLocal && s.HealthPort > 0
}

// addService notes a finding about a field of a Service.
func (c *cluster) addService(s *service, severity diag.Severity, code diag.Code, path, msg string) {
	c.found.Add(diag.Diagnostic{Severity: severity, Code: code, Object: s.Object, Path: path, Msg: msg})
}

func (c *cluster) warn(s *service, code diag.Code, path, msg string) {
	c.addService(s, diag.Warning, code, path, msg)
}

func (c *cluster) info(s *service, code diag.Code, path, msg string) {
	c.addService(s, diag.Info, code, path, msg)
}

// parse reads an address; IPv4-mapped IPv6 is IPv4.
func parse(text string) (netip.Addr, bool) {
	a, ok := inet.ParseAddr(text)
	return a.Unmap(), ok
}

// protocolOf returns the protocol of a port, which is TCP where it names none.
func protocolOf(protocol string) string { return cmp.Or(protocol, "TCP") }

func isTCP(protocol string) bool { return protocolOf(protocol) == "TCP" }

func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// shown is how many of a list some names.
const shown = 3

// some names the first of a list, and counts the rest.
func some(names []string, total int) string {
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if more := total - min(shown, len(names)); more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return text
}

// noSlices is of a snapshot that does not tell of endpoints. Who reads it tells of one that should.
func noSlices(c *cluster) {
	judged := func(s *service) bool { return s.proxied && !s.pending }
	told := func(s *service) bool { return s.written.Sliced }
	if !c.hasSlices && slices.ContainsFunc(c.services, judged) && !slices.ContainsFunc(c.services, told) {
		c.found.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.NoSlices, Msg: "the snapshot has no EndpointSlice: whether Services have endpoints is not judged"})
	}
}

func otherProxy(c *cluster, s *service) {
	if s.ProxyName {
		c.info(s, diag.OtherProxy, "metadata.labels", "label service.kubernetes.io/service-proxy-name leaves the Service to another proxy: it has no rules")
	}
}
