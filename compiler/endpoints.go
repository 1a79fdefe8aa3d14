package compiler

import (
	"bytes"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// endpoint is an address and port to which a service port may forward.
type endpoint struct {
	addrPort netip.AddrPort
	*snapshot.Endpoint
	slice *snapshot.EndpointSlice
	index int // in slice.Endpoints
}

// origin returns the endpoint's place in its slice.
func (c *cluster) origin(e *endpoint, reason string) ir.Origin {
	return ir.Origin{Object: sliceObject(e.slice), Field: c.endpointField(e.slice, e.index), Reason: reason}
}

// endpointField returns the path of endpoint i in its source object.
func (c *cluster) endpointField(s *snapshot.EndpointSlice, i int) string {
	if s.FromEndpoints && i < len(s.Addresses) {
		return subsetField(s) + c.names.addresses.at(s.Addresses[i])
	}
	return c.names.endpoints.at(i)
}

// addressField returns the path of the first address of endpoint i, the only one
// that is used.
func (c *cluster) addressField(s *snapshot.EndpointSlice, i int) string {
	if s.FromEndpoints {
		return c.endpointField(s, i) + ".ip"
	}
	return c.endpointField(s, i) + ".addresses[0]"
}

// slicePortField returns the path of port i in its source object.
func (c *cluster) slicePortField(s *snapshot.EndpointSlice, i int) string {
	if s.FromEndpoints {
		return subsetField(s) + c.names.slicePorts.at(i)
	}
	return c.names.slicePorts.at(i)
}

func subsetField(s *snapshot.EndpointSlice) string {
	return "subsets[" + strconv.Itoa(s.Subset) + "]."
}

func sliceObject(s *snapshot.EndpointSlice) string {
	if s.Object == "" {
		return "EndpointSlice " + s.Name.String()
	}
	return s.Object
}

// endpointsPass merges the EndpointSlices of a service in one family into one
// list per port, sorted by the text of address and port. SNAP-40 to SNAP-46
// define conditions, ports, addresses, duplicates and order.
func (c *cluster) endpointsPass(s *service, family ir.Family) [][]endpoint {
	merged := make([][]endpoint, len(s.ports))
	for _, slice := range c.snap.Slices(s.Name) {
		if slice.Headless || slice.AddressType != family.String() {
			continue // headless slices (SNAP-2) and slices of another family (SNAP-5) are ignored
		}
		for i, fault := range portFaults(slice) {
			if fault != (portFault{}) {
				s.diags.Add(c.portError(slice, i, fault))
				continue
			}
			c.addEndpoints(s, family, slice, i, merged)
		}
	}
	for i := range merged {
		merged[i] = c.mergeDuplicates(s, merged[i])
	}
	return merged
}

// addEndpoints adds the endpoints of one port of a slice to the service port with
// the same name.
func (c *cluster) addEndpoints(s *service, family ir.Family, slice *snapshot.EndpointSlice, i int, merged [][]endpoint) {
	in := &slice.Ports[i]
	protocol, _ := protocolOf(in.Protocol)
	n, _ := number(in.Port)
	to, found := s.portOf(in.Name, protocol)
	if !found || s.views.At(family).overs(to) {
		return
	}
	list := slices.Grow(merged[to], len(slice.Endpoints))
	for j := range slice.Endpoints {
		e := &slice.Endpoints[j]
		addr, code, msg := addressFault(e, family)
		if code != "" {
			s.diags.Add(c.addressError(slice, j, code, msg))
			continue
		}
		list = append(list, endpoint{netip.AddrPortFrom(addr.WithZone(""), n), e, slice, j})
	}
	merged[to] = list
}

// portError reports a fault of port i.
func (c *cluster) portError(s *snapshot.EndpointSlice, i int, fault portFault) diag.Diagnostic {
	return diag.Diagnostic{Severity: diag.Error, Code: diag.SlicePort, Object: sliceObject(s), Path: c.slicePortField(s, i) + fault.field, Msg: fault.msg}
}

// addressError reports a fault that addressFault found in endpoint i.
func (c *cluster) addressError(s *snapshot.EndpointSlice, i int, code diag.Code, msg string) diag.Diagnostic {
	path := c.addressField(s, i)
	if s.Endpoints[i].Address == "" {
		path = c.endpointField(s, i) + ".addresses"
	}
	return diag.Diagnostic{Severity: diag.Error, Code: code, Object: sliceObject(s), Path: path, Msg: msg}
}

// portFault is a fault of a slice's port and the field with the fault. The zero
// value means no fault.
type portFault struct{ field, msg string }

// portFaults yields all ports of a slice with their faults.
func portFaults(slice *snapshot.EndpointSlice) iter.Seq2[int, portFault] {
	return func(yield func(int, portFault) bool) {
		names := map[string]int{} // index of the first port with a name
		for i := range slice.Ports {
			in := &slice.Ports[i]
			fault := faultOf(in)
			if in.HasName {
				if first, twice := names[in.Name]; !twice {
					names[in.Name] = i
				} else if fault == (portFault{}) { // the API server rejects it
					fault = portFault{".name", diag.Quote(in.Name) + " is the name of ports[" + strconv.Itoa(first) + "] too: the port is ignored"}
				}
			}
			if !yield(i, fault) {
				return
			}
		}
	}
}

// faultOf returns the fault of a single port.
func faultOf(in *snapshot.EndpointPort) portFault {
	_, known := protocolOf(in.Protocol)
	_, valid := number(in.Port)
	switch {
	case !in.HasName: // a port needs a name, possibly empty, and a number (SNAP-41)
		return portFault{".name", "must be set, or empty for a port without a name: the port is ignored"}
	case !in.HasPort || in.Port == 0:
		return portFault{".port", "must be set: a slice for all ports is not supported"}
	case !valid:
		return portFault{".port", "must be 1-65535, got " + strconv.Itoa(int(in.Port))}
	case !known:
		return portFault{".protocol", "must be TCP, UDP or SCTP, got " + diag.Quote(in.Protocol)}
	}
	return portFault{}
}

// addressFault returns the address of an endpoint, or its fault.
func addressFault(e *snapshot.Endpoint, family ir.Family) (addr netip.Addr, code diag.Code, msg string) {
	addr, ok := e.Addr, e.Addr.IsValid()
	if !ok {
		addr, ok = inet.ParseUnmapped(e.Address)
	}
	addr = addr.Unmap()
	switch {
	case e.Address == "" && !ok: // the first address counts (SNAP-42)
		return addr, diag.EndpointAddress, "must not be empty: the endpoint is ignored"
	case !ok:
		return addr, diag.EndpointAddress, "must be an IP address, got " + diag.Quote(e.Address)
	case !family.Has(addr):
		return addr, diag.EndpointAddress, "must be " + family.String() + " as addressType says, got " + diag.Quote(e.Address)
	case inet.Unusable(addr) != "":
		return addr, diag.EndpointUnusable, "must be an address that an endpoint can have, got " + e.Address + ", which is " + inet.Unusable(addr)
	}
	return addr, "", ""
}

// Faults returns the faults of the ports and endpoints of slices. Compile reports only those of slices with
// a Service.
func Faults(all []*snapshot.EndpointSlice) (found diag.List) {
	c := cluster{names: newFieldNames()}
	for _, slice := range all {
		for i, fault := range portFaults(slice) {
			if fault != (portFault{}) {
				found.Add(c.portError(slice, i, fault))
			}
		}
		for _, family := range ir.Families() {
			for j := range slice.Endpoints {
				if slice.AddressType != family.String() {
					break
				}
				if _, code, msg := addressFault(&slice.Endpoints[j], family); code != "" {
					found.Add(c.addressError(slice, j, code, msg))
				}
			}
		}
	}
	return found
}

// portOf returns the index of the service port for a port of a slice.
func (s *service) portOf(name string, p ir.Protocol) (int, bool) {
	return slices.BinarySearchFunc(s.ports, ir.ServicePort{Service: s.Name, Port: name, Protocol: p},
		func(p port, name ir.ServicePort) int { return p.ServicePort.Compare(name) })
}

// mergeDuplicates sorts a list and keeps one of the entries with the same address
// and port. An entry that is not terminating wins, then a ready one (SNAP-45).
func (c *cluster) mergeDuplicates(s *service, list []endpoint) []endpoint {
	slices.SortStableFunc(list, func(a, b endpoint) int { return compareText(a.addrPort, b.addrPort) })
	kept := list[:0]
	for i := range list {
		e := list[i]
		if len(kept) == 0 || kept[len(kept)-1].addrPort != e.addrPort {
			kept = append(kept, e)
			continue
		}
		last := &kept[len(kept)-1]
		loser := e
		if preferred(&e, last) {
			loser, *last = *last, e
		}
		if !alike(last, &loser) {
			s.diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.EndpointDuplicate, Object: sliceObject(loser.slice), Path: c.endpointField(loser.slice, loser.index),
				Msg: e.addrPort.String() + " differs in " + sliceObject(last.slice) + ", " + c.endpointField(last.slice, last.index) + ", which is used"})
		}
	}
	return kept
}

// preferred reports whether a wins over b, an earlier entry for the same address
// and port. kube-proxy prefers an entry that is not terminating, and otherwise
// chooses at random. Here readiness decides, then the order.
func preferred(a, b *endpoint) bool {
	switch {
	case a.Terminating != b.Terminating:
		return b.Terminating
	case a.Ready != b.Ready:
		return a.Ready
	}
	return a.Serving && !b.Serving
}

// alike reports whether two entries are interchangeable.
func alike(a, b *endpoint) bool {
	return a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating && a.NodeName == b.NodeName &&
		slices.Equal(a.ZoneHints(), b.ZoneHints()) && slices.Equal(a.NodeHints(), b.NodeHints())
}

// compareText compares by text, as kube-proxy does: 10.0.0.10:80 precedes
// 10.0.0.2:80 (SNAP-46).
func compareText(a, b netip.AddrPort) int {
	if a == b {
		return 0
	}
	var x, y [64]byte
	return bytes.Compare(a.AppendTo(x[:0]), b.AppendTo(y[:0]))
}
