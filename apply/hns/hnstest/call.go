package hnstest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/hns"
)

// Call executes one call like computenetwork.dll. It returns the result, a handle if the call
// creates one, and a text.
func (s *Service) Call(c Call) (result uint32, h int64, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	c.ID = strings.ToLower(c.ID)
	if s.Before != nil {
		if result := s.Before(c); result != ok {
			return result, 0, ""
		}
	}
	if s.stopped {
		return unavailable, 0, ""
	}
	if c.Name == "HNSCall" {
		return ok, 0, s.version1(c)
	}
	result, h, text = s.version2(c)
	if result == ok && s.After != nil {
		if result := s.After(c); result != ok {
			return result, 0, ""
		}
	}
	if result != ok {
		s.log = append(s.log, fmt.Sprintf("%s %s %s: %#x", c.Name, c.ID, c.Text, result))
	}
	return result, h, text
}

// kinds are the kinds of objects, with the error for a missing one.
var kinds = []struct {
	name    string
	missing uint32
}{{"LoadBalancer", policyNotFound}, {"Endpoint", endpointNotFound}, {"Network", networkNotFound}}

func (s *Service) version2(c Call) (uint32, int64, string) {
	i := slices.IndexFunc(kinds, func(k struct {
		name    string
		missing uint32
	}) bool {
		return strings.HasSuffix(c.Name, k.name)
	})
	if i < 0 || !hns.FeaturesOf(s.version).API { // [hnslib] V2ApiSupport
		return notImplemented, 0, ""
	}
	kind := kinds[i].name
	switch verb := strings.TrimSuffix(c.Name, kind); verb {
	case "Enumerate":
		return s.enumerate(kind, c.Text)
	case "Open":
		if s.object(kind, c.ID) == nil {
			return kinds[i].missing, 0, ""
		}
		return ok, s.open(kind, c.ID), ""
	case "Query":
		object := s.behind(kind, c.Handle)
		if object == nil {
			return invalidHandle, 0, ""
		}
		return ok, 0, encode(object)
	case "Close":
		if s.handles[c.Handle].kind != kind {
			return invalidHandle, 0, ""
		}
		delete(s.handles, c.Handle)
		return ok, 0, ""
	case "Create":
		return s.create(kind, c)
	case "Modify":
		return s.modify(kind, c), 0, ""
	case "Delete":
		return s.remove(kind, kinds[i].missing, c.ID), 0, ""
	}
	return notImplemented, 0, ""
}

func encode(object any) string {
	text, _ := json.Marshal(object)
	return string(text)
}

func (s *Service) open(kind, id string) int64 {
	s.next++
	h := int64(s.next)
	s.handles[h] = handle{kind, id}
	return h
}

// object returns an object, or nil.
func (s *Service) object(kind, id string) any {
	switch kind {
	case "Network":
		if n := s.networks[id]; n != nil {
			return n
		}
	case "Endpoint":
		if e := s.endpoints[id]; e != nil {
			return e
		}
	case "LoadBalancer":
		if l := s.balancers[id]; l != nil {
			return l
		}
	}
	return nil
}

// behind returns the object of a handle, or nil if the handle or the object is gone.
func (s *Service) behind(kind string, h int64) any {
	if s.handles[h].kind != kind {
		return nil
	}
	return s.object(kind, s.handles[h].id)
}

// enumerate returns ids. A query may filter by ID, Name, or VirtualNetwork, the version 1 name of
// an endpoint's network [hnslib]. No object has an empty ID. kube-proxy asks for that when it
// deletes a load balancer that it has not created, and deletes the results [winkernel].
func (s *Service) enumerate(kind, query string) (uint32, int64, string) {
	var q struct{ Filter string }
	filter := map[string]string{}
	if query != "" {
		if json.Unmarshal([]byte(query), &q) != nil {
			return invalidJSON, 0, ""
		}
		if q.Filter != "" && json.Unmarshal([]byte(q.Filter), &filter) != nil {
			return invalidJSON, 0, ""
		}
	}
	ids := []string{}
	add := func(id, name, network string) {
		for property, is := range map[string]string{"ID": id, "Name": name, "VirtualNetwork": network} {
			if want, asked := filter[property]; asked && want != is && (property == "Name" || !strings.EqualFold(want, is)) {
				return
			}
		}
		ids = append(ids, id)
	}
	switch kind {
	case "Network":
		for id, n := range s.networks {
			add(id, n.Name, "")
		}
	case "Endpoint":
		for id, e := range s.endpoints {
			add(id, e.Name, e.HostComputeNetwork)
		}
	case "LoadBalancer":
		for id := range s.balancers {
			add(id, "", "")
		}
	}
	slices.Sort(ids)
	return ok, 0, encode(ids)
}

