// Package lint checks a cluster for mistakes that matter to a reviewer but not to
// the rules of one node. The compiler reports its own findings; package diag
// lists all codes.
//
// Each check is a pure function, listed by clusterChecks or serviceChecks. Its
// cost is linear in the size of the snapshot.
package lint

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// Input is what Check inspects.
type Input struct {
	Config   *config.Resolved
	Snapshot *snapshot.Snapshot
	// Compiled holds the compiler's findings. Parts that the compiler ignored,
	// because of an error or as duplicates, have no effect and are not checked.
	Compiled diag.List
	// Written holds fields of the objects that the snapshot does not keep, by
	// object name.
	Written map[string]manifest.Written
	// Pending holds the Services that the API server has not seen yet, as
	// returned by Complete.
	Pending Pending
	// StandIns are those of the Snapshot.
	StandIns *assume.StandIns
	// OtherRange is the result of the function, before an overlay.
	OtherRange bool
	// Unread reports that some files of the input are not read, because they are rendered.
	Unread bool
	// Ambiguous holds the Services that depend on an object of which the input has different versions.
	// The versions that the Snapshot has may not belong together.
	Ambiguous map[ir.Name]string
	// Ignored holds the number of objects of each kind that the Snapshot does not use.
	Ignored map[string]int
}

// Check returns the findings of all checks, sorted.
func Check(in Input) diag.List {
	c := newCluster(in)
	for _, check := range clusterChecks() {
		check(c)
	}
	for _, s := range c.services {
		before := len(c.found)
		for _, check := range serviceChecks() {
			check(c, s)
		}
		if s.proxied {
			for _, check := range proxiedChecks() {
				check(c, s)
			}
		}
		for i := range c.found[before:] {
			if d := &c.found[before+i]; d.Severity == diag.Warning && slices.Contains(ofPairs, d.Code) {
				c.lower(d, s.Name)
			}
		}
	}
	c.found.Sort()
	return c.found
}

// ofPairs are the codes of findings about a Service and a workload that do not match.
var ofPairs = []diag.Code{diag.SelectorUnmatched, diag.TargetPortUndeclared, diag.TargetPortUnknown, diag.TargetPortProtocol}

// lower makes a finding about an ambiguous Service an info.
func (c *cluster) lower(d *diag.Diagnostic, name ir.Name) {
	if object := c.Ambiguous[name]; object != "" {
		d.Severity, d.Msg = diag.Info, d.Msg+" (the input has other versions of "+object+")"
	}
}

// Refused returns the endpoints of Services that are themselves addresses of
// Services, so that packets to them are rejected or dropped. The compiler cannot
// report them, because it compiles one Service at a time.
func Refused(in Input) diag.List {
	c := newCluster(in)
	for _, s := range c.services {
		if s.proxied {
			endpoints(c, s)
		}
	}
	c.found = slices.DeleteFunc(c.found, func(d diag.Diagnostic) bool { return d.Code != diag.EndpointIsVIP })
	c.found.Sort()
	return c.found
}

// clusterChecks returns the checks that run once for the cluster.
func clusterChecks() []func(*cluster) {
	return []func(*cluster){noSlices, nodePortsFamily, nodePortsNowhere, cidrsOverlap, orphans, backendPorts, governed, ignored, mode, localhostNodePorts, kernels}
}

// serviceChecks returns the checks that run for each Service with its slices.
func serviceChecks() []func(*cluster, *service) {
	return []func(*cluster, *service){otherProxy, workloads, portRange, headless, preferClose}
}

// proxiedChecks returns the further checks that run for each Service that kube-proxy serves.
func proxiedChecks() []func(*cluster, *service) {
	return []func(*cluster, *service){
		noEndpoints, unservedPorts, sliceFamilies, endpoints, hints, hintsNowhere, localAbsent,
		externalAddresses, clusterIPOutside, healthPort, ownPorts, sourceRanges, externalIPsEnd,
	}
}

