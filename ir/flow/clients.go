package flow

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Kind is a kind of client, for display.
type Kind uint8

const (
	Outside       Kind = iota // any other client
	PodsHere                  // pods on the node
	PodsElsewhere             // pods on other nodes
	Pods                      // pods, if their node is unknown
	ThisNode                  // the node itself
)

// String returns the kind in words.
func (k Kind) String() string {
	return [...]string{"outside", "pods on this node", "pods elsewhere", "pods", "this node"}[k]
}

// MarshalText returns the kind in words.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Network describes what the Programs lack. It affects only the descriptions and
// effects of changes. All fields are optional.
type Network struct {
	Here []netip.Prefix // ranges of pods on the node
	Pods []netip.Prefix // ranges of all pods
	// Shown returns the prefixes of a list that are shown.
	Shown func([]netip.Prefix) []netip.Prefix
	// Sides are the workloads before and after.
	Sides [2]Workloads
}

// Workloads are the workloads of a side. They are safe for concurrent use.
type Workloads interface {
	// Endpoints returns the addresses behind a Service, each with its workloads.
	Endpoints(ir.Name) map[netip.Addr][]string
	// Paused returns a workload without pods behind a new Service; "" for none.
	Paused(ir.Name) string
	// Ports returns the ports that a workload declares, with their names and protocols.
	Ports(workload string) map[uint16]string
}

// Clients are all or some clients of one kind.
type Clients struct {
	Kind Kind `json:"kind"`
	// All reports whether these are all clients of the kind.
	All bool `json:"all"`
	// Prefixes contain the addresses of these clients. Addresses of the node are
	// excluded for incoming packets, which never have them as source.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"` // empty if All
	// But is the addresses of the kind that are not included, unless All.
	But []netip.Prefix `json:"but,omitempty"`
	// Interface is the input interface, or its prefix followed by "*"; "" for
	// any. It is set for pods on the node that the rules detect by interface,
	// whatever their addresses.
	Interface string `json:"interface,omitempty"`
	// NotBy are excluded interfaces, in the same form.
	NotBy []string `json:"notBy,omitempty"`
	// Itself reports whether these clients are backends of the flow.
	Itself bool `json:"itself,omitempty"`
}

// String describes the clients: "outside", "outside but 192.0.2.0/24",
// "10.244.1.7 (pods on this node)".
func (c *Clients) String() string {
	const few = 4
	var text string
	switch {
	case c.All:
		text = c.Kind.String()
	case len(c.But) > 0 && len(c.But) < len(c.Prefixes):
		text = c.Kind.String() + " but " + some(c.But, few)
	case c.Itself:
		text = some(c.Prefixes, few) + " (" + itself(c.Prefixes) + ", " + c.Kind.String() + ")"
	default:
		text = some(c.Prefixes, few) + " (" + c.Kind.String() + ")"
	}
	if c.Interface != "" && !(c.All && c.Kind == PodsHere) {
		text += " by " + c.Interface
	}
	return text
}

// itself returns the description of clients that are backends.
func itself(some []netip.Prefix) string {
	if len(some) == 1 && some[0].IsSingleIP() {
		return "a backend itself"
	}
	return "backends themselves"
}

// some joins the first prefixes of a list and counts the rest.
func some(list []netip.Prefix, most int) string {
	words := make([]string, 0, most+1)
	for i, p := range list {
		if i == most {
			words = append(words, fmt.Sprintf("%d more", len(list)-most))
			break
		}
		if p.IsSingleIP() {
			words = append(words, p.Addr().String())
		} else {
			words = append(words, p.String())
		}
	}
	return strings.Join(words, ", ")
}

// ClientsText describes a list of clients.
func ClientsText(all []Clients) string {
	whole := map[Kind]bool{}
	words := make([]string, len(all))
	for i := range all {
		words[i] = all[i].String()
		whole[all[i].Kind] = whole[all[i].Kind] || all[i].All
	}
	if whole[Outside] && whole[ThisNode] && (whole[Pods] || whole[PodsElsewhere] && whole[PodsHere]) && len(all) == len(whole) {
		return "all clients"
	}
	return strings.Join(words, ", ")
}

// network is a Network of one family, with everything that both sides
// distinguish.
type network struct {
	family     ir.Family
	own        ranges // of the node
	never      ranges // never the source of incoming packets
	all        ranges
	here, pods ranges
	outside    ranges          // not pods
	elsewhere  ranges          // pods on other nodes
	detectors  []sim.Interface // that detect pods
	shown      func([]netip.Prefix) []netip.Prefix
	workloads  [2]Workloads
}