func (s *Service) create(kind string, c Call) (uint32, int64, string) {
	switch kind {
	case "Endpoint":
		network, _ := s.behind("Network", c.Handle).(*Network)
		if network == nil {
			return invalidHandle, 0, ""
		}
		e := &Endpoint{}
		if json.Unmarshal([]byte(c.Text), e) != nil {
			return invalidJSON, 0, ""
		}
		if result := s.checkEndpoint(network, e); result != ok {
			return result, 0, ""
		}
		e.ID, e.HostComputeNetwork, e.made = s.id(), network.ID, true
		if e.MacAddress == "" {
			e.MacAddress = s.mac()
		}
		s.endpoints[e.ID] = e
		return ok, s.open(kind, e.ID), ""
	case "LoadBalancer":
		l := &LoadBalancer{}
		if json.Unmarshal([]byte(c.Text), l) != nil {
			return invalidJSON, 0, ""
		}
		if result := s.checkBalancer(l, ""); result != ok {
			return result, 0, ""
		}
		l.ID = s.id()
		s.balancers[l.ID] = l
		return ok, s.open(kind, l.ID), ""
	}
	return notImplemented, 0, ""
}

// checkEndpoint returns the result of creating an endpoint.
func (s *Service) checkEndpoint(n *Network, e *Endpoint) uint32 {
	if e.SchemaVersion.Major != 2 { // [schema]
		return invalidEndpoint
	}
	if len(e.IpConfigurations) == 0 { // [strict]: a local one could get an address of the pool
		return invalidEndpoint
	}
	for _, c := range e.IpConfigurations {
		a, err := netip.ParseAddr(c.IpAddress)
		switch {
		case err != nil || a.Zone() != "":
			return invalidIP // [results]
		case a.Is6() && !hns.FeaturesOf(s.version).DualStack: // [hnslib] IPv6DualStackVersion
			return unsupported
		case a.Is6() && n.Type == "Overlay": // [winkernel]: overlays have no dual stack
			return unsupported
		case !e.remote() && !n.contains(a):
			return subnetNotFound // [results]: the network does not have a subnet for this endpoint
		}
		for _, other := range s.endpoints {
			// A local and a remote endpoint may have the same address [winkernel].
			if other.HostComputeNetwork == n.ID && other.remote() == e.remote() && slices.Contains(other.addrs(), a) {
				return alreadyExists // [strict]
			}
		}
	}
	if e.remote() && e.MacAddress == "" { // [strict]: no host would reply for it
		return invalidEndpoint
	}
	if e.remote() && n.Type == "Overlay" && !slices.ContainsFunc(e.Policies, func(p Policy) bool { return p.Type == "ProviderAddress" }) {
		return invalidEndpoint // [strict]: its traffic has no destination
	}
	return ok
}

func (n *Network) contains(a netip.Addr) bool {
	for _, i := range n.Ipams {
		for _, sub := range i.Subnets {
			if p, err := netip.ParsePrefix(sub.IpAddressPrefix); err == nil && p.Contains(a) {
				return true
			}
		}
	}
	return false
}

// checkBalancer returns the result of creating a load balancer, or of replacing the one with id
// instead.
func (s *Service) checkBalancer(l *LoadBalancer, instead string) uint32 {
	can := hns.FeaturesOf(s.version)
	switch {
	case l.SchemaVersion.Major != 2: // [schema]
		return invalidPolicy
	case len(l.PortMappings) == 0 || len(l.HostComputeEndpoints) == 0: // [strict]
		return invalidPolicy
	case l.Flags&1 != 0 && !can.DSR: // [hnslib] DSRVersion
		return unsupported
	case l.Flags&2 != 0 && !can.DualStack: // [hnslib] IPv6DualStackVersion
		return unsupported
	}
	for _, vip := range l.FrontendVIPs {
		if a, err := netip.ParseAddr(vip); err != nil || a.Is6() != (l.Flags&2 != 0) {
			return invalidIP // [results]
		}
	}
	for i := range l.PortMappings {
		m := &l.PortMappings[i]
		if m.ExternalPort == 0 || m.InternalPort == 0 || m.Protocol == 0 || m.Protocol > 255 { // [strict]
			return invalidPolicy
		}
		if !can.SessionAffinity { // [hnslib] SessionAffinityVersion; [winkernel]: it is then without effect
			m.DistributionType = 0
		}
	}
	seen := map[string]bool{}
	for i, id := range l.HostComputeEndpoints {
		id = strings.ToLower(id)
		l.HostComputeEndpoints[i] = id
		switch {
		case s.endpoints[id] == nil:
			return endpointNotFound // [results]
		case s.backend(id, l.Flags&2 != 0) == "of the other family" || seen[id]: // [strict]
			return invalidPolicy
		}
		seen[id] = true
	}
	for id, other := range s.balancers {
		if id == instead || !clash(l, other) {
			continue
		}
		if l.same(other) {
			return alreadyExists // [139519]
		}
		return portAlreadyExists // [137530]
	}
	return ok
}

