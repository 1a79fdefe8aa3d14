// Package assume completes a snapshot that was written for a cluster rather than read from one, such
// as the manifests of a Git repository. It assigns stand-ins for what the API server would allocate,
// and adds the endpoints that the cluster would make from workloads.
//
// A stand-in is derived from what it stands for, such as the ClusterIP of a Service, so that two
// states of a repository have the same ones. Their addresses are not in use: 240.0.0.0/4 is reserved
// (RFC 1112), and 100::/64 is for discarded packets (RFC 6666).
package assume

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// StandIns are the stand-ins of one or several snapshots. Snapshots that are compared share them.
// The zero value is ready to use, and nil has none. They are not safe for concurrent use.
type StandIns struct {
	addrs  map[string]netip.Addr // by what they stand for
	ports  map[string]int32
	owners map[netip.Addr]string
	used   map[int32]string // ports of nodes, and of Services, with what uses them
}

// Name returns what an address stands for, such as "ClusterIP of shop/web"; "" for other addresses.
func (s *StandIns) Name(a netip.Addr) string {
	if s == nil {
		return ""
	}
	return s.owners[a]
}

// PortName returns what a port of nodes stands for, such as "shop/web:http"; "" for other ports.
func (s *StandIns) PortName(port int32) string {
	of := s.used[port]
	if s.ports[of] != port {
		return ""
	}
	return of
}

// IsPod reports whether an address stands for that of a pod.
func (s *StandIns) IsPod(a netip.Addr) bool { return strings.HasPrefix(s.Name(a), "pod ") }

// printed matches the names of addresses.
var printed = regexp.MustCompile(`(?:ClusterIP of|LoadBalancer of|pod \d+ of [A-Za-z]+) [a-z0-9-]+/[a-z0-9.-]*[a-z0-9]`)

// Addresses returns a text in which stand-ins of a family replace their names.
func (s *StandIns) Addresses(f ir.Family, text string) string {
	if s == nil {
		return text
	}
	return printed.ReplaceAllStringFunc(text, func(name string) string {
		a, ok := s.addrs[f.String()+" "+name]
		switch {
		case !ok:
			return name
		case f == ir.IPv6:
			return "[" + a.String() + "]"
		}
		return a.String()
	})
}

// WithoutNames returns a text in which an address that is no stand-in replaces all names of
// stand-ins, to check its syntax.
func WithoutNames(text string) string { return printed.ReplaceAllString(text, "192.0.2.1") }

// Mentioned reports whether a text contains the address of a stand-in. It is false without stand-ins.
func (s *StandIns) Mentioned(text string) bool {
	return s != nil && s.Len() > 0 && string(s.names([]byte(text))) != text
}

// blocks are the ranges of the stand-ins for addresses. No client has another address of them.
var blocks = [...]netip.Prefix{netip.MustParsePrefix("244.0.0.0/6"), netip.MustParsePrefix("100::/64")}

// Shown returns prefixes without the parts of blocks, except for the stand-ins of small parts.
func (s *StandIns) Shown(list []netip.Prefix) (out []netip.Prefix) {
	const small = 8 // bits
	if s == nil || s.Len() == 0 {
		return list
	}
	for _, p := range list {
		switch {
		case !slices.ContainsFunc(blocks[:], func(b netip.Prefix) bool { return b.Bits() <= p.Bits() && b.Contains(p.Addr()) }):
			out = append(out, p)
		case p.Addr().BitLen()-p.Bits() <= small:
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				if s.Name(a) != "" {
					out = append(out, netip.PrefixFrom(a, a.BitLen()))
				}
			}
		}
	}
	return out
}

// Names returns all stand-ins, as text, with what they stand for.
func (s *StandIns) Names() map[string]string {
	all := make(map[string]string, s.Len())
	for a, of := range s.owners {
		all[a.String()] = of
	}
	for of, p := range s.ports {
		all[strconv.Itoa(int(p))] = of
	}
	return all
}

// Len returns the number of stand-ins.
func (s *StandIns) Len() int { return len(s.addrs) + len(s.ports) }

// hash returns 64 bits that depend on a name and the number of a try.
func hash(of string, try int) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", of, try))
	return binary.BigEndian.Uint64(sum[:])
}

// podsTogether is the number of pods of a workload whose addresses follow each other. Their last
// bytes, from 100 on, have the same order as texts, so that output lists the pods in order.
const podsTogether = 100

