// Package assume completes a snapshot that was written for a cluster rather than read from one, such
// as the manifests of a Git repository. It assigns stand-ins for what the API server would allocate,
// and adds the endpoints that the cluster would make from workloads.
//
// A stand-in is derived from what it stands for, such as the ClusterIP of a Service, so that two
// states of a repository have the same ones. Their addresses are not in use: 240.0.0.0/4 is reserved
// (RFC 1112), and 100::/64 is for discarded packets (RFC 6666).
package assume

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// StandIns are the stand-ins of one or several snapshots. Snapshots that are compared share them.
// The zero value is ready to use, and nil has none. They are not safe for concurrent use.
type StandIns struct {
	// Balance gives an address to load balancers of a cluster that have none yet.
	Balance bool

	addrs  map[string]netip.Addr // by what they stand for
	ports  map[string]int32
	owners map[netip.Addr]string
	used   map[int32]string // ports of nodes, and of Services, with what uses them
	// last are the Services of the snapshot that was completed last, of which those of the next one are
	// updates.
	last map[ir.Name]version
	// families are the families of the Services.
	families map[string]bool
}

// version is a version of a Service, with its ports as the input sets them.
type version struct {
	*snapshot.Service
	written manifest.Written
	ports   []snapshot.ServicePort
}

// Name returns what an address stands for, such as "ClusterIP of shop/web"; "" for other addresses.
func (s *StandIns) Name(a netip.Addr) string {
	if s == nil {
		return ""
	}
	return s.owners[a]
}

// PortName returns what a port of nodes stands for, such as "of shop/web:80"; "" for other ports.
func (s *StandIns) PortName(port int32) string {
	if s == nil || s.ports[s.used[port]] != port {
		return ""
	}
	return withoutProtocol(s.used[port])
}

// withoutProtocol returns the name of a port without the protocol, which portName adds.
func withoutProtocol(of string) string {
	name, _, _ := strings.Cut(of, " (")
	return name
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

// blocks contain the stand-ins for addresses. Clients have no other addresses in them.
var blocks = [...]netip.Prefix{netip.MustParsePrefix("244.0.0.0/6"), netip.MustParsePrefix("100::/64")}

// Shown returns the prefixes to show: those outside blocks, and instead of a small one in blocks its
// stand-ins.
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
		all[strconv.Itoa(int(p))] = withoutProtocol(of)
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
		ir.SetIn(&s.addrs, key, a)
		ir.SetIn(&s.owners, a, of)
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
		ir.SetIn(&s.ports, of, p)
		ir.SetIn(&s.used, p, of)
		return p
	}
	return 0
}

// observe records the ports of Services.
func (s *StandIns) observe(services []*snapshot.Service) {
	for _, svc := range services {
		for _, p := range svc.Ports {
			for _, used := range []int32{p.Port, p.NodePort} {
				if _, standIn := s.ports[s.used[used]]; used >= firstPort && !standIn {
					ir.SetIn(&s.used, used, svc.Name.String())
				}
			}
		}
	}
}

// Complete adds to a snapshot what a cluster would. written are the fields of its objects that the
// Snapshot does not keep. node is the node that is reviewed, and pods are the known ranges of pods.
// Complete returns the Services without a ClusterIP of their own, with their object names in
// diagnostics. It removes the objects that the API server rejects, and returns findings about them.
func (s *StandIns) Complete(snap *snapshot.Snapshot, written map[string]manifest.Written, node string, pods []netip.Prefix) (pending map[ir.Name]string, found diag.List) {
	s.observe(snap.Services())
	c := s.cluster(snap, written, node, pods)
	found = c.admit()
	for _, load := range snap.Workloads() {
		if c.number(load) == 0 && load.Pods != 0 {
			waits := *load
			waits.Pending = c.pending(load)
			snap.SetWorkload(&waits)
		}
	}
	c.workloads = NewWorkloads(snap.Workloads())
	pending = map[ir.Name]string{}
	last := s.last
	s.last = map[ir.Name]version{}
	for _, svc := range snap.Services() {
		w := written[svc.Object]
		if svc.Type == externalName || svc.ProxyName {
			s.last[svc.Name] = version{svc, w, svc.Ports}
			continue
		}
		if svc.ClusterIP == "" {
			pending[svc.Name] = svc.Object
		}
		full := c.allocate(svc, &w, last[svc.Name])
		if _, known := last[svc.Name]; known {
			full.Created = since(full)
		} else if last != nil {
			full.Created = time.Time{} // younger than what the last snapshot had, whatever it says
		}
		s.last[svc.Name] = version{full, w, svc.Ports}
		snap.SetService(full)
		for _, f := range full.IPFamilies {
			ir.SetIn(&s.families, f, true)
		}
		if len(w.Selector) > 0 && len(snap.Slices(svc.Name)) == 0 {
			c.assume(full, &w)
		}
	}
	return pending, found
}