// clash reports whether two load balancers have the same address, protocol and port. Those without
// an address are for the node's addresses in their family.
func clash(a, b *LoadBalancer) bool {
	if a.Flags&2 != b.Flags&2 {
		return false
	}
	vips := slices.ContainsFunc(a.FrontendVIPs, func(v string) bool { return slices.Contains(b.FrontendVIPs, v) })
	if !vips && len(a.FrontendVIPs)+len(b.FrontendVIPs) > 0 {
		return false
	}
	return slices.ContainsFunc(a.PortMappings, func(m PortMapping) bool {
		return slices.ContainsFunc(b.PortMappings, func(o PortMapping) bool { return m.Protocol == o.Protocol && m.ExternalPort == o.ExternalPort })
	})
}

func (l *LoadBalancer) same(other *LoadBalancer) bool {
	a, b := *l, *other
	a.ID, b.ID = "", ""
	a.HostComputeEndpoints, b.HostComputeEndpoints = slices.Sorted(slices.Values(a.HostComputeEndpoints)), slices.Sorted(slices.Values(b.HostComputeEndpoints))
	return encode(a) == encode(b)
}

// modify replaces a load balancer.
func (s *Service) modify(kind string, c Call) uint32 {
	if kind != "LoadBalancer" || !hns.FeaturesOf(s.version).Modify { // [hnslib] ModifyLoadbalancerVersion
		return notImplemented
	}
	have, _ := s.behind(kind, c.Handle).(*LoadBalancer)
	if have == nil {
		return invalidHandle
	}
	l := &LoadBalancer{}
	if json.Unmarshal([]byte(c.Text), l) != nil {
		return invalidJSON
	}
	if result := s.checkBalancer(l, have.ID); result != ok {
		return result
	}
	if !clash(l, have) { // [strict]: kube-proxy changes only endpoints and ports of a VIP
		return invalidPolicy
	}
	l.ID = have.ID
	*have = *l
	return ok
}

func (s *Service) remove(kind string, missing uint32, id string) uint32 {
	if s.object(kind, id) == nil {
		return missing
	}
	if s.stuck[id] {
		return failed // [113524]
	}
	switch kind {
	case "LoadBalancer":
		delete(s.balancers, id)
	case "Endpoint":
		for _, l := range s.balancers {
			if slices.Contains(l.HostComputeEndpoints, id) {
				return hasReferences // [results]
			}
		}
		delete(s.endpoints, id)
	default:
		return notImplemented
	}
	return ok
}

// version1 serves the version 1 API calls that are still in use [hnslib].
func (s *Service) version1(c Call) string {
	answer := func(output any) string { return encode(map[string]any{"Success": true, "Output": output}) }
	if c.Method == "GET" {
		switch strings.Trim(c.Text, "/") {
		case "globals/version":
			return answer(s.version)
		case "policylists":
			all := []any{}
			for _, id := range slices.Sorted(maps.Keys(s.balancers)) {
				all = append(all, map[string]any{"ID": strings.ToUpper(id), "References": []string{}, "Policies": []any{}})
			}
			return answer(all)
		case "endpoints":
			all := []any{}
			for _, id := range slices.Sorted(maps.Keys(s.endpoints)) {
				all = append(all, s.endpoints[id].version1())
			}
			return answer(all)
		}
	}
	return encode(map[string]any{"Success": false, "Error": "Element not found."})
}

// version1 returns the endpoint in the version 1 schema [hnslib].
func (e *Endpoint) version1() map[string]any {
	v := map[string]any{"ID": strings.ToUpper(e.ID), "Name": e.Name, "VirtualNetwork": strings.ToUpper(e.HostComputeNetwork), "MacAddress": e.MacAddress}
	if e.remote() {
		v["IsRemoteEndpoint"] = true
	}
	for _, a := range e.addrs() {
		if a.Is6() {
			v["IPv6Address"] = a.String()
		} else {
			v["IPAddress"] = a.String()
		}
	}
	return v
}
