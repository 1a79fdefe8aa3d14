package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Tracer is the context of a trace besides the rules: senders, interfaces, and the owners of
// addresses.
type Tracer struct {
	Snapshot *snapshot.Snapshot
	Node     string      // name of this node
	Programs ir.Programs // Programs of this node
	// Interfaces are the known interfaces of this node.
	Interfaces []compiler.Interface
	// AllAddrsKnown reports whether the Programs contain all addresses of this node.
	AllAddrsKnown bool
	ignored       review.Ignored // objects that the Programs do not contain
	// elsewhere returns the Programs of another node, or nil if they are unknown.
	elsewhere func(node string) ir.Programs

	standIns *assume.StandIns          // of the snapshot; nil for none
	unknowns func() map[ir.Name]string // Services with unknown endpoints, and the reasons; nil for none

	evaluators map[*ir.Program]*sim.Evaluator // created on first use
}

// evaluator returns the evaluator of a Program.
func (s *Tracer) evaluator(p *ir.Program) *sim.Evaluator {
	e := s.evaluators[p]
	if e == nil {
		e = sim.NewEvaluator(p)
		ir.SetIn(&s.evaluators, p, e)
	}
	return e
}

// outside is the default name of the interface on which a packet arrives.
const outside = "eth0"

// NewTracer returns the Tracer of an input. programs are the Programs in force on its node.
func NewTracer(j *review.Input, programs ir.Programs) *Tracer {
	s := &Tracer{Snapshot: j.Snapshot, Node: j.Facts.NodeName, Programs: programs,
		Interfaces: j.Facts.Interfaces, AllAddrsKnown: j.Facts.AllAddrsKnown(), ignored: review.IgnoredOf(j), standIns: j.StandIns, unknowns: sync.OnceValue(j.Unknown)}
	if s.Interfaces == nil {
		s.Interfaces = j.Facts.Named
	}
	if j.OnlyHere {
		return s
	}
	known := map[string]ir.Programs{}
	s.elsewhere = func(node string) ir.Programs {
		programs, ok := known[node]
		if !ok {
			programs, _ = compiler.Compile(j.Config, j.Snapshot, j.Others(node))
			known[node] = programs
		}
		return programs
	}
	return s
}

// origin is the sender of a packet.
type origin struct {
	text string // "Pod ns/web runs on"; "" if there is nothing to print
	node string // node whose rules the packet meets first
}

// Packet returns the packet for the --from and --to of a trace, and the node whose rules it meets
// first.
func (s *Tracer) Packet(from, to string) (pkt sim.Packet, node string, err error) {
	pkt, by, err := s.packet(from, to)
	return pkt, by.node, err
}

// packet parses the --from and --to of a trace and returns the packet as the rules of the sender's
// node see it.
func (s *Tracer) packet(from, to string) (pkt sim.Packet, by origin, err error) {
	by.node = s.Node
	if to, err = s.resolve(to, from); err != nil {
		return pkt, by, err
	}
	// Only the destination determines the family, which the source address of a pod or node depends
	// on.
	any4, any6 := "0.0.0.0", "::"
	if pkt, err = sim.ParsePacket(any4, to); err != nil {
		if pkt, err = sim.ParsePacket(any6, to); err != nil {
			return pkt, by, cmp.Or(checkPort(to), fmt.Errorf("--to: %w", err))
		}
	}
	p := programFor(s.Programs, pkt.Dst)
	from = s.standIns.Addresses(p.Family, from)
	if pod, ok := s.assumed(from); ok {
		pkt.Src, pkt.In, by, err = s.podAt(p, pod, pkt.Dst)
	} else if pod, ok := strings.CutPrefix(from, "pod:"); ok {
		pkt.Src, pkt.In, by, err = s.pod(p, pod, pkt.Dst)
	} else if from == "node" {
		pkt.Src, err = s.nodeSource(p, pkt.Dst)
	} else if name, ok := strings.CutPrefix(from, "node:"); ok {
		pkt.Src, by, err = s.otherNode(name, pkt.Dst)
	} else {
		pkt.Src, pkt.SrcPort, pkt.In, err = s.address(&p.Node, from)
	}
	pkt.Within = s.within(p, pkt.Src)
	if err == nil && !p.Family.Has(pkt.Src) {
		err = fmt.Errorf("source %s and destination %s are of different families", pkt.Src, pkt.Dst)
	}
	if err != nil {
		return pkt, by, fmt.Errorf("--from: %w", err)
	}
	return pkt, by, nil
}