func newNetwork(n Network, of prove.Node, a, b *ir.Program) *network {
	x := &network{family: of.Family, shown: n.Shown, workloads: n.Sides}
	if x.shown == nil {
		x.shown = func(all []netip.Prefix) []netip.Prefix { return all }
	}
	own := []netip.Prefix{}
	for _, addr := range of.Addrs {
		own = append(own, netip.PrefixFrom(addr, addr.BitLen()))
	}
	pods := slices.Concat(n.Pods, n.Here)
	for _, p := range [...]*ir.Program{a, b} {
		switch d := &p.Node.Detector; d.Mode {
		case ir.DetectCIDR:
			pods = append(pods, d.Prefix)
		case ir.DetectInterface:
			x.detectors = append(x.detectors, sim.Interface{Name: d.Interface})
		case ir.DetectPrefix:
			x.detectors = append(x.detectors, sim.Interface{Name: d.Interface, Prefix: true})
		}
	}
	if len(x.detectors) == 2 && x.detectors[0] == x.detectors[1] {
		x.detectors = x.detectors[:1]
	}
	x.own = rangesOf(of.Family, own...)
	x.never = rangesOf(of.Family, append(own, of.Family.Loopback())...)
	x.here, x.pods = rangesOf(of.Family, n.Here...), rangesOf(of.Family, pods...)
	x.all = rangesOf(of.Family, of.Family.Any())
	x.outside, x.elsewhere = x.all.without(x.pods), x.pods.without(x.here)
	return x
}

// isPod reports whether packets from an interface count as packets from pods of
// the node.
func (n *network) isPod(in string) bool {
	return slices.ContainsFunc(n.detectors, func(d sim.Interface) bool { return d.Matches(in) })
}

// split reports whether one of the interfaces that rules name detects pods.
func (n *network) split(named []sim.Interface) bool {
	return slices.ContainsFunc(named, func(in sim.Interface) bool { return slices.Contains(n.detectors, in) })
}

// way is the origin of packets: the node itself, a named interface, or any other
// interface ("").
type way struct {
	node bool
	in   string
}

// wayOf returns the way of a class, and the interfaces that it excludes.
func wayOf(c *prove.Class) (w way, not []string) {
	if c.Packet.FromNode() {
		return way{node: true}, nil
	}
	for _, in := range c.Named {
		name := in.Name
		if in.Prefix {
			name += "*"
		}
		switch {
		case !in.Matches(c.Packet.In):
			not = append(not, name)
		case w.in == "" || !in.Prefix || len(name) > len(w.in): // the most specific
			w.in = name
		}
	}
	slices.Sort(not)
	return w, not
}

// clients describes the clients of a set of classes with one destination.
func (n *network) clients(dst netip.Addr, carried bool, classes []*prove.Class) (out []Clients) {
	sources := map[way][]prove.Addrs{}
	notBy := map[way][]string{}
	for _, c := range classes {
		w, not := wayOf(c)
		notBy[w] = not
		sources[w] = append(sources[w], c.Src)
	}
	of := map[way]ranges{}
	ways := make([]way, 0, len(sources))
	for w, all := range sources {
		of[w] = newRanges(all)
		ways = append(ways, w)
	}
	slices.SortFunc(ways, func(a, b way) int { return cmp.Compare(a.in, b.in) })
	for _, w := range ways {
		if w.node {
			own := n.own
			if carried || dst.IsLoopback() { // the kernel uses it as the source, too
				own = ranges{{First: dst, Last: dst}}
			}
			out = append(out, n.clientsOf(ThisNode, own, of[w], nil, "")...)
			continue
		}
		from := len(out)
		out = n.incoming(out, w.in, of[w], n.split(classes[0].Named))
		for i := range out[from:] {
			out[from+i].NotBy = notBy[w]
		}
	}
	slices.SortStableFunc(out, func(a, b Clients) int { return cmp.Compare(a.Kind, b.Kind) })
	return out
}

// incoming describes clients whose packets arrive on an interface, or on any
// unnamed one. split reports whether pods are detected by interface instead of
// address.
func (n *network) incoming(out []Clients, in string, of ranges, split bool) []Clients {
	if in != "" && n.isPod(in) {
		return append(out, n.clientsOf(PodsHere, n.all, of, n.never, in)...)
	}
	out = append(out, n.clientsOf(Outside, n.outside, of, n.never, in)...)
	switch {
	case split: // those on the node use another interface
		return append(out, n.clientsOf(PodsElsewhere, n.pods, of, n.never, in)...)
	case len(n.here) == 0:
		return append(out, n.clientsOf(Pods, n.pods, of, n.never, in)...)
	}
	out = append(out, n.clientsOf(PodsHere, n.here, of, n.never, in)...)
	return append(out, n.clientsOf(PodsElsewhere, n.elsewhere, of, n.never, in)...)
}

// clientsOf returns the clients of one kind among some, or nil. Addresses in
// never are not clients.
func (n *network) clientsOf(k Kind, all, some, never ranges, in string) []Clients {
	meant := some.within(all)
	if len(meant.without(never)) == 0 {
		return nil
	}
	but := n.shown(all.without(meant).without(never).prefixes())
	if len(but) == 0 {
		return []Clients{{Kind: k, All: true, Interface: in}}
	}
	prefixes := n.shown(meant.prefixes())
	if len(prefixes) == 0 { // somebody uses them after all
		prefixes = meant.prefixes()
	}
	return []Clients{{Kind: k, Prefixes: prefixes, But: but, Interface: in}}
}

func allOf[T any](list []T, has func(T) bool) bool {
	return !slices.ContainsFunc(list, func(v T) bool { return !has(v) })
}
