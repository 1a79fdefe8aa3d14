package lint

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Miss is a slice or endpoint that does not serve a service port, with the
// reason.
type Miss struct {
	Text   string
	Origin ir.Origin
}

// missesShown is the maximum number of endpoints that Misses names for each
// reason.
const missesShown = 5

// Misses returns why no endpoint serves a service port in a family. It covers
// slices that could not be decoded, slices of another family or Service, ports
// with another name or protocol, and endpoints that are not ready. If local is
// set, it covers only endpoints on the node, and reports ready ones elsewhere.
// The cost is linear in the Service's slices; if there are none, in all slices of
// the snapshot.
func Misses(snap *snapshot.Snapshot, node string, port ir.ServicePort, f ir.Family, local bool) []Miss {
	m := misses{snap: snap, node: node, port: port, local: local, more: map[string]int{}}
	for _, l := range snap.Invalid() {
		if l.Service == port.Service && !l.IsService() {
			m.add(ir.Origin{}, l.Object+" is ignored: "+l.Why)
		}
	}
	all := snap.Slices(port.Service)
	if len(all) == 0 && len(m.found) == 0 {
		return m.none(snap)
	}
	inFamily := func(s *snapshot.EndpointSlice) bool { return s.AddressType == f.String() }
	none := len(m.found) == 0 && !slices.ContainsFunc(all, inFamily)
	for _, slice := range all {
		switch {
		case !inFamily(slice) && none:
			m.add(ir.Origin{Object: slice.Object, Field: "addressType"}, "the slice is "+slice.AddressType+", not "+f.String())
		case !inFamily(slice):
		case slice.Headless:
			m.add(ir.Origin{Object: slice.Object, Field: "metadata.labels"}, "service.kubernetes.io/headless excludes the slice")
		case m.serves(slice):
			m.endpoints(slice)
		}
	}
	m.countRest()
	return m.found
}

// countRest adds the number of endpoints that are not named, for each reason.
func (m *misses) countRest() {
	for _, why := range m.order {
		switch n := m.more[why] - missesShown; {
		case n > 1:
			m.add(ir.Origin{}, strconv.Itoa(n)+" more endpoints "+plural.Replace(why))
		case n == 1:
			m.add(ir.Origin{}, "1 more endpoint "+why)
		}
	}
}

// plural rewrites the text about one endpoint for several.
var plural = strings.NewReplacer("is ", "are ", "an unknown node", "unknown nodes")

// misses collects the result of Misses.
type misses struct {
	snap  *snapshot.Snapshot
	node  string
	port  ir.ServicePort
	local bool
	found []Miss
	order []string       // reasons of endpoints, in order of appearance
	more  map[string]int // number of endpoints for each
}

func (m *misses) add(o ir.Origin, text string) { m.found = append(m.found, Miss{text, o}) }

// none reports a slice with a similar owner label, for a Service without slices.
func (m *misses) none(snap *snapshot.Snapshot) []Miss {
	if len(snap.Workloads()) > 0 {
		m.add(ir.Origin{Object: "Service " + m.port.Service.String(), Field: "spec.selector"}, "no EndpointSlice belongs to the Service, and the selector matches no workload")
		return m.found
	}
	m.add(ir.Origin{}, "no EndpointSlice has label kubernetes.io/service-name "+strconv.Quote(m.port.Service.Name)+" in namespace "+m.port.Service.Namespace)
	byOwner := map[string]*snapshot.EndpointSlice{}
	var owners []string
	for _, slice := range snap.Orphans() {
		if owner := slice.Service.Name; snap.InvalidService(slice.Service) == nil && slice.Name.Namespace == m.port.Service.Namespace && byOwner[owner] == nil {
			byOwner[owner] = slice
			owners = append(owners, owner)
		}
	}
	if near := diag.Nearest(m.port.Service.Name, owners); near != "" {
		m.add(ir.Origin{Object: byOwner[near].Object, Field: "metadata.labels"}, "the slice belongs to a Service "+strconv.Quote(near)+", which does not exist")
	}
	return m.found
}

