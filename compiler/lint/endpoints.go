package lint

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// judged reports whether the snapshot contains all endpoints of the Service. Those of a pending one
// are unknown, unless the input has an EndpointSlice of it. Endpoints that were not decoded are
// reported elsewhere.
func (c *cluster) judged(s *service) bool {
	given := func(slice *snapshot.EndpointSlice) bool { return !slice.Assumed() }
	return c.hasSlices && (!s.pending || slices.ContainsFunc(s.slices, given)) && !c.lost[s.Name]
}

// of returns the Service's slices of a family.
func (s *service) of(f ir.Family) []*snapshot.EndpointSlice {
	return slices.DeleteFunc(slices.Clone(s.slices), func(slice *snapshot.EndpointSlice) bool { return slice.AddressType != f.String() })
}

// field returns the path of endpoint i in the object that the slice was made
// from.
func field(slice *snapshot.EndpointSlice, i int) string {
	if slice.FromEndpoints && i < len(slice.Addresses) {
		return at("subsets", slice.Subset) + "." + at("addresses", slice.Addresses[i])
	}
	return at("endpoints", i)
}

func (c *cluster) addEndpoint(slice *snapshot.EndpointSlice, severity diag.Severity, code diag.Code, path, msg string) {
	c.found.Add(diag.Diagnostic{Severity: severity, Code: code, Object: slice.Object, Path: path, Msg: msg})
}

// noEndpoints reports Services without ready endpoints in one of their families.
func noEndpoints(c *cluster, s *service) {
	if !c.judged(s) {
		return
	}
	var total ir.PerFamily[int]
	ready, first := false, ""
	for f := range s.inFam.All() {
		for _, slice := range s.of(f) {
			*total.At(f) += len(slice.Endpoints)
			for i := range slice.Endpoints {
				ready = ready || slice.Endpoints[i].Ready
				first = cmp.Or(first, slice.Endpoints[i].Address)
			}
		}
	}
	code, path, why := diag.NoEndpoints, "spec.selector", "matches no pod: "
	if c.only {
		path, why = "", ""
	} else if len(s.written.Selector) == 0 {
		code, path, why = diag.NoEndpointsByHand, "spec.selector", "is not set, and no EndpointSlice has an endpoint: "
	}
	switch all := total.IPv4 + total.IPv6; {
	case all == 0 && (s.explained || c.unused(s, code)):
		return
	case all == 0:
		c.warn(s, code, path, why+"the Service has no endpoint, so connections are rejected")
		return
	case !ready:
		c.warn(s, diag.NoneReady, "", "none of its "+strconv.Itoa(all)+" endpoints is ready, such as "+first)
		return
	}
	for f, in := range s.inFam.All() {
		if in && total.Of(f) == 0 {
			c.warn(s, code, path, "has no endpoint in "+f.String()+", a family of the Service's clusterIPs: connections are rejected there")
		}
	}
}

// unused reports the EndpointSlices with endpoints of a Service that has no others, none of which it can
// use. It returns false if there are none.
func (c *cluster) unused(s *service, code diag.Code) (found bool) {
	for _, slice := range c.Snapshot.Slices(s.Name) {
		path, why := "addressType", "is "+slice.AddressType+", not a family of "+s.Object
		switch {
		case len(slice.Endpoints) == 0:
			continue
		case slice.Headless:
			path, why = "metadata.labels", "label service.kubernetes.io/headless excludes the slice from rules"
		case slice.AddressType != ir.IPv4.String() && slice.AddressType != ir.IPv6.String():
			why = "is " + slice.AddressType + ", which no rule can use"
		}
		c.addEndpoint(slice, diag.Warning, code, path, why+": "+s.Object+" has no other endpoint, so connections are rejected")
		found = true
	}
	return found
}