// Believe keeps metadata that only the API server sets if the snapshot is of a cluster: all Services have
// them, an EndpointSlice exists, and the last snapshot was of one. Otherwise, the author of a manifest may
// have copied or forged them.
func (s *StandIns) Believe(snap *snapshot.Snapshot, written map[string]manifest.Written) {
	_, sliced, _ := snap.Count()
	cluster := sliced > 0
	for _, svc := range snap.Services() {
		cluster = cluster && written[svc.Object].Live
	}
	for _, was := range s.last {
		cluster = cluster && was.written.Live
	}
	for object, w := range written {
		w.Live = w.Live && cluster
		written[object] = w
	}
}

// Behind makes a stand-in for a pod the only endpoint of a Service, whose endpoints are unknown.
func (s *StandIns) Behind(snap *snapshot.Snapshot, svc *snapshot.Service, w *manifest.Written, node string) {
	(&applied{cluster: cluster{snap: snap}}).replace(svc.Name, nil)
	load := &snapshot.Workload{Kind: "Service", Name: svc.Name, Object: svc.Object, Pods: 1, NodeName: node}
	for i, target := range w.TargetPorts {
		if target.Type == intstr.String && i < len(svc.Ports) {
			p := &svc.Ports[i]
			load.Ports = append(load.Ports, corev1.ContainerPort{Name: target.StrVal, ContainerPort: p.Port, Protocol: corev1.Protocol(p.Protocol)})
		}
	}
	c := cluster{StandIns: s, snap: snap}
	for _, slice := range c.slicesOf(svc, PortsOf(svc, w, load), load, []int{0}, nil) {
		snap.SetSlice(slice)
	}
}

// since returns when a Service was created: early, if that is not known of one that exists.
func since(svc *snapshot.Service) time.Time {
	if svc.Created.IsZero() {
		return time.Unix(1, 0)
	}
	return svc.Created
}

const externalName = string(corev1.ServiceTypeExternalName)

// allocate returns a Service with what the API server and the controller of its load balancer would add
// to an update of the last version. Each part that is missing has its stand-in, whatever else the
// manifest sets.
func (c *cluster) allocate(svc *snapshot.Service, w *manifest.Written, last version) *snapshot.Service {
	full := *svc
	if w.Live && !incomplete(svc, w) {
		if c.Balance && len(svc.LoadBalancer) == 0 {
			c.fill(&full, w, nil)
		}
		return &full
	}
	full.Created = time.Time{}
	if svc.ClusterIP == "" || !balanced(svc) || !slices.ContainsFunc(svc.LoadBalancer, func(in snapshot.Ingress) bool { return served(in) && sameFamily(in.IP, svc.ClusterIP) }) {
		full.LoadBalancer = nil // the API server ignores the status of a manifest
	}
	x := &change{&full, last.Service, w, &last.written}
	if x.old != nil && len(x.immutable()) > 0 {
		x.old = nil // another object of this name
	}
	if x.old != nil {
		full = *x.keep(func(p *snapshot.ServicePort) bool { return !last.written.Live && slices.Contains(last.ports, *p) })
	}
	full.IPFamilies = c.familiesOf(&full, w)
	if full.ClusterIP == corev1.ClusterIPNone {
		return &full
	}
	full.ClusterIPs = slices.Clone(full.ClusterIPs)
	for _, f := range full.IPFamilies[min(len(full.ClusterIPs), len(full.IPFamilies)):] {
		full.ClusterIPs = append(full.ClusterIPs, c.addr(ir.FamilyNamed(f), "ClusterIP of "+svc.Name.String()).String())
	}
	full.ClusterIP = full.ClusterIPs[0]
	c.fill(&full, w, x.old)
	return &full
}