// addr returns the stand-in for an address.
func (s *StandIns) addr(f ir.Family, of string) netip.Addr { return s.podAddr(f, of, "", 0) }

// podAddr returns the stand-in for the address of pod i of a workload.
func (s *StandIns) podAddr(f ir.Family, of, workload string, i int) netip.Addr {
	key := f.String() + " " + of
	if a, ok := s.addrs[key]; ok {
		return a
	}
	block, last := key, byte(0)
	if workload != "" {
		block, last = fmt.Sprintf("%s %s %d", f, workload, i/podsTogether), byte(100+i%podsTogether)
	}
	for try := 0; ; try++ {
		h := hash(block, try)
		if last != 0 {
			h = h&^0xff | uint64(last)
		}
		var a netip.Addr
		if f == ir.IPv4 {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], 0xf4000000|uint32(h)&0x03ffffff)
			a = netip.AddrFrom4(b)
		} else {
			b := [16]byte{0: 1}
			binary.BigEndian.PutUint64(b[8:], h)
			a = netip.AddrFrom16(b)
		}
		if _, used := s.owners[a]; used {
			continue
		}
		if s.addrs == nil {
			s.addrs, s.owners = map[string]netip.Addr{}, map[netip.Addr]string{}
		}
		s.addrs[key], s.owners[a] = a, of
		return a
	}
}

// The ports of stand-ins. A cluster's node ports are usually from 30000 to 32767.
const firstPort, lastPort = 33000, 65535

// portOf returns the stand-in for a node port or health check port; 0 if there is none left.
func (s *StandIns) portOf(of string) int32 {
	if p, ok := s.ports[of]; ok {
		return p
	}
	const n = lastPort - firstPort + 1
	start := hash(of, 0) % n
	for i := range uint64(n) {
		p := int32(firstPort + (start+i)%n)
		if _, used := s.used[p]; used {
			continue
		}
		if s.ports == nil {
			s.ports = map[string]int32{}
		}
		s.ports[of] = p
		s.use(p, of)
		return p
	}
	return 0
}

// use records what uses a port.
func (s *StandIns) use(port int32, of string) {
	if s.used == nil {
		s.used = map[int32]string{}
	}
	s.used[port] = of
}

// observe records the ports of Services.
func (s *StandIns) observe(services []*snapshot.Service) {
	for _, svc := range services {
		for _, p := range svc.Ports {
			for _, used := range []int32{p.Port, p.NodePort} {
				if _, standIn := s.ports[s.used[used]]; used >= firstPort && !standIn {
					s.use(used, svc.Name.String())
				}
			}
		}
	}
}

// Complete adds to a snapshot what a cluster would. written are the fields of its objects that the
// Snapshot does not keep. node is the node that is reviewed. Complete returns the Services without
// a ClusterIP of their own, with their object names in diagnostics.
func (s *StandIns) Complete(snap *snapshot.Snapshot, written map[string]manifest.Written, node string) map[ir.Name]string {
	services := snap.Services()
	s.observe(services)
	pending := map[ir.Name]string{}
	first := primary(snap)
	c := cluster{StandIns: s, snap: snap, workloads: NewWorkloads(snap.Workloads()), node: node}
	for _, svc := range services {
		if svc.Type == string(corev1.ServiceTypeExternalName) || svc.ProxyName {
			continue
		}
		w := written[svc.Object]
		if svc.ClusterIP == "" {
			pending[svc.Name] = svc.Object
		}
		full := s.allocate(svc, &w, first)
		snap.SetService(full)
		if len(w.Selector) > 0 && full.ClusterIP != corev1.ClusterIPNone && len(snap.Slices(svc.Name)) == 0 {
			c.assume(full, &w)
		}
	}
	return pending
}

// allocate returns a Service with what the API server and its controllers would add. A Service with
// a ClusterIP has what they gave it: nothing is missing.
func (s *StandIns) allocate(svc *snapshot.Service, w *manifest.Written, first ir.Family) *snapshot.Service {
	full := *svc
	if svc.ClusterIP != "" {
		return &full
	}
	full.IPFamilies, full.ClusterIPs = familiesOf(svc, w, first), nil
	for _, f := range full.IPFamilies {
		full.ClusterIPs = append(full.ClusterIPs, s.addr(familyOf(f), "ClusterIP of "+svc.Name.String()).String())
	}
	full.ClusterIP = full.ClusterIPs[0]
	s.fill(&full, w, len(full.LoadBalancer) == 0)
	return &full
}

