package contract

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
)

// network is what an input states about the addresses of pods and nodes.
type network struct {
	ranges []netip.Prefix // of pods, without those in others
	pods   []*pod
	at     map[netip.Addr]*place
	known  []netip.Addr // the keys of at, sorted
	places []*place     // of known
}

// place is what has an address.
type place struct {
	node string // the node that has it as its own; "" for none
	pods []*pod
	on   string     // the node from which its packets come; "" if unknown
	last netip.Addr // the last known address that follows without a gap
}

// pod is a pod of the input.
type pod struct {
	name     ir.Name
	selector map[string]string // labels that it surely has
	labels   map[string]string // all its labels; nil if unknown
	addrs    []netip.Addr      // empty if unknown
	node     string
}

// newNetwork collects the pods of EndpointSlices, and those of workloads. A workload's pods have the
// addresses of the cluster's pod ranges. If these are unknown, standIns returns their addresses.
func newNetwork(j *review.Input, standIns func(*snapshot.Workload, ir.Family) []snapshot.Endpoint) *network {
	n := &network{at: map[netip.Addr]*place{}}
	for _, r := range slices.SortedFunc(slices.Values(j.Pods()), func(a, b netip.Prefix) int { return a.Bits() - b.Bits() }) {
		if !contains(n.ranges, r.Addr()).IsValid() {
			n.ranges = append(n.ranges, r.Masked())
		}
	}
	byName := map[ir.Name]*pod{}
	n.endpointPods(j, byName)
	n.workloadPods(j, byName, standIns)
	if len(n.ranges) == 0 && len(j.Snapshot.Workloads()) > 0 {
		n.anyPods(j, standIns)
	}
	for _, p := range n.pods {
		for _, a := range p.addrs {
			to := n.place(a)
			if len(to.pods) == 0 {
				to.on = p.node
			} else if to.on != p.node { // one of them is gone
				to.on = ""
			}
			to.pods = append(to.pods, p)
		}
	}
	for _, node := range j.Snapshot.Nodes() {
		for _, text := range node.Addresses {
			if a, ok := inet.ParseAddr(text.Address); ok {
				to := n.place(a)
				to.node, to.on = node.Name, node.Name
			}
		}
	}
	n.known = slices.SortedFunc(maps.Keys(n.at), netip.Addr.Compare)
	n.places = make([]*place, len(n.known))
	for i, a := range slices.Backward(n.known) {
		n.places[i] = n.at[a]
		n.places[i].last = a
		if i+1 < len(n.known) && a.Next() == n.known[i+1] {
			n.places[i].last = n.places[i+1].last
		}
	}
	return n
}

// named returns the pod with a name, and adds it if necessary.
func (n *network) named(byName map[ir.Name]*pod, name ir.Name) *pod {
	p := byName[name]
	if p == nil {
		p = &pod{name: name}
		byName[name], n.pods = p, append(n.pods, p)
	}
	return p
}

// endpointPods adds the pods of EndpointSlices.
func (n *network) endpointPods(j *review.Input, byName map[ir.Name]*pod) {
	written := j.Reader.Written()
	for _, slice := range j.Snapshot.Document().Slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Pod == "" || slice.Assumed() || !e.Addr.IsValid() {
				continue
			}
			p := n.named(byName, ir.Name{Namespace: slice.Name.Namespace, Name: e.Pod})
			p.addrs, p.node = append(p.addrs, e.Addr), cmp.Or(p.node, e.NodeName)
			if svc := j.Snapshot.Service(slice.Service); svc != nil && len(written[svc.Object].Selector) > 0 {
				selector := maps.Clone(written[svc.Object].Selector)
				maps.Copy(selector, p.selector)
				p.selector = selector
			}
		}
	}
}

// workloadPods adds the pods of workloads, and those that are themselves in the input.
func (n *network) workloadPods(j *review.Input, byName map[ir.Name]*pod, standIns func(*snapshot.Workload, ir.Family) []snapshot.Endpoint) {
	for _, w := range j.Snapshot.Workloads() {
		if w.Kind == "Pod" && len(w.IPs) > 0 {
			p := n.named(byName, w.Name)
			p.labels, p.node = orEmpty(w.Labels), w.NodeName
			for _, text := range w.IPs {
				if a, ok := inet.ParseAddr(text); ok {
					p.addrs = append(p.addrs, a)
				}
			}
			continue
		}
		for _, f := range ir.Families() {
			for _, e := range standIns(w, f) {
				p := &pod{name: ir.Name{Namespace: w.Name.Namespace, Name: e.Pod}, labels: orEmpty(w.Labels), node: e.NodeName}
				if j.AssumedNodes() && w.Kind != "DaemonSet" && w.NodeName == "" { // clients may be on other nodes than backends
					p.node = ""
				}
				if len(n.ranges) == 0 || w.HostNetwork {
					p.addrs = []netip.Addr{e.Addr}
				}
				n.pods = append(n.pods, p)
			}
		}
	}
}