func programFor(programs ir.Programs, addr netip.Addr) *ir.Program {
	return programs.Of(ir.FamilyOf(addr))
}

// address parses IP[:PORT][@INTERFACE]. Brackets are optional for an IPv6 address without a port.
func (s *Tracer) address(node *ir.Node, from string) (src netip.Addr, port uint16, in string, err error) {
	text, in, named := strings.Cut(from, "@")
	client, err := netip.ParseAddrPort(text)
	if src, port = client.Addr(), client.Port(); err != nil {
		src, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	}
	if err != nil || named && in == "" {
		hint := ""
		if s.Snapshot.Node(from) != nil {
			hint = " (did you mean node:" + from + "?)"
		}
		return src, 0, "", fmt.Errorf("must be pod:NAMESPACE/NAME, node, node:NAME or IP[:PORT][@INTERFACE], got %q%s", from, hint)
	}
	if in == "" && !node.HasAddr(src) {
		in = s.arrivesOn(node, src)
	}
	return src, port, in, nil
}

// nodeSource returns the source address of packets that the node sends, as the kernel selects it:
// dst if the node owns it, as it owns the addresses on kube-ipvs0 in mode ipvs; else the address of
// the interface whose network contains dst; else the primary address.
func (s *Tracer) nodeSource(p *ir.Program, dst netip.Addr) (netip.Addr, error) {
	node := &p.Node
	if dst.IsLoopback() {
		return p.Family.Localhost(), nil
	}
	if node.HasAddr(dst) || node.Mode.Capabilities().Has(ir.CarriesVIPs) && carries(p, dst) {
		return dst, nil
	}
	if _, own, ok := s.network(dst); ok {
		return own, nil
	}
	if node.IP.IsValid() {
		return node.IP, nil
	}
	return netip.Addr{}, fmt.Errorf("the snapshot has no address of node %q in the family of %s: use IP", node.Name, dst)
}

// otherNode returns the address from which another Node sends.
func (s *Tracer) otherNode(name string, dst netip.Addr) (netip.Addr, origin, error) {
	by := origin{"the packet comes from", name}
	if name == s.Node {
		src, err := s.nodeSource(programFor(s.Programs, dst), dst)
		return src, origin{node: name}, err
	}
	if s.Snapshot.Node(name) == nil {
		return netip.Addr{}, by, review.UnknownNode("node:NAME", name, fmt.Sprintf("got %q", name), s.Snapshot)
	}
	p, err := s.rules(name, dst)
	if err != nil {
		return netip.Addr{}, by, err
	}
	there := Tracer{Snapshot: s.Snapshot, Node: name, Programs: ir.NewPrograms(p)}
	src, err := there.nodeSource(p, dst)
	return src, by, err
}

// carries reports whether a frontend has the address.
func carries(p *ir.Program, addr netip.Addr) bool {
	return slices.ContainsFunc(p.Services, func(s ir.Service) bool {
		return slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Match.Addr == addr })
	})
}

// network returns the interface of this node whose network contains an address, and the node's own
// address in that network.
func (s *Tracer) network(addr netip.Addr) (name string, own netip.Addr, ok bool) {
	best := -1
	for _, i := range s.Interfaces {
		for _, p := range i.Addrs {
			if p.Contains(addr) && p.Bits() > best && i.Name != ir.IPVSDevice {
				name, own, best = i.Name, p.Addr(), p.Bits()
			}
		}
	}
	return name, own, best >= 0
}

// arrivesOn returns the interface on which packets from an address arrive: the interface of its
// network, else that of the node's primary address.
func (s *Tracer) arrivesOn(node *ir.Node, src netip.Addr) string {
	if name, _, ok := s.network(src); ok {
		return name
	}
	for _, i := range s.Interfaces {
		if slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == node.IP }) {
			return i.Name
		}
	}
	return outside
}