// familiesOf returns the families of a Service without ClusterIP.
func familiesOf(svc *snapshot.Service, w *manifest.Written, first ir.Family) []string {
	families := svc.IPFamilies
	if len(families) == 0 {
		families = []string{first.String()}
	}
	if w.DualStack() && len(families) == 1 {
		families = append(slices.Clone(families), otherFamily(families[0]))
	}
	return families
}

// fill adds the ports that the type of a Service needs, and if balance is set the addresses of its load
// balancer.
func (s *StandIns) fill(full *snapshot.Service, w *manifest.Written, balance bool) {
	name := full.Name.String()
	if needsNodePorts(full) && !(balanced(full) && w.NoNodePorts) {
		full.Ports = slices.Clone(full.Ports)
		for i := range full.Ports {
			if p := &full.Ports[i]; p.NodePort == 0 {
				p.NodePort = s.portOf("of " + portName(full, i))
			}
		}
	}
	if needsHealthPort(full) && full.HealthPort == 0 {
		full.HealthPort = s.portOf("of " + name)
	}
	if balanced(full) && balance {
		for _, f := range full.IPFamilies {
			full.LoadBalancer = append(full.LoadBalancer, snapshot.Ingress{IP: s.addr(familyOf(f), "LoadBalancer of "+name).String()})
		}
	}
}

// portName returns a Service and its port, by name or else by number.
func portName(svc *snapshot.Service, i int) string {
	p := svc.Ports[i]
	if p.Name != "" {
		return svc.Name.String() + ":" + p.Name
	}
	return fmt.Sprintf("%s:%d", svc.Name, p.Port)
}

func familyOf(text string) ir.Family {
	if text == ir.IPv6.String() {
		return ir.IPv6
	}
	return ir.IPv4
}

func otherFamily(text string) string {
	if text == ir.IPv6.String() {
		return ir.IPv4.String()
	}
	return ir.IPv6.String()
}

// primary returns the family of a Service without ipFamilies in this cluster.
func primary(snap *snapshot.Snapshot) ir.Family {
	for _, c := range snap.ServiceCIDRs() {
		for _, p := range c.CIDRs {
			return ir.FamilyOf(p.Addr())
		}
	}
	for _, n := range snap.Nodes() {
		for _, a := range n.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				return ir.FamilyOf(addr)
			}
		}
	}
	return ir.IPv4
}

// cluster makes EndpointSlices as the EndpointSlice controller of a cluster does.
type cluster struct {
	*StandIns
	snap      *snapshot.Snapshot
	workloads Workloads
	node      string // of pods if there are no Nodes
}

// assume adds an EndpointSlice for each family of a Service and workload that it selects.
func (c *cluster) assume(svc *snapshot.Service, w *manifest.Written) {
	for _, load := range c.workloads.Select(svc.Name.Namespace, w.Selector) {
		for _, slice := range c.slicesOf(svc, PortsOf(svc, w, load), load, span{0, c.number(load)}, w.Selector) {
			c.snap.SetSlice(slice)
		}
	}
}

// slicesOf returns an EndpointSlice for each family of a Service, with some pods of a workload, or
// the one of them that the selector names.
func (c *cluster) slicesOf(svc *snapshot.Service, ports []snapshot.EndpointPort, load *snapshot.Workload, some span, selector map[string]string) (out []*snapshot.EndpointSlice) {
	for _, family := range svc.IPFamilies {
		pods := c.pods(load, familyOf(family), some)
		if name, one := selector[podName]; one {
			pods = slices.DeleteFunc(pods, func(e snapshot.Endpoint) bool { return e.Pod != name })
		}
		out = append(out, &snapshot.EndpointSlice{
			Name:        ir.Name{Namespace: svc.Name.Namespace, Name: strings.ToLower(fmt.Sprintf("%s-%s-%s-%s", svc.Name.Name, load.Kind, load.Name.Name, family))},
			Object:      snapshot.AssumedFrom + load.Object,
			Service:     svc.Name,
			AddressType: family,
			Ports:       ports,
			Endpoints:   pods,
		})
	}
	return out
}