// cluster is an indexed Input.
type cluster struct {
	Input
	config   *config.Config
	caps     ir.Capability
	services []*service // by name
	found    diag.List

	nodes      []*snapshot.Node
	only       bool // only the first Node is known: other nodes and selectors are not checked
	zones      map[string]bool
	nodeAddrs  map[netip.Addr]string // name of the Node with the address
	hasSlices  bool
	workloads  assume.Workloads        // of manifests
	customs    assume.Workloads        // other objects that may make pods
	compared   int                     // comparisons of selectors with workloads
	servicesIn map[string][]string     // names, by namespace
	lost       map[ir.Name]bool        // Services with endpoints that were not decoded
	externals  map[netip.Addr]*service // the oldest Service with an external IP
	endpoints  map[netip.Addr]string   // the Service with the endpoint, if the address belongs to a pod as far as known
	invalid    map[place]int           // number of findings with which the compiler ignored a part of the place
	vips       map[netip.Addr]vip
	pods       ranges              // of clusterCIDR, or of the Nodes if it is empty
	cidrs      ranges              // of the ServiceCIDRs
	nodePorts  map[uint16]*service // TCP only, the first by name
	health     map[int32]*service  // the first by name
}

// place is a field of an object.
type place struct{ object, path string }

// vip is an address of a single Service.
type vip struct {
	kind    ir.Kind
	service *service
}

// service is a Service with its slices.
type service struct {
	*snapshot.Service
	written manifest.Written
	pending bool // has no address yet
	proxied bool // served by kube-proxy
	// explained reports that a comparison with workloads explains a lack of endpoints.
	explained bool
	slices    []*snapshot.EndpointSlice
	inFam     ir.PerFamily[bool]
}