// podOn is a pod on a node; "" if the node is unknown.
type podOn struct {
	name string // "shop/web-0"
	addr netip.Addr
	node string
}

// pod returns the address of a pod from the EndpointSlices that name it, and the interface on which
// its packets arrive at its node.
func (s *Tracer) pod(p *ir.Program, pod string, dst netip.Addr) (src netip.Addr, in string, by origin, err error) {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok || namespace == "" || name == "" {
		return src, "", by, fmt.Errorf("must be pod:NAMESPACE/NAME, got %q%s", "pod:"+pod, s.nearPods(pod, p.Family))
	}
	src, on, ok := s.Snapshot.Pod(ir.Name{Namespace: namespace, Name: name}, p.Family)
	if !ok {
		return src, "", by, fmt.Errorf("no EndpointSlice or Pod of the snapshot has an %s address of Pod %s/%s: use IP@INTERFACE%s", p.Family, namespace, name, s.nearPods(pod, p.Family))
	}
	return s.podAt(p, podOn{pod, src, on}, dst)
}

// nearPods returns a hint with the pods of a family whose names are nearest to a text: those that
// contain it, or else those that differ least. It returns "" if there are no pods.
func (s *Tracer) nearPods(text string, family ir.Family) string {
	all := s.Snapshot.Pods(family)
	near := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !strings.Contains(name, text) })
	if len(near) == 0 {
		near = all
	}
	if len(near) == 0 {
		return ""
	}
	const shown = 5
	return fmt.Sprintf(" (pods: %s)", review.FirstOf(diag.NearestFirst(text, near), shown))
}

// assumed returns the pod that a stand-in stands for.
func (s *Tracer) assumed(from string) (podOn, bool) {
	src, err := netip.ParseAddr(strings.Trim(from, "[]"))
	if err != nil || !s.standIns.IsPod(src) {
		return podOn{}, false
	}
	on, ok := s.Snapshot.EndpointNode(src)
	return podOn{s.standIns.Name(src), src, on}, ok
}

// within returns an address of the pod range of an assumed pod, as detection sees it: of its Node,
// or else of the cluster. It returns no address for other sources.
func (s *Tracer) within(p *ir.Program, src netip.Addr) (in netip.Addr) {
	if !s.standIns.IsPod(src) {
		return in
	}
	on, _ := s.Snapshot.EndpointNode(src)
	if n := s.Snapshot.Node(on); n != nil {
		for _, r := range n.PodCIDRs {
			if p.Family.Has(r.Addr()) {
				return r.Addr()
			}
		}
	}
	if d := &p.Node.Detector; d.Mode == ir.DetectCIDR {
		return d.Prefix.Addr()
	}
	return in
}

// podAt returns the source address of a pod's packets, and the interface on which they arrive at
// its node.
func (s *Tracer) podAt(p *ir.Program, pod podOn, dst netip.Addr) (src netip.Addr, in string, by origin, err error) {
	src = pod.addr
	by = origin{"Pod " + pod.name + " runs on", s.Node}
	if p.Node.HasAddr(src) { // host network: the node sends the packet
		src, err = s.nodeSource(p, dst)
		return src, "", by, err
	}
	if pod.node != "" && pod.node != s.Node {
		by.node = pod.node
		if s.owner(src) == pod.node {
			return src, "", by, nil
		}
		return src, PodInterface(&p.Node), by, nil
	}
	in = PodInterface(&p.Node)
	if net, _, ok := s.network(src); ok && in == anyPod {
		in = net
	}
	return src, in, by, nil
}

// anyPod is the interface of a pod if no rule matches a name.
const anyPod = "pod"

// PodInterface returns the interface on which packets of a node's pods arrive, as the local
// detector expects it.
func PodInterface(node *ir.Node) string {
	switch d := &node.Detector; d.Mode {
	case ir.DetectInterface:
		return d.Interface
	case ir.DetectPrefix:
		return d.Interface + "0"
	}
	return anyPod
}