// incomplete reports whether a Service lacks an allocation that its type needs, so that it is no object of
// an API server, whatever its metadata contain.
func incomplete(svc *snapshot.Service, w *manifest.Written) bool {
	if svc.ClusterIP == corev1.ClusterIPNone {
		return needsNodePorts(svc)
	}
	dual := len(svc.IPFamilies) > 1 || w.FamilyPolicy == string(corev1.IPFamilyPolicyRequireDualStack)
	return svc.ClusterIP == "" || dual && len(svc.ClusterIPs) < 2 || needsHealthPort(svc) && svc.HealthPort == 0 ||
		allocates(svc, w) && slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.NodePort == 0 })
}

// served reports whether a proxy serves an address of a load balancer.
func served(in snapshot.Ingress) bool {
	return in.IP != "" && in.IPMode != string(corev1.LoadBalancerIPModeProxy)
}

// sameFamily reports whether two addresses have one family.
func sameFamily(a, b string) bool { return strings.Contains(a, ":") == strings.Contains(b, ":") }

// familiesOf returns the families of a Service.
func (c *cluster) familiesOf(svc *snapshot.Service, w *manifest.Written) []string {
	families := svc.IPFamilies
	if len(families) == 0 {
		families = []string{ir.IPv4.String()}
		if len(c.families) > 0 {
			families = c.families[:1]
		}
	}
	return c.dualStack(families, w)
}

// dualStack returns the families of a Service, with the second one if the Service requests it and the
// cluster has it, as far as known.
func (c *cluster) dualStack(families []string, w *manifest.Written) []string {
	if len(families) != 1 || !w.DualStack() {
		return families
	}
	other := otherFamily(families[0])
	if len(c.families) > 0 && !slices.Contains(c.families, other) && w.FamilyPolicy != string(corev1.IPFamilyPolicyRequireDualStack) {
		return families
	}
	return []string{families[0], other}
}

// fill adds the ports that the type of a Service needs, and the addresses of its load balancer in families
// that its previous version does not have.
func (s *StandIns) fill(full *snapshot.Service, w *manifest.Written, old *snapshot.Service) {
	name := full.Name.String()
	if allocates(full, w) {
		full.Ports = slices.Clone(full.Ports)
		for i := range full.Ports {
			p := &full.Ports[i]
			same := slices.IndexFunc(full.Ports, func(o snapshot.ServicePort) bool {
				return old == nil && o.Port == p.Port && o.NodePort != 0 && s.PortName(o.NodePort) == ""
			})
			switch {
			case p.NodePort != 0:
			case same >= 0: // of another protocol
				p.NodePort = full.Ports[same].NodePort
			default:
				p.NodePort = s.portOf(portName(full, i))
			}
		}
	}
	if needsHealthPort(full) && full.HealthPort == 0 {
		full.HealthPort = s.portOf("of " + name)
	}
	had := old != nil && balanced(old)
	if !balanced(full) || !had && len(full.LoadBalancer) > 0 {
		return
	}
	full.LoadBalancer = slices.Clone(full.LoadBalancer)
	for _, f := range full.IPFamilies {
		if !had || !slices.Contains(old.IPFamilies, f) {
			full.LoadBalancer = append(full.LoadBalancer, snapshot.Ingress{IP: s.addr(ir.FamilyNamed(f), "LoadBalancer of "+name).String()})
		}
	}
}

// portName returns what the node port of a Service's port stands for.
func portName(svc *snapshot.Service, i int) string {
	p := svc.Ports[i]
	name := fmt.Sprintf("of %s:%d", svc.Name, p.Port)
	if p.Protocol != "" && p.Protocol != string(corev1.ProtocolTCP) {
		name += " (" + p.Protocol + ")"
	}
	return name
}

func otherFamily(text string) string { return ir.FamilyNamed(text).Other().String() }