// anyPods adds a pod of each namespace with workloads on each Node, since any pod may run there. Its
// labels are those of no contract.
func (n *network) anyPods(j *review.Input, standIns func(*snapshot.Workload, ir.Family) []snapshot.Endpoint) {
	namespaces := map[string]bool{}
	for _, w := range j.Snapshot.Workloads() {
		namespaces[w.Name.Namespace] = true
	}
	for _, node := range j.Snapshot.Nodes() {
		for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
			name := ir.Name{Namespace: namespace, Name: "any-on-" + node.Name}
			p := &pod{name: name, labels: map[string]string{}, node: node.Name}
			for _, f := range ir.Families() {
				for _, e := range standIns(&snapshot.Workload{Kind: "Pod", Name: name, Object: "Node " + node.Name, Pods: 1, NodeName: node.Name}, f) {
					p.addrs = append(p.addrs, e.Addr)
				}
			}
			n.pods = append(n.pods, p)
		}
	}
}

func (n *network) place(a netip.Addr) *place {
	if n.at[a] == nil {
		n.at[a] = &place{}
	}
	return n.at[a]
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// answer is whether an address is one of a contract's clients. It is maybe for an address of the pod
// ranges, which may belong to such a pod, and for a pod whose labels are unknown.
type answer uint8

const (
	no answer = iota
	maybe
	yes
)

// selects returns whether the selector includes a pod.
func (s *Pods) selects(p *pod) answer {
	if s.Namespace != "" && p.name.Namespace != s.Namespace {
		return no
	}
	out := yes
	for key, value := range s.Labels {
		got, has := p.labels[key]
		if p.labels == nil {
			got, has = p.selector[key]
		}
		switch {
		case has && got == value:
		case has || p.labels != nil:
			return no
		default:
			out = maybe
		}
	}
	return out
}

// any reports whether the selector includes every pod.
func (s *Pods) any() bool { return s.Namespace == "" && len(s.Labels) == 0 }

// members are a contract's clients in a network.
type members struct {
	*Clients
	*network
	some [yes + 1][]netip.Addr // the known addresses by answer, sorted; none for no
	host map[string]answer     // whether processes with the address of a node are clients
}

func newMembers(c *Clients, n *network) *members {
	m := &members{Clients: c, network: n, host: map[string]answer{}}
	switch {
	case c.Anyone:
		m.some[yes] = n.known
	case c.Pods != nil || !c.Nodes.IsZero():
		for i, a := range n.known {
			at := n.places[i]
			is := m.owner(at)
			if is != no {
				m.some[is] = append(m.some[is], a)
			}
			if at.node != "" {
				m.host[at.node] = max(m.host[at.node], is)
			}
		}
	}
	return m
}

// owner returns whether an owner of a known address is a client.
func (m *members) owner(at *place) (out answer) {
	if at.node != "" && m.Nodes.has(at.node) {
		return yes
	}
	if m.Pods != nil {
		for _, p := range at.pods {
			out = max(out, m.Pods.selects(p))
		}
	}
	return out
}

// unknown returns whether an address that no object of the input has is a client's.
func (m *members) unknown(a netip.Addr) answer {
	if contains(m.ranges, a).IsValid() {
		switch {
		case m.Anyone, m.Pods != nil && m.Pods.any():
			return yes
		case m.Pods != nil:
			return maybe
		}
		return no
	}
	if m.Anyone || contains(m.external, a).IsValid() {
		return yes
	}
	return no
}

// thisNode returns whether packets of the node itself are from a client.
func (m *members) thisNode(v *view) answer {
	if m.Anyone || m.Nodes.has(v.node) {
		return yes
	}
	return m.host[v.node]
}

// contains returns the first prefix that contains an address, or an invalid one.
func contains(list []netip.Prefix, a netip.Addr) netip.Prefix {
	if i := slices.IndexFunc(list, func(p netip.Prefix) bool { return p.Contains(a) }); i >= 0 {
		return list[i]
	}
	return netip.Prefix{}
}

// view is what one node receives.
type view struct {
	node     string
	family   ir.Family
	never    map[netip.Addr]bool // never the source of incoming packets: addresses of the node and of Services
	detector *ir.Detector
}

// packets are incoming packets to a frontend, from a range of sources.
type packets struct {
	prove.Addrs
	in       string // the interface
	anyIn    bool   // the packets can have any interface, since it does not matter
	nodePort bool
	but      netip.Addr // a source in the range without such packets, or invalid
}

// martians are sources whose packets every kernel drops.
var martians = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"), netip.MustParsePrefix("::/127"), netip.MustParsePrefix("ff00::/8")}

// global are the addresses that are preferred as an example.
var global = netip.MustParsePrefix("2000::/3")

// arrives reports whether the owner of a known address sends such packets to the node. A pod sends
// its packets to its own node, on an interface of pods. It sends them to other nodes only for node
// ports.
func (m *members) arrives(v *view, p *packets, a netip.Addr) bool {
	on := m.at[a].on
	if on == "" {
		return true
	}
	if !p.anyIn && v.detector.IsPod(a, p.in) != (on == v.node) {
		return false
	}
	return on == v.node || p.nodePort
}

// client returns a client that can send such packets: a certain one, or else a possible one.
func (m *members) client(v *view, p *packets) (netip.Addr, answer) {
	spaces := slices.Concat(m.external, m.ranges)
	if m.Anyone {
		spaces = []netip.Prefix{global, ir.FamilyOf(p.First).Any()}
	}
	for _, want := range [...]answer{yes, maybe} {
		for _, space := range spaces {
			if a := m.first(v, p, space, want); a.IsValid() {
				return a, want
			}
		}
		if a := m.among(v, p, m.some[want], func(netip.Addr) bool { return true }); a.IsValid() {
			return a, want
		}
	}
	return netip.Addr{}, no
}

// other returns another client that can send such packets, and yes; or else an address that may be
// another client's, and maybe.
func (m *members) other(v *view, p *packets) (netip.Addr, answer) {
	if m.Anyone {
		return netip.Addr{}, no
	}
	for _, space := range [...]netip.Prefix{global, ir.FamilyOf(p.First).Any()} {
		if a := m.first(v, p, space, no); a.IsValid() {
			return a, yes
		}
	}
	if a := m.among(v, p, m.known, func(a netip.Addr) bool {
		at := m.at[a]
		return m.owner(at) == no || at.node != "" && !m.Nodes.has(at.node)
	}); a.IsValid() {
		return a, yes
	}
	for _, space := range m.ranges {
		if a := m.first(v, p, space, maybe); a.IsValid() {
			return a, maybe
		}
	}
	if a := m.among(v, p, m.some[maybe], func(netip.Addr) bool { return true }); a.IsValid() {
		return a, maybe
	}
	return netip.Addr{}, no
}

// among returns the first of some sorted known addresses that can send such packets and is accepted.
func (m *members) among(v *view, p *packets, some []netip.Addr, accept func(netip.Addr) bool) netip.Addr {
	i, _ := slices.BinarySearchFunc(some, p.First, netip.Addr.Compare)
	for ; i < len(some) && some[i].Compare(p.Last) <= 0; i++ {
		if some[i] != p.but && !v.never[some[i]] && m.arrives(v, p, some[i]) && accept(some[i]) {
			return some[i]
		}
	}
	return netip.Addr{}
}

// first returns the first address in a range and a space that no object has, that can be a source,
// and for which unknown returns an answer.
func (m *members) first(v *view, p *packets, space netip.Prefix, want answer) netip.Addr {
	a, last := space.Masked().Addr(), ir.LastOf(space)
	if a.Less(p.First) {
		a = p.First
	}
	if p.Last.Less(last) {
		last = p.Last
	}
	fits := func(a netip.Addr) bool {
		return a.IsValid() && a.Compare(last) <= 0 && a != p.but && m.unknown(a) == want && m.at[a] == nil && !v.never[a] && !contains(martians, a).IsValid()
	}
	for a.IsValid() && a.Compare(last) <= 0 {
		if fits(a) {
			if next := a.Next(); fits(next) { // 192.0.2.1 rather than 192.0.2.0
				return next
			}
			return a
		}
		is, end := m.unknown(a), a // end is the last address that is known to have the same answer
		if p := contains(martians, a); p.IsValid() {
			end = ir.LastOf(p)
		} else if at := m.at[a]; at != nil {
			end = at.last
		} else if p := contains(m.ranges, a); is != want && p.IsValid() {
			end = ir.LastOf(p)
		} else if p := contains(m.external, a); is != want && p.IsValid() {
			end = ir.LastOf(p)
			for _, pods := range m.ranges {
				if first := pods.Addr(); a.Less(first) && first.Compare(end) <= 0 {
					end = first.Prev()
				}
			}
		}
		a = end.Next()
	}
	return netip.Addr{}
}