// unservedPorts reports Service ports that no slice lists with the same name and
// protocol.
func unservedPorts(c *cluster, s *service) {
	if !c.judged(s) || s.explained {
		return
	}
	protocols := map[string][]string{} // by name
	var endpoints bool
	for _, slice := range s.slices {
		if len(slice.Endpoints) == 0 {
			continue
		}
		endpoints = true
		for _, p := range slice.Ports {
			protocol := protocolOf(p.Protocol)
			if !slices.Contains(protocols[p.Name], protocol) {
				protocols[p.Name] = append(protocols[p.Name], protocol)
			}
		}
	}
	if !endpoints {
		return // reported by noEndpoints
	}
	if len(protocols) == 0 {
		c.warn(s, diag.PortUnserved, "spec.ports", "no EndpointSlice has a port, although they have endpoints: connections are rejected; check that targetPort names a container port")
		return
	}
	for i, p := range s.Ports {
		protocol := protocolOf(p.Protocol)
		has, named := protocols[p.Name]
		switch path := at("spec.ports", i); {
		case !named:
			c.warn(s, diag.PortUnserved, path+".name", "no EndpointSlice has a port "+quoted(p.Name)+", but "+listed(protocols)+": connections are rejected")
		case !slices.Contains(has, protocol):
			slices.Sort(has)
			c.warn(s, diag.ProtocolUnserved, path+".protocol", "is "+protocol+", and EndpointSlices serve port "+quoted(p.Name)+" with "+strings.Join(has, ", ")+" only: connections are rejected")
		}
	}
}

func quoted(name string) string { return strconv.Quote(name) }

func listed(protocols map[string][]string) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(protocols)) {
		names = append(names, quoted(name))
	}
	return some(names, len(names))
}

func sliceFamilies(c *cluster, s *service) {
	if !c.judged(s) {
		return
	}
	for f, in := range s.inFam.All() {
		for _, slice := range s.of(f) {
			if !in && len(slice.Endpoints) > 0 {
				c.addEndpoint(slice, diag.Info, diag.SliceFamily, "addressType", "is "+f.String()+", not a family of "+s.Object+": its endpoints are not used")
			}
		}
	}
}

// orphans reports slices whose Service does not exist. A Service that was not
// decoded does exist.
func orphans(c *cluster) {
	for _, slice := range c.Snapshot.Orphans() {
		if c.Snapshot.InvalidService(slice.Service) != nil {
			continue
		}
		c.addEndpoint(slice, diag.Warning, diag.SliceOrphan, "metadata.labels", "Service "+slice.Service.String()+" does not exist: the slice is not used")
	}
}

// endpoints checks the addresses and nodes of a Service's endpoints. For each
// slice and fault it reports the first endpoint and counts the rest.
func endpoints(c *cluster, s *service) {
	for _, slice := range s.slices {
		var found []*fault
		for i := range slice.Endpoints {
			if c.invalid[place{slice.Object, field(slice, i)}] > 0 {
				continue
			}
			for _, f := range c.wrong(s, slice, &slice.Endpoints[i]) {
				if same := slices.IndexFunc(found, func(o *fault) bool { return o.code == f.code && o.fate == f.fate }); same >= 0 {
					found[same].more++
					continue
				}
				f.path = field(slice, i) + f.path
				f.what = slice.Endpoints[i].Address + f.what
				found = append(found, &f)
			}
		}
		for _, f := range found {
			msg := f.what + f.fate
			if f.more > 0 {
				msg += "; the same applies to " + strconv.Itoa(f.more) + " more endpoints of the slice"
			}
			c.addEndpoint(slice, f.severity, f.code, f.path, msg)
		}
	}
}

// fault is a problem of an endpoint. fate describes the effect on its packets,
// for codes with more than one effect.
type fault struct {
	severity         diag.Severity
	code             diag.Code
	path, what, fate string
	more             int // endpoints of the slice with the same code and fate
}