// owner returns the other Node whose object lists an address, or "".
func (s *Tracer) owner(addr netip.Addr) string {
	for _, n := range s.Snapshot.Nodes() {
		for _, a := range n.Addresses {
			if got, err := netip.ParseAddr(a.Address); err == nil && got.Unmap() == addr && n.Name != s.Node {
				return n.Name
			}
		}
	}
	return ""
}

// home returns the other node that sends packets with source address src, because it or one of its
// pods has the address. It returns "" if there is none.
func (s *Tracer) home(src netip.Addr) string {
	if node := s.owner(src); node != "" {
		return node
	}
	node, known := s.Snapshot.EndpointNode(src)
	if !known || node == "" {
		for _, n := range s.Snapshot.Nodes() {
			if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(src) }) {
				node = n.Name
				break
			}
		}
	}
	if node == s.Node {
		return ""
	}
	return node
}

// Trace follows a packet through the rules of the node where it starts, and then through those of
// the node that owns its destination address.
func (s *Tracer) Trace(from, to string) (Trace, error) {
	pkt, by, err := s.packet(from, to)
	if err != nil {
		return Trace{}, err
	}
	end := s.owner(pkt.Dst)
	if programFor(s.Programs, pkt.Dst).Node.HasAddr(pkt.Dst) {
		end = s.Node
	}
	home := ""
	if by.text == "" && pkt.In != "" && !strings.Contains(from, "@") { // only an address, and no interface of this node was given
		home = s.home(pkt.Src)
		if end != "" {
			by.node = end
		}
	}
	t := Trace{Packet: pkt}
	start := by.node
	if home != "" && home != start {
		t.addStep(nodeOrigin(home), "%s belongs to Node %s, whose rules its packets meet first (--node %s). This trace starts at %s, with the packet unchanged", pkt.Src, home, home, start)
	}
	if start != s.Node && by.text != "" {
		t.addStep(nodeOrigin(start), "%s Node %s, whose rules its packets meet", by.text, start)
	}
	if start != end {
		if on, err := s.at(&t, start, end, pkt); !on || err != nil {
			return t, err
		}
	}
	if end == "" {
		return t, nil
	}
	if start != end || end != s.Node {
		t.addStep(nodeOrigin(end), "%s is an address of Node %s, whose rules decide", pkt.Dst, end)
	}
	if start != end {
		if pkt.In = outside; end == s.Node {
			pkt.In = s.arrivesOn(&programFor(s.Programs, pkt.Dst).Node, pkt.Src)
		}
	}
	_, err = s.at(&t, end, end, pkt)
	return t, err
}

// rules returns the Program of a node for packets to an address.
func (s *Tracer) rules(node string, dst netip.Addr) (*ir.Program, error) {
	switch {
	case node == s.Node:
		return programFor(s.Programs, dst), nil
	case s.elsewhere == nil:
		return nil, fmt.Errorf("the rules of Node %s decide, and only those of %s are known here: trace with a configuration and a snapshot, or ask the daemon there", node, s.Node)
	}
	return programFor(s.elsewhere(node), dst), nil
}