// cluster makes EndpointSlices as the EndpointSlice controller of a cluster does.
type cluster struct {
	*StandIns
	snap      *snapshot.Snapshot
	written   map[string]manifest.Written
	workloads Workloads
	node      string // of pods if there are no Nodes
	// allocates are the families of the ServiceCIDRs, nil if unknown. families are those that Services
	// can have, the default first; nil if unknown.
	allocates, families []string
	// nodes are the Nodes, once readNodes has read them. tainted reports that one has a taint, and
	// labelled are the keys of their labels.
	nodes    []*snapshot.Node
	tainted  bool
	labelled map[string]bool
}

// cluster returns the cluster of a snapshot. pods are the ranges of the configuration and the Nodes.
func (s *StandIns) cluster(snap *snapshot.Snapshot, written map[string]manifest.Written, node string, pods []netip.Prefix) cluster {
	c := cluster{StandIns: s, snap: snap, written: written, node: node}
	add := func(list *[]string, a netip.Addr) {
		if family := ir.FamilyOf(a).String(); a.IsValid() && s.Name(a) == "" && !slices.Contains(*list, family) {
			*list = append(*list, family)
		}
	}
	for _, cidr := range snap.ServiceCIDRs() {
		for _, p := range cidr.CIDRs {
			add(&c.allocates, p.Addr())
		}
	}
	if c.families = c.allocates; c.families != nil {
		return c
	}
	texts := func(all []string) {
		for _, text := range all {
			a, _ := netip.ParseAddr(text)
			add(&c.families, a)
		}
	}
	services := snap.Services()
	if first := snap.Service(apiServer); first != nil {
		texts(first.ClusterIPs)
	}
	for _, n := range snap.Nodes() {
		for _, a := range n.Addresses {
			if a.Type == string(corev1.NodeInternalIP) {
				texts([]string{a.Address})
			}
		}
	}
	for _, p := range pods {
		add(&c.families, p.Addr())
	}
	for _, svc := range services {
		texts(svc.ClusterIPs)
	}
	for _, svc := range services {
		for _, f := range svc.IPFamilies {
			// A headless Service may have a family that the cluster does not allocate.
			if len(c.families) > 0 && svc.ClusterIP != corev1.ClusterIPNone && !slices.Contains(c.families, f) && s.Name(addrIn(svc, f)) == "" {
				c.families = append(c.families, f)
			}
		}
	}
	return c
}

// apiServer is the name of the Service of the API server.
var apiServer = ir.Name{Namespace: corev1.NamespaceDefault, Name: "kubernetes"}

// addrIn returns the ClusterIP of a Service in a family.
func addrIn(svc *snapshot.Service, family string) netip.Addr {
	for _, text := range svc.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && ir.FamilyOf(a).String() == family {
			return a
		}
	}
	return netip.Addr{}
}

// Node is the name of the first assumed Node if nothing names the node that is reviewed.
const Node = "assumed"

// OtherNode returns the name of the second of two assumed Nodes. Only pods of DaemonSets run there, so
// that it shows what traffic policies do on Nodes without pods of a Service.
func OtherNode(node string) string { return node + "-other" }

// Nodes adds addresses to Nodes without any, of the families that Services of any snapshot have.
// Without Nodes, it adds the node that is reviewed, so that clients reach its node ports, and another
// one, and returns true. Call it again after another snapshot is completed.
func (s *StandIns) Nodes(snap *snapshot.Snapshot, node string) (added bool) {
	nodes := snap.Nodes()
	if added = len(nodes) == 0; added {
		nodes = []*snapshot.Node{{Name: node}, {Name: OtherNode(node)}}
	}
	for _, n := range nodes {
		if slices.ContainsFunc(n.Addresses, func(a snapshot.NodeAddress) bool { addr, _ := netip.ParseAddr(a.Address); return s.Name(addr) == "" }) {
			continue
		}
		full := *n
		full.Addresses = nil
		for _, f := range ir.Families() {
			if s.families[f.String()] || len(s.families) == 0 && f == ir.IPv4 {
				full.Addresses = append(full.Addresses, snapshot.NodeAddress{Type: string(corev1.NodeInternalIP), Address: s.addr(f, objectOf(n)).String()})
			}
		}
		snap.SetNode(&full)
	}
	return added
}