// wrong returns the faults of an endpoint's address and node.
func (c *cluster) wrong(s *service, slice *snapshot.EndpointSlice, e *snapshot.Endpoint) (faults []fault) {
	addr := e.Addr.Unmap()
	if e.NodeName != "" && len(c.nodes) > 0 && !c.only && c.Snapshot.Node(e.NodeName) == nil {
		faults = append(faults, fault{severity: diag.Warning, code: diag.EndpointNode, path: ".nodeName",
			what: " is on Node " + quoted(e.NodeName) + ", which does not exist: the endpoint is local to no node"})
	}
	if !addr.IsValid() {
		return faults
	}
	if is := untranslatable(addr); is != "" && !addr.IsLinkLocalMulticast() { // the compiler reports those
		faults = append(faults, fault{severity: diag.Warning, code: diag.EndpointMulticast, what: " is " + is + ", to which no connection can be translated"})
	}
	if what, fate := c.towardsService(slice, addr); fate != "" {
		faults = append(faults, fault{severity: diag.Warning, code: diag.EndpointIsVIP, what: what, fate: fate})
	} else if len(s.written.Selector) > 0 && !slice.Assumed() && c.outside(e, addr) {
		faults = append(faults, fault{severity: diag.Info, code: diag.EndpointOutside, what: " is outside the pods' ranges and not an address of a node"})
	}
	return faults
}

// untranslatable describes an address that the API server accepts but to which no
// connection can be translated. It returns "" for other addresses.
func untranslatable(addr netip.Addr) string {
	switch {
	case addr.IsMulticast():
		return "a multicast address"
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	}
	return ""
}

// towardsService describes how an endpoint's address belongs, or may belong, to a
// Service, and the effect on packets. Both are "" for other addresses.
func (c *cluster) towardsService(slice *snapshot.EndpointSlice, addr netip.Addr) (what, fate string) {
	if v, is := c.vips[addr]; is {
		return " is the " + v.kind.String() + " of " + v.service.Object, ", which no rule serves for translated packets"
	}
	if _, own := c.nodeAddrs[addr]; own {
		for _, p := range slice.Ports {
			if s := c.emptyNodePort(p); s != nil {
				return " is a node's address, and " + strconv.Itoa(int(p.Port)) + " the node port of " + s.Object, ", which has no endpoint: packets to it are rejected"
			}
		}
	} else if c.cidrs.contains(addr) {
		if c.caps.Has(ir.DropUnallocated | ir.FiltersTranslated) {
			return " is in a ServiceCIDR", " and belongs to no Service: packets to it are dropped"
		}
		return " is in a ServiceCIDR", " and belongs to no Service: no pod has it, and packets to it are not answered"
	}
	return "", ""
}

// emptyNodePort returns the Service without endpoints that uses the port as its
// node port. It returns nil in modes that do not reject packets translated to
// such a port.
func (c *cluster) emptyNodePort(p snapshot.EndpointPort) *service {
	s := c.nodePorts[uint16(p.Port)]
	if s == nil || !c.caps.Has(ir.FiltersTranslated) || !isTCP(p.Protocol) || !p.HasPort {
		return nil
	}
	for _, slice := range s.slices {
		if slices.ContainsFunc(slice.Endpoints, func(e snapshot.Endpoint) bool { return e.Ready || e.Serving && e.Terminating }) {
			return nil
		}
	}
	return s
}