// at traces a packet through the rules of a node, and reports whether the packet continues
// unchanged.
func (s *Tracer) at(t *Trace, node, end string, pkt sim.Packet) (continues bool, err error) {
	p, err := s.rules(node, pkt.Dst)
	if err != nil {
		return false, err
	}
	outcome, steps := s.evaluator(p).Explain(pkt)
	if outcome.Fate != sim.Accepted {
		steps = append(steps, s.absent(p, pkt)...)
	}
	t.Outcome = outcome
	t.hindrances = s.hindrances(p, pkt)
	if all := s.evaluator(p).Hindrances(pkt); s.unknowns != nil && len(all) == 1 && all[0].Frontend != nil {
		if of := all[0].Frontend.Port.Service; s.unknowns()[of] != "" {
			t.unknown, t.hindrances = true, nil
			t.Steps = append(t.Steps, steps[:len(steps)-1]...)
			t.addStep(ir.Origin{Object: snapshot.ObjectName("Service", of), Field: "spec.selector"}, "the endpoints of %s are not known: %s", of, s.unknowns()[of])
			return false, nil
		}
	}
	if outcome.Fate != sim.NotOurs {
		t.Steps = append(t.Steps, steps...)
		return false, nil
	}
	if t.localhost(p, pkt, steps) {
		return false, nil
	}
	if end != "" && end != node {
		return true, nil // the other node's rules decide; obstacles here are not a cause
	}
	if f := s.unknown(p, pkt); f != nil {
		t.unknown, t.hindrances = true, nil
		t.addStep(ir.Origin{Object: nodeOrigin(s.Node).Object, Field: "status.addresses"},
			"it is unknown offline whether Node %s has address %s, where %s is the NodePort of %s: add --node-address %s@INTERFACE, or use --live",
			s.Node, pkt.Dst, strings.TrimPrefix(f.Match.String(), "node:"), f.Port, pkt.Dst)
		return false, nil
	}
	t.Steps = append(t.Steps, steps...)
	return true, nil
}

// Serving returns the Service that has a frontend for a packet; zero if none has.
func Serving(p *ir.Program, pkt sim.Packet) ir.Name {
	for i := range p.Services {
		for _, f := range p.Services[i].Frontends {
			if m := f.Match; (m.Addr == pkt.Dst || m.IsNodePort() && p.Node.HasAddr(pkt.Dst)) && m.Port == pkt.Port && m.Protocol == pkt.Protocol {
				return p.Services[i].Name
			}
		}
	}
	return ir.Name{}
}

// absent returns steps for the Services missing from the rules that a packet without a matching
// frontend may be for.
func (s *Tracer) absent(p *ir.Program, pkt sim.Packet) (steps []sim.Step) {
	if Serving(p, pkt) != (ir.Name{}) {
		return nil
	}
	nodePort := uint16(0)
	if p.Node.HasAddr(pkt.Dst) {
		nodePort = pkt.Port
	}
	for _, says := range s.ignored.At(pkt.Dst, nodePort) {
		steps = append(steps, sim.Step{Text: says})
	}
	return steps
}

// Reasons returns why the rules that proxyc writes do not serve a packet: Services that they lack, and
// what is required for it to be served.
func (s *Tracer) Reasons(p *ir.Program, pkt sim.Packet) (absent []string, required []Hindrance) {
	for _, step := range s.absent(p, pkt) {
		absent = append(absent, step.Text)
	}
	return absent, s.hindrances(p, pkt)
}

// hindrances returns everything that keeps a packet from being served, with the nearest match.
func (s *Tracer) hindrances(p *ir.Program, pkt sim.Packet) (all []Hindrance) {
	for _, h := range s.evaluator(p).Hindrances(pkt) {
		one := Hindrance{Step: h.Step}
		if h.Frontend != nil && (len(s.Snapshot.Services()) > 0) {
			for _, m := range lint.Misses(s.Snapshot, p.Node.Name, h.Frontend.Port, p.Family, h.Frontend.Policy == ir.Local) {
				one.Near = append(one.Near, sim.Step{Text: m.Text, Origin: m.Origin})
			}
		}
		all = append(all, one)
	}
	return all
}

// Hindrance is one condition that would have to change, and the nearest match.
type Hindrance struct {
	sim.Step
	Near []sim.Step `json:"near,omitempty"`
}

func nodeOrigin(node string) ir.Origin { return ir.Origin{Object: "Node " + node} }

// unknown returns the node port that would serve an unmatched packet if this node had its
// destination address. Offline, proxyc knows only the addresses in the Node object.
func (s *Tracer) unknown(p *ir.Program, pkt sim.Packet) *ir.Frontend {
	if s.AllAddrsKnown || p.Node.HasAddr(pkt.Dst) || !p.Node.NodePorts.Has(pkt.Dst, true) ||
		carries(p, pkt.Dst) {
		return nil
	}
	if _, ok := s.Snapshot.EndpointNode(pkt.Dst); ok {
		return nil
	}
	_, f := nodePort(p, pkt)
	return f
}
