package contract

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// finding is a violated frontend of a contract on a node.
type finding struct {
	contract string
	port     ir.ServicePort
	kind     ir.Kind
	node     string
}

// Every violation of random contracts in random clusters is found, and none is invented. A judge
// that shares no code with the engine evaluates single packets with ir/sim.
func TestRandomContracts(t *testing.T) {
	worlds := uint64(applytest.Of(10, 40))
	violated, held, possible := 0, 0, 0
	for _, mode := range ir.Modes() {
		for n := range worlds {
			r := reviewtest.New(7, n+9)
			j := randomInput(r, mode)
			contracts := randomContracts(t, r, 8)
			nodes := []compiler.Facts{j.Facts, j.Others("node2"), j.Others("node3")}
			result := Check(j, nodes, contracts, noPods)
			judge := newJudge(j, nodes)
			want := map[finding]answer{}
			for _, c := range contracts {
				judge.contract(c, want)
			}
			got, packets := map[finding]answer{}, map[finding]sim.Packet{}
			for _, c := range result.Contracts {
				for _, v := range c.Violations {
					for _, at := range v.At {
						for _, node := range at.Nodes {
							is := yes
							if at.Possible {
								is = maybe
							}
							f := finding{c.Name, at.Port, at.Kind, node}
							if is >= got[f] {
								got[f], packets[f] = is, at.Packet
							}
						}
					}
				}
				held += 1 - min(1, len(c.Violations))
			}
			for f, is := range got {
				if is == yes {
					violated++
				} else {
					possible++
				}
				if want[f] != is {
					t.Errorf("mode %s, world %d: %+v: %d, but packet by packet %d: %s: %+v, %+v", mode, n, f, is, want[f], text(contracts, f.contract), judge.example[f], packets[f])
				}
			}
			for f, is := range want {
				if got[f] == no {
					t.Errorf("mode %s, world %d: %+v: is not found, but packet by packet %d: %s: %+v", mode, n, f, is, text(contracts, f.contract), judge.example[f])
				}
			}
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("%d violations, %d possible ones, %d contracts that hold", violated, possible, held)
	if violated < 200 || possible < 50 || held < 50 {
		t.Error("too few to be a test")
	}
}

func noPods(*snapshot.Workload, ir.Family) []snapshot.Endpoint { return nil }

func text(all []*Contract, name string) string {
	i := slices.IndexFunc(all, func(c *Contract) bool { return c.Name == name })
	out, _ := yaml.Marshal(all[i])
	return "\n" + string(out)
}

// randomInput returns a random cluster in which the endpoints are pods of two namespaces.
func randomInput(r *reviewtest.Random, mode ir.Mode) *review.Input {
	w := r.World(mode)
	for i, s := range w.Slices {
		if i%2 == 1 {
			s.Name.Namespace = "ns2"
		}
		for k := range s.Endpoints {
			if e := &s.Endpoints[k]; !r.Chance(4) {
				e.Pod = "pod-" + e.Address
			}
		}
	}
	j := &review.Input{Resolved: &config.Resolved{Config: w.CompleteConfig()}, Snapshot: w.Snapshot(nil), Facts: w.Facts}
	return j
}

func randomContracts(t *testing.T, r *reviewtest.Random, n int) []*Contract {
	cidrs := []string{"0.0.0.0/0", "::/0", "198.51.100.0/24", "198.51.100.128/25", "192.0.2.0/24", "10.244.0.0/16", "10.244.1.0/28", "2001:db8:51::/48", "203.0.113.7", "2000::/3"}
	d := Document{APIVersion: ir.APIVersion, Kind: Kind}
	for i := range n {
		c := Contract{Name: fmt.Sprint("c", i), Require: reviewtest.Pick(r, []string{never, always, onlyFrom, keeps})}
		to := &c.Clients
		for to.IsZero() {
			to.Anyone = r.Chance(8)
			if r.Chance(2) {
				for range 1 + r.IntN(3) {
					to.External = append(to.External, reviewtest.Pick(r, cidrs))
				}
			}
			switch r.IntN(6) {
			case 0:
				to.Pods = &Pods{}
			case 1, 2:
				to.Pods = &Pods{Namespace: reviewtest.Pick(r, []string{"ns", "ns2"})}
			}
			switch r.IntN(6) {
			case 0:
				to.Nodes.All = true
			case 1:
				to.Nodes.Names = []string{reviewtest.Pick(r, []string{"node1", "node2", "node3"})}
			}
		}
		if r.Chance(3) {
			c.Destinations.Frontends = []string{reviewtest.Pick(r, []string{"ClusterIP", "NodePort", "ExternalIP", "LoadBalancer"})}
		}
		if r.Chance(3) {
			c.Destinations.Services.Names = []string{fmt.Sprint("svc", r.IntN(3))}
		}
		if r.Chance(4) {
			c.Destinations.Ports = []string{reviewtest.Pick(r, []string{"80", "p1", "81/UDP"})}
		}
		d.Contracts = append(d.Contracts, c)
	}
	out, err := yaml.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	all, errs := parse("contracts.yaml", out)
	if len(errs) > 0 {
		t.Fatalf("%v\n%s", errs, out)
	}
	return all
}

// IsZero reports whether there are no clients.
func (c *Clients) IsZero() bool {
	return !c.Anyone && len(c.External) == 0 && c.Pods == nil && c.Nodes.IsZero()
}

// judge decides contracts packet by packet.
type judge struct {
	input    *review.Input
	nodes    []compiler.Facts
	programs []ir.Programs
	pods     []judgedPod
	example  map[finding]sim.Packet
	carrying map[*ir.Program]prove.Node
	services map[*ir.Program]map[netip.Addr]bool
	known    map[netip.Addr]owner
}

// owner is the Node and the pods that have an address.
type owner struct {
	node string
	pods []judgedPod
}

type judgedPod struct {
	namespace, name, node string
	addr                  netip.Addr
}

func newJudge(j *review.Input, nodes []compiler.Facts) *judge {
	d := &judge{input: j, nodes: nodes, example: map[finding]sim.Packet{}, carrying: map[*ir.Program]prove.Node{}, services: map[*ir.Program]map[netip.Addr]bool{}, known: map[netip.Addr]owner{}}
	for _, n := range nodes {
		programs, _ := compiler.Compile(j.Config, j.Snapshot, n)
		d.programs = append(d.programs, programs)
	}
	all := map[judgedPod]bool{}
	node := map[string]string{}
	for _, s := range j.Snapshot.Document().Slices {
		for _, e := range s.Endpoints {
			if e.Pod != "" {
				all[judgedPod{s.Name.Namespace, e.Pod, "", e.Addr}] = true
				if key := s.Name.Namespace + "/" + e.Pod; node[key] == "" {
					node[key] = e.NodeName
				}
			}
		}
	}
	for p := range all {
		p.node = node[p.namespace+"/"+p.name]
		d.pods = append(d.pods, p)
	}
	return d
}

// contract adds the violations of a contract.
func (d *judge) contract(c *Contract, want map[finding]answer) {
	for i, n := range d.nodes {
		for _, p := range d.programs[i].All() {
			evaluator := sim.NewEvaluator(p)
			for _, s := range p.Services {
				for k := range s.Frontends {
					f := &s.Frontends[k]
					if !selects(c, f, d.input.Snapshot) {
						continue
					}
					at := finding{c.Name, f.Port, f.Kind, n.NodeName}
					for _, pkt := range d.packets(c, p, f) {
						violates, is := d.packet(c, p, evaluator, f, pkt, n.NodeName)
						if violates && is > want[at] {
							want[at], d.example[at] = is, pkt
						}
					}
				}
			}
		}
	}
}

func selects(c *Contract, f *ir.Frontend, snap *snapshot.Snapshot) bool {
	to := &c.Destinations
	port := slices.ContainsFunc(to.Ports, func(text string) bool {
		switch text {
		case "80":
			return slices.ContainsFunc(snap.Service(f.Port.Service).Ports, func(p snapshot.ServicePort) bool { return p.Name == f.Port.Port && p.Port == 80 })
		case "81/UDP":
			return f.Port.Protocol == ir.UDP && slices.ContainsFunc(snap.Service(f.Port.Service).Ports, func(p snapshot.ServicePort) bool { return p.Name == f.Port.Port && p.Port == 81 })
		}
		return f.Port.Port == text
	})
	return (len(to.Services.Names) == 0 || slices.Contains(to.Services.Names, f.Port.Service.Name)) &&
		(len(to.Frontends) == 0 || slices.Contains(to.Frontends, f.Kind.String())) && (len(to.Ports) == 0 || port)
}

// packets returns packets to a frontend from the first and last address of every range in play, and
// their neighbours.
func (d *judge) packets(c *Contract, p *ir.Program, f *ir.Frontend) (out []sim.Packet) {
	ranges := slices.Concat(d.input.Pods(), reviewtest.Prefixes("198.18.0.0/15", "192.0.2.0/24", "2001:db8::/32", "100.64.0.0/10", "fd00::/8"))
	for _, text := range c.Clients.External {
		if r, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, r)
		} else {
			a := netip.MustParseAddr(text)
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, r := range f.SourceRanges {
		ranges = append(ranges, r.Prefix)
	}
	if p.Node.Detector.Prefix.IsValid() {
		ranges = append(ranges, p.Node.Detector.Prefix)
	}
	points := map[netip.Addr]bool{}
	add := func(some ...netip.Addr) {
		for _, a := range some {
			if p.Family.Has(a) {
				points[a] = true
			}
		}
	}
	for _, r := range ranges {
		first, last := r.Masked().Addr(), ir.LastOf(r)
		add(first.Prev(), first, first.Next(), first.Next().Next(), last.Prev(), last, last.Next())
	}
	for _, pod := range d.pods {
		add(pod.addr)
	}
	for _, n := range d.input.Snapshot.Nodes() {
		for _, a := range n.Addresses {
			add(netip.MustParseAddr(a.Address))
		}
	}
	for _, s := range p.Services {
		if s.Name == f.Port.Service {
			for _, pool := range s.Pools {
				for _, b := range pool.Backends {
					add(b.AddrPort.Addr())
				}
			}
		}
	}
	interfaces := []string{"eth0"}
	if p.Node.Detector.Interface != "" {
		interfaces = append(interfaces, "cni0", "cni7")
	}
	dsts := []netip.Addr{f.Match.Addr}
	if f.Match.IsNodePort() {
		dsts = nil
		candidates := append(slices.Clone(p.Node.Addrs), p.Family.Localhost())
		for _, prefix := range p.Node.NodePorts.Prefixes {
			candidates = append(candidates, prefix.Prefix.Addr())
		}
		for _, a := range candidates {
			if p.Node.NodePorts.Has(a, p.Node.HasAddr(a)) {
				dsts = append(dsts, a)
			}
		}
	}
	for _, dst := range dsts {
		pkt := sim.Packet{Dst: dst, Protocol: f.Match.Protocol, Port: f.Match.Port}
		for a := range points {
			pkt.Src = a
			for _, pkt.In = range interfaces {
				out = append(out, pkt)
			}
		}
		pkt.In = ""
		for _, pkt.Src = range append(slices.Clone(p.Node.Addrs), dst) {
			out = append(out, pkt)
		}
	}
	return out
}

// packet returns whether a packet violates a contract, and whether it can exist.
func (d *judge) packet(c *Contract, p *ir.Program, evaluator *sim.Evaluator, f *ir.Frontend, pkt sim.Packet, node string) (bool, answer) {
	is := d.client(&c.Clients, pkt, node, c.Require == onlyFrom)
	if c.Require == onlyFrom {
		is = yes - is
	}
	if is == no || !d.exists(p, pkt) || !d.arrives(p, pkt, node, f.Match.IsNodePort()) {
		return false, no
	}
	out := evaluator.Outcome(pkt, nil)
	served := len(out.Destinations) > 0
	if f.Match.IsNodePort() { // an address of a Service comes first
		for _, s := range p.Services {
			for _, o := range s.Frontends {
				if o.Match == (ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port}) && evaluator.Decide(pkt).Frontend != f {
					return false, no
				}
			}
		}
	}
	switch c.Require {
	case never, onlyFrom:
		return served, is
	case always:
		return out.Fate != sim.Accepted || len(out.Fallback) > 0, is
	}
	for _, to := range out.Destinations {
		if to.SNAT && to.AddrPort.Addr() != pkt.Src {
			return true, is
		}
	}
	return false, no
}

// exists reports whether a node can receive a packet.
func (d *judge) exists(p *ir.Program, pkt sim.Packet) bool {
	node, known := d.carrying[p]
	carried := func(a netip.Addr) bool { return node.Carries != nil && node.Carries(a) }
	if !known {
		node = prove.NodeOf(p)
		d.carrying[p] = node
		d.services[p] = map[netip.Addr]bool{}
		for _, s := range p.Services {
			for _, f := range s.Frontends {
				if f.Kind != ir.ExternalIP || carried(f.Match.Addr) {
					d.services[p][f.Match.Addr] = true
				}
			}
		}
	}
	own := slices.Contains(node.Addrs, pkt.Src)
	if pkt.In == "" {
		if pkt.Dst.IsLoopback() || !slices.Contains(node.Addrs, pkt.Dst) && carried(pkt.Dst) {
			return pkt.Src == pkt.Dst
		}
		return own
	}
	dropped := pkt.Src.IsLoopback() || pkt.Src.IsMulticast() || pkt.Src.IsUnspecified() || pkt.Src.Is4() && (pkt.Src.As4()[0] == 0 || pkt.Src == netip.AddrFrom4([4]byte{255, 255, 255, 255}))
	on, _ := d.owners(pkt.Src)
	return !pkt.Dst.IsLoopback() && !own && (!d.services[p][pkt.Src] || on != "" && !carried(pkt.Src)) && !dropped
}

// owners returns the Node that has an address, and the pods that have it.
func (d *judge) owners(a netip.Addr) (string, []judgedPod) {
	if len(d.known) == 0 {
		d.known[netip.Addr{}] = owner{}
		for _, n := range d.input.Snapshot.Nodes() {
			for _, text := range n.Addresses {
				d.known[netip.MustParseAddr(text.Address)] = owner{node: n.Name}
			}
		}
		for _, p := range d.pods {
			o := d.known[p.addr]
			o.pods = append(o.pods, p)
			d.known[p.addr] = o
		}
	}
	return d.known[a].node, d.known[a].pods
}

// arrives reports whether the owner of the source sends such a packet to the node.
func (d *judge) arrives(p *ir.Program, pkt sim.Packet, node string, nodePort bool) bool {
	if pkt.In == "" {
		return true
	}
	on, pods := d.owners(pkt.Src)
	if on == "" {
		from := map[string]bool{}
		for _, pod := range pods {
			from[pod.node] = true
		}
		if len(from) == 1 {
			on = slices.Collect(maps.Keys(from))[0]
		}
	}
	if on == "" {
		return true
	}
	if on != node && !nodePort {
		return false
	}
	switch d := &p.Node.Detector; d.Mode {
	case ir.DetectInterface, ir.DetectPrefix:
		return d.IsPod(pkt.Src, pkt.In) == (on == node)
	}
	return true
}

// client returns whether a packet is from a client. A node that runs a pod of the host network is a
// client, unless only clients are admitted.
func (d *judge) client(c *Clients, pkt sim.Packet, node string, strict bool) (is answer) {
	named := func(name string) bool { return c.Nodes.All || slices.Contains(c.Nodes.Names, name) }
	if c.Anyone {
		return yes
	}
	if pkt.In == "" {
		if named(node) {
			return yes
		}
		if strict || c.Pods == nil {
			return no
		}
		for _, pod := range d.pods {
			if on, _ := d.owners(pod.addr); on == node && (c.Pods.Namespace == "" || c.Pods.Namespace == pod.namespace) {
				return yes
			}
		}
		return no
	}
	on, pods := d.owners(pkt.Src)
	if on != "" && named(on) {
		return yes
	}
	if on != "" && strict {
		return no
	}
	inPods := slices.ContainsFunc(d.input.Pods(), func(r netip.Prefix) bool { return r.Contains(pkt.Src) })
	switch {
	case len(pods) > 0:
		for _, pod := range pods {
			if c.Pods != nil && (c.Pods.Namespace == "" || c.Pods.Namespace == pod.namespace) {
				return yes
			}
		}
		return no
	case on != "":
		return no
	case inPods && c.Pods == nil:
		return no
	case inPods && c.Pods.Namespace == "":
		return yes
	case inPods:
		return maybe
	}
	for _, text := range c.External {
		r, err := netip.ParsePrefix(text)
		if err != nil {
			r = netip.PrefixFrom(netip.MustParseAddr(text), netip.MustParseAddr(text).BitLen())
		}
		if r.Contains(pkt.Src) {
			return yes
		}
	}
	return no
}
