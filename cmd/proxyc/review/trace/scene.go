package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Scene is what decides about a packet besides the rules: who sends it, by
// which interface it comes in, and whose address it goes to.
type Scene struct {
	Snapshot *snapshot.Snapshot
	Node     string      // this node
	Programs ir.Programs // its own
	// Interfaces of this node, as far as they are known.
	Interfaces []compiler.Interface
	// AllAddrsKnown reports whether this node has no addresses but those of the Programs.
	AllAddrsKnown bool
	left          review.LeftOut // what the Programs are without
	// elsewhere returns the Programs of another node; nil: they are not known here.
	elsewhere func(node string) ir.Programs

	evaluators map[*ir.Program]*sim.Evaluator // made as they are asked
}

// evaluator returns the meaning of a Program.
func (s *Scene) evaluator(p *ir.Program) *sim.Evaluator {
	e := s.evaluators[p]
	if e == nil {
		e = sim.NewEvaluator(p)
		if s.evaluators == nil {
			s.evaluators = map[*ir.Program]*sim.Evaluator{}
		}
		s.evaluators[p] = e
	}
	return e
}

// outside is the name of the interface by which a packet is taken to come in
// when nothing tells.
const outside = "eth0"

// NewScene returns the scene of an input. programs are those in force on its node.
func NewScene(j *review.Input, programs ir.Programs) *Scene {
	s := &Scene{Snapshot: j.Snapshot, Node: j.Facts.NodeName, Programs: programs,
		Interfaces: j.Facts.Interfaces, AllAddrsKnown: j.Facts.AllAddrsKnown(), left: review.LeftOutOf(j)}
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

// origin is where a packet comes from.
type origin struct {
	text string // "Pod ns/web runs on"; empty: nothing to tell
	node string // whose rules the packet meets first
}

// Packet returns the packet of the --from and --to of a trace, and the node whose rules it meets first.
func (s *Scene) Packet(from, to string) (pkt sim.Packet, node string, err error) {
	pkt, by, err := s.packet(from, to)
	return pkt, by.node, err
}

// packet reads the --from and --to of a trace, as the packet meets the rules
// of the sender's node.
func (s *Scene) packet(from, to string) (pkt sim.Packet, by origin, err error) {
	by.node = s.Node
	if to, err = s.resolve(to, from); err != nil {
		return pkt, by, err
	}
	// The destination alone tells the family, which a pod or node needs.
	any4, any6 := "0.0.0.0", "::"
	if pkt, err = sim.ParsePacket(any4, to); err != nil {
		if pkt, err = sim.ParsePacket(any6, to); err != nil {
			return pkt, by, fmt.Errorf("--to: %w", err)
		}
	}
	p := programFor(s.Programs, pkt.Dst)
	if pod, ok := strings.CutPrefix(from, "pod:"); ok {
		pkt.Src, pkt.In, by, err = s.pod(p, pod, pkt.Dst)
	} else if from == "node" {
		pkt.Src, err = s.nodeSource(p, pkt.Dst)
	} else if name, ok := strings.CutPrefix(from, "node:"); ok {
		pkt.Src, by, err = s.otherNode(name, pkt.Dst)
	} else {
		pkt.Src, pkt.SrcPort, pkt.In, err = s.address(&p.Node, from)
	}
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

// address reads IP[:PORT][@INTERFACE], an IPv6 address without a port with brackets or without.
func (s *Scene) address(node *ir.Node, from string) (src netip.Addr, port uint16, in string, err error) {
	text, in, named := strings.Cut(from, "@")
	client, err := netip.ParseAddrPort(text)
	if src, port = client.Addr(), client.Port(); err != nil {
		src, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	}
	if err != nil || named && in == "" {
		return src, 0, "", fmt.Errorf("must be pod:NAMESPACE/NAME, node, node:NAME or IP[:PORT][@INTERFACE], got %q", from)
	}
	if in == "" && !node.HasAddr(src) {
		in = s.way(node, src)
	}
	return src, port, in, nil
}

// nodeSource returns the address from which the node itself sends, as the kernel
// chooses it: the destination when that is the node's own, as those of
// kube-ipvs0 are in mode ipvs; that of the interface whose network has the
// destination; else the primary one.
func (s *Scene) nodeSource(p *ir.Program, dst netip.Addr) (netip.Addr, error) {
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
	return netip.Addr{}, fmt.Errorf("node %q has no address of the family of %s in the snapshot; give IP", node.Name, dst)
}

// otherNode returns the address from which a Node sends.
func (s *Scene) otherNode(name string, dst netip.Addr) (netip.Addr, origin, error) {
	by := origin{"the packet comes from", name}
	if name == s.Node {
		src, err := s.nodeSource(programFor(s.Programs, dst), dst)
		return src, origin{node: name}, err
	}
	if s.Snapshot.Node(name) == nil {
		return netip.Addr{}, by, fmt.Errorf("the snapshot has no Node %q", name)
	}
	p, err := s.rules(name, dst)
	if err != nil {
		return netip.Addr{}, by, err
	}
	there := Scene{Snapshot: s.Snapshot, Node: name, Programs: ir.NewPrograms(p)}
	src, err := there.nodeSource(p, dst)
	return src, by, err
}

// carries reports whether an address is some frontend's.
func carries(p *ir.Program, addr netip.Addr) bool {
	return slices.ContainsFunc(p.Services, func(s ir.Service) bool {
		return slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Match.Addr == addr })
	})
}