// outside reports whether an address belongs to neither a pod nor a node, as far
// as the ranges are known.
func (c *cluster) outside(e *snapshot.Endpoint, addr netip.Addr) bool {
	if _, own := c.nodeAddrs[addr]; own || c.only || untranslatable(addr) != "" || !c.pods.has(ir.FamilyOf(addr)) || c.pods.contains(addr) {
		return false
	}
	n := c.Snapshot.Node(e.NodeName)
	return n == nil || !slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// ofPod reports whether an endpoint's address belongs to a pod, as far as the
// ranges are known. Anybody may write a slice with a foreign address. If the pod
// ranges are unknown, the endpoints of a Service with a selector are trusted.
func (c *cluster) ofPod(s *service, e *snapshot.Endpoint, addr netip.Addr) bool {
	if c.pods.has(ir.FamilyOf(addr)) && !c.only {
		return !c.outside(e, addr)
	}
	return len(s.written.Selector) > 0
}

// hints reports ready endpoints without hints, which disable the hints of the
// other endpoints.
func hints(c *cluster, s *service) {
	if !c.caps.Has(ir.Topology) {
		return
	}
	for f := range s.inFam.All() {
		var without *snapshot.EndpointSlice
		index, hinted, bare := 0, 0, 0
		for _, slice := range s.of(f) {
			for i := range slice.Endpoints {
				switch e := &slice.Endpoints[i]; {
				case !e.Ready:
				case len(e.ZoneHints())+len(e.NodeHints()) > 0:
					hinted++
				default:
					if bare++; without == nil {
						without, index = slice, i
					}
				}
			}
		}
		if hinted > 0 && bare > 0 {
			c.addEndpoint(without, diag.Warning, diag.HintsIgnored, field(without, index), without.Endpoints[index].Address+" has no hint, but "+
				strconv.Itoa(hinted)+" of "+strconv.Itoa(hinted+bare)+" ready endpoints of "+s.Object+" have one: the hints of all are ignored")
		}
	}
}

// hintsNowhere reports hints for zones and nodes that do not exist, each once per
// slice.
func hintsNowhere(c *cluster, s *service) {
	if len(c.nodes) == 0 || c.only {
		return
	}
	for _, slice := range s.slices {
		reported := map[string]bool{}
		tell := func(i int, what string) {
			if !reported[what] {
				reported[what] = true
				c.addEndpoint(slice, diag.Info, diag.HintsNowhere, field(slice, i)+".hints", slice.Endpoints[i].Address+" is hinted for "+what)
			}
		}
		for i := range slice.Endpoints {
			for _, zone := range slice.Endpoints[i].ZoneHints() {
				if !c.zones[zone] {
					tell(i, "zone "+quoted(zone)+", which has no Node")
				}
			}
			for _, node := range slice.Endpoints[i].NodeHints() {
				if c.Snapshot.Node(node) == nil {
					tell(i, "Node "+quoted(node)+", which does not exist")
				}
			}
		}
	}
}

// localAbsent reports Local traffic policies and the nodes that have no endpoint
// for them. With mode ipvs, these use all endpoints, unless no frontend has policy
// Cluster or is external (IPV-4).
func localAbsent(c *cluster, s *service) {
	accessible := s.Type == "NodePort" || s.isBalancer() || len(s.ExternalIPs) > 0
	falls := c.caps.Has(ir.LocalFallback)
	external, internal := s.ExternalLocal && accessible && !falls, s.InternalLocal && !(accessible && falls)
	if !external && !internal || !c.hasSlices || c.lost[s.Name] || !c.caps.Has(ir.TrafficPolicies) {
		return
	}
	where := c.absent(s)
	if where != "" && external {
		severity, so := diag.Warning, "drop external packets"
		if s.wantsHealth() && len(s.ExternalIPs) == 0 {
			severity, so = diag.Info, "drop external packets, and report this to the load balancer by spec.healthCheckNodePort"
		}
		c.addService(s, severity, diag.ExternalLocalAbsent, "spec.externalTrafficPolicy", "is Local, and "+where+so)
	}
	if where != "" && internal {
		do := "drop"
		if falls {
			do = "reject"
		}
		c.warn(s, diag.InternalLocalAbsent, "spec.internalTrafficPolicy", "is Local, and "+where+do+" the packets of their pods")
	}
}

// absent describes the nodes without an endpoint of a Service that has endpoints on others, as the
// subject of a sentence; "" for none. noEndpoints reports a Service without any.
func (c *cluster) absent(s *service) string {
	on, anywhere, given := map[string]bool{}, false, false
	for slice, e := range s.endpoints() {
		ends := e.Serving && e.Terminating && c.caps.Has(ir.Topology) // used if no other endpoint is on the node
		if !e.Ready && !ends {
			continue
		}
		anywhere, given = true, given || !slice.Assumed()
		if c.Snapshot.Node(e.NodeName) != nil {
			on[e.NodeName] = true
		}
	}
	var names []string
	for _, n := range c.nodes {
		if !on[n.Name] {
			names = append(names, n.Name)
		}
	}
	switch n := len(names); {
	case n == 0, !anywhere:
		return ""
	case !given:
		return "its pods are not on every node: the others "
	default:
		return "no ready endpoint is on " + strconv.Itoa(n) + " of " + strconv.Itoa(len(c.nodes)) + " nodes: " + some(names, n) + ", which "
	}
}