// serves reports whether a slice has the port. If not, it adds a Miss with the
// ports that the slice has.
func (m *misses) serves(slice *snapshot.EndpointSlice) bool {
	is := func(p snapshot.EndpointPort) bool {
		return p.HasName && p.HasPort && p.Port > 0 && p.Port <= 65535 && p.Name == m.port.Port && protocolOf(p.Protocol) == strings.ToUpper(m.port.Protocol.String())
	}
	if slices.ContainsFunc(slice.Ports, is) {
		return true
	}
	if slice.Assumed() {
		m.add(ir.Origin{Object: strings.TrimPrefix(slice.Object, snapshot.AssumedFrom), Field: "spec.template.spec.containers"}, "no container has the targetPort of "+portName(m.port.Port)+" for "+m.port.Protocol.String())
		return false
	}
	want := portName(m.port.Port) + " for " + m.port.Protocol.String()
	var has []string
	before := len(m.found)
	for i := range slice.Ports {
		p := &slice.Ports[i]
		protocol, known := ir.ParseProtocol(protocolOf(p.Protocol))
		known = known && p.Protocol == strings.ToUpper(p.Protocol)
		o := ir.Origin{Object: slice.Object, Field: at("ports", i)}
		if slice.FromEndpoints {
			o.Field = at("subsets", slice.Subset) + "." + o.Field
		}
		switch {
		case !p.HasName || !p.HasPort || !known:
			m.add(o, "the port lacks name, number or protocol")
		case p.Name == m.port.Port && protocol == m.port.Protocol:
			o.Field += ".port"
			m.add(o, "must be 1-65535, got "+strconv.Itoa(int(p.Port)))
		case p.Name == m.port.Port:
			o.Field += ".protocol"
			m.add(o, portName(p.Name)+" is for "+protocol.String()+", but that of the Service is "+want)
		case protocol == m.port.Protocol:
			o.Field += ".name"
			m.add(o, strconv.Itoa(int(p.Port))+" is "+portName(p.Name)+", but that of the Service is "+portName(m.port.Port))
		default:
			has = append(has, portName(p.Name)+" for "+protocol.String())
		}
	}
	if len(m.found) == before {
		m.add(ir.Origin{Object: slice.Object, Field: "ports"}, "the slice has "+cmp.Or(strings.Join(has, ", "), "no port")+", but the Service has "+want)
	}
	return false
}

func portName(name string) string {
	if name == "" {
		return "a port without a name"
	}
	return "port " + strconv.Quote(name)
}

// endpoints reports endpoints that have the port and do not serve it.
func (m *misses) endpoints(slice *snapshot.EndpointSlice) {
	if len(slice.Endpoints) == 0 && slice.Assumed() {
		o := ir.Origin{Object: strings.TrimPrefix(slice.Object, snapshot.AssumedFrom), Field: "spec.replicas", Reason: "the workload has 0 replicas"}
		if w := m.snap.Workload(o.Object); w != nil && w.Pending.Field != "" {
			o = w.Pending
		}
		m.add(ir.Origin{Object: o.Object, Field: o.Field}, o.Reason)
	} else if len(slice.Endpoints) == 0 {
		m.add(ir.Origin{Object: slice.Object, Field: "endpoints"}, "the slice has no endpoint")
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		why := m.unusable(e)
		if why == "" {
			continue
		}
		if m.more[why]++; m.more[why] == 1 {
			m.order = append(m.order, why)
		}
		if m.more[why] <= missesShown {
			m.add(ir.Origin{Object: slice.Object, Field: field(slice, i)}, e.Address+" "+why)
		}
	}
}

// unusable returns why an endpoint does not serve; "" if it does.
func (m *misses) unusable(e *snapshot.Endpoint) (why string) {
	if m.local && (m.node == "" || e.NodeName != m.node) {
		if why = "is on node " + e.NodeName; e.NodeName == "" {
			why = "is on an unknown node"
		}
	}
	switch {
	case e.Ready:
		return why
	case why != "":
		return why + ", and not ready"
	case e.Terminating && !e.Serving:
		return "is terminating and not serving"
	case e.Terminating:
		return "is terminating"
	}
	return "is not ready"
}