func newCluster(in Input) *cluster {
	c := &cluster{Input: in, config: in.Config.Config, nodes: in.Snapshot.Nodes(),
		zones: map[string]bool{}, nodeAddrs: map[netip.Addr]string{}, lost: map[ir.Name]bool{},
		externals: map[netip.Addr]*service{}, endpoints: map[netip.Addr]string{}, invalid: invalidParts(in.Compiled), vips: map[netip.Addr]vip{}, nodePorts: map[uint16]*service{}, health: map[int32]*service{}}
	c.workloads, c.customs = assume.NewWorkloads(in.Snapshot.Workloads()), assume.NewWorkloads(in.Snapshot.Customs())
	c.servicesIn = map[string][]string{}
	c.caps = c.config.ProxyMode().Capabilities()
	c.only = len(c.nodes) == 1 && c.nodes[0].Only
	var pods, cidrs []netip.Prefix
	for _, n := range c.nodes {
		if n.Zone != "" {
			c.zones[n.Zone] = true
		}
		for _, a := range n.Addresses {
			if addr, ok := inet.ParseUnmapped(a.Address); ok {
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
	for _, l := range in.Snapshot.Invalid() {
		if l.Service.Name != "" && !l.IsService() {
			c.lost[l.Service], c.hasSlices = true, true
		}
	}
	for _, svc := range in.Snapshot.Services() {
		c.add(svc)
	}
	return c
}

// invalidParts counts, by place, the endpoints and addresses that the compiler
// ignored.
func invalidParts(found diag.List) map[place]int {
	at := map[place]int{}
	for _, d := range found {
		switch d.Code {
		case diag.EndpointAddress, diag.EndpointUnusable, diag.EndpointDuplicate:
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
	c.servicesIn[svc.Name.Namespace] = append(c.servicesIn[svc.Name.Namespace], svc.Name.Name)
	if !s.proxied {
		return
	}
	c.index(s)
	for _, e := range s.endpoints() {
		if addr := e.Addr.Unmap(); addr.IsValid() && c.ofPod(s, e, addr) {
			c.endpoints[addr] = svc.Name.String()
		}
	}
}

// index adds the addresses and ports of a Service that kube-proxy serves.
func (c *cluster) index(s *service) {
	for _, text := range append([]string{s.ClusterIP}, s.ClusterIPs...) {
		if addr, ok := inet.ParseUnmapped(text); ok {
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
	for _, text := range s.ExternalIPs {
		if addr, ok := inet.ParseUnmapped(text); ok && (c.externals[addr] == nil || s.older(c.externals[addr])) {
			c.externals[addr] = s
		}
	}
	for _, p := range s.Ports {
		if port := uint16(p.NodePort); port != 0 && isTCP(p.Protocol) {
			setFirst(c.nodePorts, port, s)
		}
	}
	if s.wantsHealth() {
		setFirst(c.health, s.HealthPort, s)
	}
}

func setFirst[K comparable](of map[K]*service, key K, s *service) {
	of[key] = cmp.Or(of[key], s)
}

// endpoints yields the endpoints of all slices.
func (s *service) endpoints() iter.Seq2[*snapshot.EndpointSlice, *snapshot.Endpoint] {
	return func(yield func(*snapshot.EndpointSlice, *snapshot.Endpoint) bool) {
		for _, slice := range s.slices {
			for i := range slice.Endpoints {
				if !yield(slice, &slice.Endpoints[i]) {
					return
				}
			}
		}
	}
}

// older reports whether a Service was created before another one, as far as
// known. A Service without creationTimestamp counts as younger, as in conflicts
// over an address.
func (s *service) older(o *service) bool {
	return !s.Created.IsZero() && (o.Created.IsZero() || s.Created.Before(o.Created))
}

// balancers returns the load balancer addresses that the proxy serves.
func (s *service) balancers() (addrs []netip.Addr) {
	for _, in := range s.LoadBalancer {
		if addr, ok := inet.ParseUnmapped(in.IP); ok && in.Served() {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (s *service) isBalancer() bool { return s.Type == "LoadBalancer" || len(s.balancers()) > 0 }

func (s *service) wantsHealth() bool {
	return s.Type == "LoadBalancer" && s.ExternalLocal && s.HealthPort > 0
}

// addService adds a finding about a field of a Service.
func (c *cluster) addService(s *service, severity diag.Severity, code diag.Code, path, msg string) {
	c.found.Add(diag.Diagnostic{Severity: severity, Code: code, Object: s.Object, Path: path, Msg: msg})
}

func (c *cluster) warn(s *service, code diag.Code, path, msg string) {
	c.addService(s, diag.Warning, code, path, msg)
}

func (c *cluster) info(s *service, code diag.Code, path, msg string) {
	c.addService(s, diag.Info, code, path, msg)
}

// protocolOf returns the protocol of a port; the default is TCP.
func protocolOf(protocol string) string { return cmp.Or(protocol, "TCP") }

func isTCP(protocol string) bool { return protocolOf(protocol) == "TCP" }

func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// shown is the maximum number of names that some returns.
const shown = 3

// some joins the first names of a list and counts the rest.
func some(names []string, total int) string {
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if more := total - min(shown, len(names)); more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return text
}

// noSlices reports a snapshot without EndpointSlices. If the source of the
// snapshot should contain slices, its reader reports them.
func noSlices(c *cluster) {
	judged := func(s *service) bool { return s.proxied && !s.pending }
	sliced := func(s *service) bool { return s.written.Sliced }
	if !c.hasSlices && slices.ContainsFunc(c.services, judged) && !slices.ContainsFunc(c.services, sliced) {
		c.found.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.NoSlices, Msg: "the snapshot has no EndpointSlice: the endpoints of Services are not checked"})
	}
}

func otherProxy(c *cluster, s *service) {
	if s.ProxyName {
		c.info(s, diag.OtherProxy, "metadata.labels", "label service.kubernetes.io/service-proxy-name assigns the Service to another proxy: it has no rules")
	}
}
