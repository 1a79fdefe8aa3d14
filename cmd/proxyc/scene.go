package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// scene is what decides about a packet besides the rules: who sends it, by
// which interface it comes in, and whose address it goes to.
type scene struct {
	snap     *snapshot.Snapshot
	node     string      // this node
	programs ir.Programs // its own
	// interfaces of this node, as far as they are known.
	interfaces []compiler.Interface
	// known reports whether this node has no addresses but those of the Programs.
	known bool
	left  leftOut // what the Programs are without
	// elsewhere returns the Programs of another node; nil: they are not known here.
	elsewhere func(node string) ir.Programs

	evaluators map[*ir.Program]*sim.Evaluator // made as they are asked
}

// evaluator returns the meaning of a Program.
func (s *scene) evaluator(p *ir.Program) *sim.Evaluator {
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

// scene returns that of an offline verb.
func (j *job) scene(programs ir.Programs) *scene {
	s := &scene{snap: j.snap, node: j.facts.NodeName, programs: programs,
		interfaces: j.facts.Interfaces, known: j.facts.AllAddrsKnown(), left: j.leftOut()}
	if s.interfaces == nil {
		s.interfaces = j.facts.Named
	}
	if j.onlyHere {
		return s
	}
	known := map[string]ir.Programs{}
	s.elsewhere = func(node string) ir.Programs {
		programs, ok := known[node]
		if !ok {
			programs, _ = compiler.Compile(j.Config, j.snap, j.others(node))
			known[node] = programs
		}
		return programs
	}
	return s
}

// sender is where a packet comes from.
type sender struct {
	text string // "Pod ns/web runs on"; empty: nothing to tell
	node string // whose rules the packet meets first
}

// packet reads the --from and --to of a trace, as the packet meets the rules
// of the sender's node.
func (s *scene) packet(from, to string) (pkt sim.Packet, by sender, err error) {
	by.node = s.node
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
	p := programFor(s.programs, pkt.Dst)
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
func (s *scene) address(node *ir.Node, from string) (src netip.Addr, port uint16, in string, err error) {
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
func (s *scene) nodeSource(p *ir.Program, dst netip.Addr) (netip.Addr, error) {
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
func (s *scene) otherNode(name string, dst netip.Addr) (netip.Addr, sender, error) {
	by := sender{"the packet comes from", name}
	if name == s.node {
		src, err := s.nodeSource(programFor(s.programs, dst), dst)
		return src, sender{node: name}, err
	}
	if s.snap.Node(name) == nil {
		return netip.Addr{}, by, fmt.Errorf("the snapshot has no Node %q", name)
	}
	p, err := s.rules(name, dst)
	if err != nil {
		return netip.Addr{}, by, err
	}
	there := scene{snap: s.snap, node: name, programs: ir.NewPrograms(p)}
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
func (s *scene) network(addr netip.Addr) (name string, own netip.Addr, ok bool) {
	best := -1
	for _, i := range s.interfaces {
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
func (s *scene) way(node *ir.Node, src netip.Addr) string {
	if name, _, ok := s.network(src); ok {
		return name
	}
	for _, i := range s.interfaces {
		if slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == node.IP }) {
			return i.Name
		}
	}
	return outside
}

// pod finds the address of a pod through the EndpointSlices that name it, and
// the interface by which its packets reach the rules of its node.
func (s *scene) pod(p *ir.Program, pod string, dst netip.Addr) (src netip.Addr, in string, by sender, err error) {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok || namespace == "" || name == "" {
		return src, "", by, fmt.Errorf("must be pod:NAMESPACE/NAME, got %q", "pod:"+pod)
	}
	src, on, ok := s.snap.Pod(ir.Name{Namespace: namespace, Name: name}, p.Family)
	if !ok {
		return src, "", by, fmt.Errorf("no EndpointSlice of the snapshot has an %s address of Pod %s/%s; give IP@INTERFACE", p.Family, namespace, name)
	}
	by = sender{"Pod " + pod + " runs on", s.node}
	if p.Node.HasAddr(src) { // host network: what the node sends
		src, err = s.nodeSource(p, dst)
		return src, "", by, err
	}
	if on != "" && on != s.node {
		by.node = on
		if s.owner(src) == on {
			return src, "", by, nil
		}
		return src, podInterface(&p.Node), by, nil
	}
	in = podInterface(&p.Node)
	if net, _, ok := s.network(src); ok && in == anyPod {
		in = net
	}
	return src, in, by, nil
}

// anyPod stands for the interface of a pod where no rule asks for it.
const anyPod = "pod"

// podInterface is where packets of a node's pods come in: what the detector looks for.
func podInterface(node *ir.Node) string {
	switch d := &node.Detector; d.Mode {
	case ir.DetectInterface:
		return d.Interface
	case ir.DetectPrefix:
		return d.Interface + "0"
	}
	return anyPod
}

// owner returns the Node that has an address by its object, if that is not this one.
func (s *scene) owner(addr netip.Addr) string {
	for _, n := range s.snap.Nodes() {
		for _, a := range n.Addresses {
			if got, err := netip.ParseAddr(a.Address); err == nil && got.Unmap() == addr && n.Name != s.node {
				return n.Name
			}
		}
	}
	return ""
}

// home returns the other node that sends what has an address as its source: its own
// address or that of one of its pods; "": nothing tells of one.
func (s *scene) home(src netip.Addr) string {
	if node := s.owner(src); node != "" {
		return node
	}
	node, known := s.snap.EndpointNode(src)
	if !known || node == "" {
		for _, n := range s.snap.Nodes() {
			if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(src) }) {
				node = n.Name
				break
			}
		}
	}
	if node == s.node {
		return ""
	}
	return node
}

// trace follows a packet through the rules of the node where it starts, and
// then of the one whose address it goes to.
func (s *scene) trace(from, to string) (traced, error) {
	pkt, by, err := s.packet(from, to)
	if err != nil {
		return traced{}, err
	}
	end := s.owner(pkt.Dst)
	if programFor(s.programs, pkt.Dst).Node.HasAddr(pkt.Dst) {
		end = s.node
	}
	home := ""
	if by.text == "" && pkt.In != "" && !strings.Contains(from, "@") { // an address, and nobody says that it comes by here
		home = s.home(pkt.Src)
		if end != "" {
			by.node = end
		}
	}
	t := traced{pkt: pkt}
	start := by.node
	if home != "" && home != start {
		t.tell(nodeOrigin(home), "%s is of Node %s, whose rules its packets meet first (--hostname-override %s); this is one that comes to %s as it was sent", pkt.Src, home, home, start)
	}
	if start != s.node && by.text != "" {
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
	if start != end || end != s.node {
		t.tell(nodeOrigin(end), "%s is an address of Node %s, whose rules decide", pkt.Dst, end)
	}
	if start != end {
		if pkt.In = outside; end == s.node {
			pkt.In = s.way(&programFor(s.programs, pkt.Dst).Node, pkt.Src)
		}
	}
	_, err = s.at(&t, end, end, pkt)
	return t, err
}

// rules returns the Program of a node for packets to an address.
func (s *scene) rules(node string, dst netip.Addr) (*ir.Program, error) {
	switch {
	case node == s.node:
		return programFor(s.programs, dst), nil
	case s.elsewhere == nil:
		return nil, fmt.Errorf("the rules of Node %s decide, and only those of %s are known here: trace with a configuration and a snapshot, or ask the daemon there", node, s.node)
	}
	return programFor(s.elsewhere(node), dst), nil
}

// at traces a packet through the rules of a node, and reports whether it goes
// on as it was.
func (s *scene) at(t *traced, node, end string, pkt sim.Packet) (goesOn bool, err error) {
	p, err := s.rules(node, pkt.Dst)
	if err != nil {
		return false, err
	}
	outcome, steps := s.evaluator(p).Explain(pkt)
	if outcome.Fate != sim.Accepted {
		steps = append(steps, s.leftOut(p, pkt)...)
	}
	t.outcome = outcome
	t.hindrances = s.hindrances(p, pkt)
	if outcome.Fate != sim.NotOurs {
		t.steps = append(t.steps, steps...)
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
		t.tell(ir.Origin{Object: nodeOrigin(s.node).Object, Field: "status.addresses"},
			"whether Node %s has the address %s is not known offline; there %s is the NodePort of %s: name it with --node-address %s@INTERFACE, or use --live",
			s.node, pkt.Dst, strings.TrimPrefix(f.Match.String(), "node:"), f.Port, pkt.Dst)
		return false, nil
	}
	t.steps = append(t.steps, steps...)
	return true, nil
}

// leftOut tells of Services that a packet which no frontend takes may be for: the rules are
// without them.
func (s *scene) leftOut(p *ir.Program, pkt sim.Packet) (steps []sim.Step) {
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
	for _, says := range s.left.at(pkt.Dst, nodePort) {
		steps = append(steps, sim.Step{Text: says})
	}
	return steps
}

// hindrances returns all that keeps a packet from passing, with what nearly serves it.
func (s *scene) hindrances(p *ir.Program, pkt sim.Packet) (all []hindrance) {
	for _, h := range s.evaluator(p).Hindrances(pkt) {
		one := hindrance{Step: h.Step}
		if h.Frontend != nil && (len(s.snap.Services()) > 0) {
			for _, m := range compiler.Misses(s.snap, p.Node.Name, h.Frontend.Port, p.Family, h.Frontend.Policy == ir.Local) {
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
func (s *scene) unknown(p *ir.Program, pkt sim.Packet) *ir.Frontend {
	if s.known || p.Node.HasAddr(pkt.Dst) || !p.Node.NodePorts.Has(pkt.Dst, true) ||
		carries(p, pkt.Dst) {
		return nil
	}
	if _, ok := s.snap.EndpointNode(pkt.Dst); ok {
		return nil
	}
	_, f := nodePort(p, pkt)
	return f
}
