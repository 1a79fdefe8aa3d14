package compiler

import (
	"bytes"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// endpoint is one address and port that a service port may send to.
type endpoint struct {
	addrPort netip.AddrPort
	*snapshot.Endpoint
	slice *snapshot.EndpointSlice
	index int // in slice.Endpoints
}

// origin names the endpoint's place in its slice.
func (c *cluster) origin(e *endpoint, reason string) ir.Origin {
	return ir.Origin{Object: sliceObject(e.slice), Field: c.endpointField(e.slice, e.index), Reason: reason}
}

// endpointField names the place of endpoint i in the object it comes from.
func (c *cluster) endpointField(s *snapshot.EndpointSlice, i int) string {
	if s.FromEndpoints && i < len(s.Addresses) {
		return subsetField(s) + c.names.addresses.at(s.Addresses[i])
	}
	return c.names.endpoints.at(i)
}

// addressField names the place of the address that counts of endpoint i.
func (c *cluster) addressField(s *snapshot.EndpointSlice, i int) string {
	if s.FromEndpoints {
		return c.endpointField(s, i) + ".ip"
	}
	return c.endpointField(s, i) + ".addresses[0]"
}

// slicePortField names the place of port i in the object it comes from.
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
// list for each port, by the text of address and port (SNAP-40 to SNAP-46).
func (c *cluster) endpointsPass(s *service, family ir.Family) [][]endpoint {
	merged := make([][]endpoint, len(s.ports))
	for _, slice := range c.snap.Slices(s.Name) {
		if slice.Headless || slice.AddressType != family.String() {
			continue // SNAP-2, SNAP-5
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

// addEndpoints adds what one entry of a slice's ports gives to the service port of its name.
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

// portError reports what is wrong with port i.
func (c *cluster) portError(s *snapshot.EndpointSlice, i int, fault portFault) diag.Diagnostic {
	return diag.Diagnostic{Severity: diag.Error, Code: diag.SlicePort, Object: sliceObject(s), Path: c.slicePortField(s, i) + fault.field, Msg: fault.msg}
}

// addressError tells what addressFault finds of endpoint i.
func (c *cluster) addressError(s *snapshot.EndpointSlice, i int, code diag.Code, msg string) diag.Diagnostic {
	path := c.addressField(s, i)
	if s.Endpoints[i].Address == "" {
		path = c.endpointField(s, i) + ".addresses"
	}
	return diag.Diagnostic{Severity: diag.Error, Code: code, Object: sliceObject(s), Path: path, Msg: msg}
}

// portFault is what is wrong with an entry of a slice's ports, and in which field
// of it; zero: nothing.
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
				} else if fault == (portFault{}) { // the API server refuses it
					fault = portFault{".name", diag.Quote(in.Name) + " is the name of ports[" + strconv.Itoa(first) + "], too: the port is left out"}
				}
			}
			if !yield(i, fault) {
				return
			}
		}
	}
}

// faultOf returns what is wrong with a port by itself.
func faultOf(in *snapshot.EndpointPort) portFault {
	_, known := protocolOf(in.Protocol)
	_, valid := number(in.Port)
	switch {
	case !in.HasName: // SNAP-41
		return portFault{".name", "must be set, empty for a port without a name: the port is left out"}
	case !in.HasPort || in.Port == 0:
		return portFault{".port", "must be set: all ports at once are not served"}
	case !valid:
		return portFault{".port", "must be 1-65535, got " + strconv.Itoa(int(in.Port))}
	case !known:
		return portFault{".protocol", "must be TCP, UDP or SCTP, got " + diag.Quote(in.Protocol)}
	}
	return portFault{}
}

// addressFault returns the address of an endpoint, or what is wrong with it.
func addressFault(e *snapshot.Endpoint, family ir.Family) (addr netip.Addr, code diag.Code, msg string) {
	addr, ok := e.Addr, e.Addr.IsValid()
	if !ok {
		addr, ok = parseAddr(e.Address)
	}
	addr = addr.Unmap()
	switch {
	case e.Address == "" && !ok: // SNAP-42
		return addr, diag.EndpointAddress, "must not be empty: the endpoint is left out"
	case !ok:
		return addr, diag.EndpointAddress, "must be an IP address, got " + diag.Quote(e.Address)
	case !family.Has(addr):
		return addr, diag.EndpointAddress, "must be " + family.String() + " as addressType says, got " + diag.Quote(e.Address)
	case unusable(addr) != "":
		return addr, diag.EndpointUnusable, "must be an address that an endpoint can have, got " + e.Address + ", which is " + unusable(addr)
	}
	return addr, "", ""
}

// Faults returns what is wrong with the ports and endpoints of a slice that no Service asks
// for; Compile tells of the others.
func Faults(slice *snapshot.EndpointSlice) (found diag.List) {
	c := cluster{names: newFieldNames()}
	for i, fault := range portFaults(slice) {
		if fault != (portFault{}) {
			found.Add(c.portError(slice, i, fault))
		}
	}
	for _, family := range ir.Families() {
		if slice.AddressType != family.String() {
			continue
		}
		for j := range slice.Endpoints {
			if _, code, msg := addressFault(&slice.Endpoints[j], family); code != "" {
				found.Add(c.addressError(slice, j, code, msg))
			}
		}
	}
	return found
}

// portOf returns the place of the service port that an entry of a slice's ports is for.
func (s *service) portOf(name string, p ir.Protocol) (int, bool) {
	return slices.BinarySearchFunc(s.ports, ir.ServicePort{Service: s.Name, Port: name, Protocol: p},
		func(p port, name ir.ServicePort) int { return p.ServicePort.Compare(name) })
}

// mergeDuplicates sorts a list and keeps one of the entries that have the same
// address and port (SNAP-45).
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
			s.diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.EndpointTwice, Object: sliceObject(loser.slice), Path: c.endpointField(loser.slice, loser.index),
				Msg: e.addrPort.String() + " differs in " + sliceObject(last.slice) + ", " + c.endpointField(last.slice, last.index) + ", which counts"})
		}
	}
	return kept
}

// preferred reports whether a beats b, an entry for the same address and port
// that stands before it. kube-proxy prefers what is not terminating, and
// leaves the rest to chance; here readiness decides, then what stands first.
func preferred(a, b *endpoint) bool {
	switch {
	case a.Terminating != b.Terminating:
		return b.Terminating
	case a.Ready != b.Ready:
		return a.Ready
	}
	return a.Serving && !b.Serving
}

// alike reports whether it does not matter which of two entries counts.
func alike(a, b *endpoint) bool {
	return a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating && a.NodeName == b.NodeName &&
		slices.Equal(a.ZoneHints(), b.ZoneHints()) && slices.Equal(a.NodeHints(), b.NodeHints())
}

// compareText orders by text, as kube-proxy does: 10.0.0.10:80 comes before 10.0.0.2:80 (SNAP-46).
func compareText(a, b netip.AddrPort) int {
	if a == b {
		return 0
	}
	var x, y [64]byte
	return bytes.Compare(a.AppendTo(x[:0]), b.AppendTo(y[:0]))
}