// network finds the interface of this node whose network has an address, and
// the node's own address there.
func (s *Scene) network(addr netip.Addr) (name string, own netip.Addr, ok bool) {
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

// way returns the interface by which packets of an address come in: that of its
// network, else that of the node's primary address.
func (s *Scene) way(node *ir.Node, src netip.Addr) string {
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

// pod finds the address of a pod through the EndpointSlices that name it, and
// the interface by which its packets reach the rules of its node.
func (s *Scene) pod(p *ir.Program, pod string, dst netip.Addr) (src netip.Addr, in string, by origin, err error) {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok || namespace == "" || name == "" {
		return src, "", by, fmt.Errorf("must be pod:NAMESPACE/NAME, got %q", "pod:"+pod)
	}
	src, on, ok := s.Snapshot.Pod(ir.Name{Namespace: namespace, Name: name}, p.Family)
	if !ok {
		return src, "", by, fmt.Errorf("no EndpointSlice of the snapshot has an %s address of Pod %s/%s; give IP@INTERFACE", p.Family, namespace, name)
	}
	by = origin{"Pod " + pod + " runs on", s.Node}
	if p.Node.HasAddr(src) { // host network: what the node sends
		src, err = s.nodeSource(p, dst)
		return src, "", by, err
	}
	if on != "" && on != s.Node {
		by.node = on
		if s.owner(src) == on {
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

// anyPod stands for the interface of a pod where no rule asks for it.
const anyPod = "pod"

// PodInterface is where packets of a node's pods come in: what the detector looks for.
func PodInterface(node *ir.Node) string {
	switch d := &node.Detector; d.Mode {
	case ir.DetectInterface:
		return d.Interface
	case ir.DetectPrefix:
		return d.Interface + "0"
	}
	return anyPod
}

// owner returns the Node that has an address by its object, if that is not this one.
func (s *Scene) owner(addr netip.Addr) string {
	for _, n := range s.Snapshot.Nodes() {
		for _, a := range n.Addresses {
			if got, err := netip.ParseAddr(a.Address); err == nil && got.Unmap() == addr && n.Name != s.Node {
				return n.Name
			}
		}
	}
	return ""
}

// home returns the other node that sends what has an address as its source: its own
// address or that of one of its pods; "": nothing tells of one.
func (s *Scene) home(src netip.Addr) string {
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

// Trace follows a packet through the rules of the node where it starts, and
// then of the one whose address it goes to.
func (s *Scene) Trace(from, to string) (Trace, error) {
	pkt, by, err := s.packet(from, to)
	if err != nil {
		return Trace{}, err
	}
	end := s.owner(pkt.Dst)
	if programFor(s.Programs, pkt.Dst).Node.HasAddr(pkt.Dst) {
		end = s.Node
	}
	home := ""
	if by.text == "" && pkt.In != "" && !strings.Contains(from, "@") { // an address, and nobody says that it comes by here
		home = s.home(pkt.Src)
		if end != "" {
			by.node = end
		}
	}
	t := Trace{Packet: pkt}
	start := by.node
	if home != "" && home != start {
		t.tell(nodeOrigin(home), "%s is of Node %s, whose rules its packets meet first (--hostname-override %s); this is one that comes to %s as it was sent", pkt.Src, home, home, start)
	}
	if start != s.Node && by.text != "" {
		t.tell(nodeOrigin(start), "%s Node %s, whose rules its packets meet", by.text, start)
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
		t.tell(nodeOrigin(end), "%s is an address of Node %s, whose rules decide", pkt.Dst, end)
	}
	if start != end {
		if pkt.In = outside; end == s.Node {
			pkt.In = s.way(&programFor(s.Programs, pkt.Dst).Node, pkt.Src)
		}
	}
	_, err = s.at(&t, end, end, pkt)
	return t, err
}

// rules returns the Program of a node for packets to an address.
func (s *Scene) rules(node string, dst netip.Addr) (*ir.Program, error) {
	switch {
	case node == s.Node:
		return programFor(s.Programs, dst), nil
	case s.elsewhere == nil:
		return nil, fmt.Errorf("the rules of Node %s decide, and only those of %s are known here: trace with a configuration and a snapshot, or ask the daemon there", node, s.Node)
	}
	return programFor(s.elsewhere(node), dst), nil
}

// at traces a packet through the rules of a node, and reports whether it goes
// on as it was.
func (s *Scene) at(t *Trace, node, end string, pkt sim.Packet) (goesOn bool, err error) {
	p, err := s.rules(node, pkt.Dst)
	if err != nil {
		return false, err
	}
	outcome, steps := s.evaluator(p).Explain(pkt)
	if outcome.Fate != sim.Accepted {
		steps = append(steps, s.leftOut(p, pkt)...)
	}
	t.Outcome = outcome
	t.hindrances = s.hindrances(p, pkt)
	if outcome.Fate != sim.NotOurs {
		t.Steps = append(t.Steps, steps...)
		return false, nil
	}
	if t.localhost(p, pkt, steps) {
		return false, nil
	}
	if end != "" && end != node {
		return true, nil // the rules that decide are there, and what these say of it is no cause
	}
	if f := s.unknown(p, pkt); f != nil {
		t.unknown, t.hindrances = true, nil
		t.tell(ir.Origin{Object: nodeOrigin(s.Node).Object, Field: "status.addresses"},
			"whether Node %s has the address %s is not known offline; there %s is the NodePort of %s: name it with --node-address %s@INTERFACE, or use --live",
			s.Node, pkt.Dst, strings.TrimPrefix(f.Match.String(), "node:"), f.Port, pkt.Dst)
		return false, nil
	}
	t.Steps = append(t.Steps, steps...)
	return true, nil
}

// leftOut tells of Services that a packet which no frontend takes may be for: the rules are
// without them.
func (s *Scene) leftOut(p *ir.Program, pkt sim.Packet) (steps []sim.Step) {
	for i := range p.Services {
		for _, f := range p.Services[i].Frontends {
			if m := f.Match; (m.Addr == pkt.Dst || m.IsNodePort() && p.Node.HasAddr(pkt.Dst)) && m.Port == pkt.Port && m.Protocol == pkt.Protocol {
				return nil
			}
		}
	}
	nodePort := uint16(0)
	if p.Node.HasAddr(pkt.Dst) {
		nodePort = pkt.Port
	}
	for _, says := range s.left.At(pkt.Dst, nodePort) {
		steps = append(steps, sim.Step{Text: says})
	}
	return steps
}

// hindrances returns all that keeps a packet from passing, with what nearly serves it.
func (s *Scene) hindrances(p *ir.Program, pkt sim.Packet) (all []hindrance) {
	for _, h := range s.evaluator(p).Hindrances(pkt) {
		one := hindrance{Step: h.Step}
		if h.Frontend != nil && (len(s.Snapshot.Services()) > 0) {
			for _, m := range compiler.Misses(s.Snapshot, p.Node.Name, h.Frontend.Port, p.Family, h.Frontend.Policy == ir.Local) {
				one.Near = append(one.Near, sim.Step{Text: m.Text, Origin: m.Origin})
			}
		}
		all = append(all, one)
	}
	return all
}

// hindrance is one thing that would have to be otherwise, and what nearly is.
type hindrance struct {
	sim.Step
	Near []sim.Step `json:"near,omitempty"`
}

func nodeOrigin(node string) ir.Origin { return ir.Origin{Object: "Node " + node} }

// unknown returns the node port that would take a packet that nothing takes, if
// its destination were an address of this node, which may be: offline no more
// is known than the Node object says.
func (s *Scene) unknown(p *ir.Program, pkt sim.Packet) *ir.Frontend {
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