// Nodes adds addresses of the families of the Services to Nodes without any. Without Nodes, it adds
// the node that is reviewed, so that clients reach its node ports, and returns true.
func (s *StandIns) Nodes(snap *snapshot.Snapshot, node string) (added bool) {
	nodes := snap.Nodes()
	if added = len(nodes) == 0; added {
		nodes = []*snapshot.Node{{Name: node}}
	}
	for _, n := range nodes {
		if len(n.Addresses) > 0 {
			continue
		}
		full := *n
		for _, f := range ir.Families() {
			if slices.ContainsFunc(snap.Services(), func(svc *snapshot.Service) bool { return slices.Contains(svc.IPFamilies, f.String()) }) {
				full.Addresses = append(full.Addresses, snapshot.NodeAddress{Type: string(corev1.NodeInternalIP), Address: s.addr(f, "Node "+n.Name).String()})
			}
		}
		snap.SetNode(&full)
	}
	return added
}

// Pods returns the pods of a workload. node is the node that is reviewed.
func (s *StandIns) Pods(snap *snapshot.Snapshot, load *snapshot.Workload, family ir.Family, node string) []snapshot.Endpoint {
	c := cluster{StandIns: s, snap: snap, node: node}
	return c.pods(load, family, span{0, c.number(load)})
}

// span is a range of the pods of a workload.
type span struct{ from, to int }

// number returns the number of pods of a workload.
func (c *cluster) number(load *snapshot.Workload) int {
	if load.Pods == snapshot.PerNode {
		return max(1, len(c.snap.Nodes()))
	}
	return load.Pods
}

// pods returns some pods of a workload, each assumed to be ready. They are spread over the Nodes.
// Without Nodes, they are on the node that is reviewed.
func (c *cluster) pods(load *snapshot.Workload, family ir.Family, some span) (out []snapshot.Endpoint) {
	nodes := c.snap.Nodes()
	for i := some.from; i < some.to; i++ {
		name := fmt.Sprintf("%s-%d", load.Name.Name, i)
		if load.Kind == "Pod" {
			name = load.Name.Name
		}
		e := snapshot.Endpoint{Pod: name, NodeName: cmp.Or(load.NodeName, c.node), Ready: true, Serving: true}
		if load.NodeName == "" && len(nodes) > 0 {
			e.NodeName = nodes[i%len(nodes)].Name
		}
		e.Addr = c.addrOf(load, family, i, c.snap.Node(e.NodeName))
		e.Address = e.Addr.String()
		out = append(out, e)
	}
	return out
}

// addrOf returns the address of a pod: its own, that of its node, or a stand-in.
func (c *cluster) addrOf(load *snapshot.Workload, family ir.Family, i int, node *snapshot.Node) netip.Addr {
	texts := load.IPs
	if load.HostNetwork && node != nil {
		texts = nil
		for _, a := range node.Addresses {
			if a.Type == string(corev1.NodeInternalIP) {
				texts = append(texts, a.Address)
			}
		}
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && ir.FamilyOf(a) == family {
			return a
		}
	}
	return c.podAddr(family, fmt.Sprintf("pod %d of %s", i, load.Object), load.Object, i)
}

// PortsOf returns the ports of a Service on the pods of a workload. A named target port that no
// container has is left out, as the EndpointSlice controller does.
func PortsOf(svc *snapshot.Service, w *manifest.Written, load *snapshot.Workload) (out []snapshot.EndpointPort) {
	for i, p := range svc.Ports {
		target := intstr.FromInt32(p.Port)
		if i < len(w.TargetPorts) {
			target = w.TargetPorts[i]
		}
		if port, ok := targetPort(load, target, p.Protocol); ok {
			out = append(out, snapshot.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: port, HasName: true, HasPort: true})
		}
	}
	return out
}

// targetPort returns the number of a target port on the pods of a workload, and whether they have it.
func targetPort(load *snapshot.Workload, target intstr.IntOrString, protocol string) (int32, bool) {
	if target.Type == intstr.Int {
		return target.IntVal, true
	}
	for _, p := range load.Ports {
		if p.Name == target.StrVal && p.ContainerPort > 0 && p.ContainerPort <= 65535 && cmp.Or(p.Protocol, corev1.ProtocolTCP) == cmp.Or(corev1.Protocol(protocol), corev1.ProtocolTCP) {
			return p.ContainerPort, true
		}
	}
	return 0, false
}
