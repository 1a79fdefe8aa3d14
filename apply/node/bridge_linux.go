package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/ir"
)

// Bridge is a bridge of the node, by which pods reach each other.
type Bridge struct {
	name     string
	index    int
	family   ir.Family
	filtered bool // frames pass the rules (br_netfilter)
	forwards bool // the bridge forwards what the rules translate: not in mode ipvs
	whole    bool // at has the addresses behind all ports
	at       map[netip.Addr]*port
}

// port is a port of a Bridge.
type port struct {
	name                         string
	connected, hairpin, isolated bool
	addrs                        []netip.Prefix // of the namespace at its other end
}

// Filtered reports whether an interface is a bridge whose frames of a family pass the rules of iptables and nf_tables.
func Filtered(f ir.Family, name string) bool {
	link, err := netlink.LinkByName(name)
	on, tool := sysctl.CallsIPTables(sysctl.Root("/"), name), ir.Pick(f, "iptables", "ip6tables")
	return err == nil && link.Type() == "bridge" && (strings.Contains(on, "-"+tool) || strings.Contains(on, "_"+tool))
}

// Bridges returns the bridges of the node by name, for packets of a Program. The cost is that of their ports.
func Bridges(ctx context.Context, p *ir.Program) (all map[string]*Bridge, err error) {
	var links []netlink.Link
	err = socket.RetryInterrupted(func() (_ bool, err error) { links, err = netlink.LinkList(); return false, err })
	all = map[string]*Bridge{}
	byIndex, ports := map[int]*Bridge{}, map[int]*netlink.Protinfo{}
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "bridge" {
			filtered := Filtered(p.Family, a.Name)
			b := &Bridge{a.Name, a.Index, p.Family, filtered, filtered && p.Node.IPVS == nil, true, map[netip.Addr]*port{}}
			all[a.Name], byIndex[a.Index] = b, b
		}
	}
	if len(all) == 0 || err != nil {
		return nil, err
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	for _, m := range answers {
		if l, err := netlink.LinkDeserialize(&unix.NlMsghdr{Type: unix.RTM_NEWLINK}, m); err == nil {
			ports[l.Attrs().Index] = l.Attrs().Protinfo
		}
	}
	// Without strict checks, the kernel returns the addresses of the own namespace.
	s, socketErr := socket.Dial(socket.Config{Protocol: unix.NETLINK_ROUTE, Setup: func(c *mdlayher.Conn) error { return c.SetOption(mdlayher.GetStrictCheck, true) }})
	if err = errors.Join(err, socketErr); err != nil {
		return nil, fmt.Errorf("ports of bridges: %w", err)
	}
	defer s.Close()
	for _, l := range links {
		a := l.Attrs()
		b, has := byIndex[a.MasterIndex], ports[a.Index]
		if b == nil || has == nil {
			continue
		}
		of := &port{a.Name, a.RawFlags&unix.IFF_LOWER_UP != 0, has.Hairpin, has.Isolated, nil}
		if a.NetNsID >= 0 {
			of.addrs = addrsIn(ctx, s, p.Family, uint32(a.NetNsID))
		}
		for _, addr := range of.addrs {
			b.at[addr.Addr()] = of
		}
		b.whole = b.whole && len(of.addrs) > 0
	}
	return all, nil
}

// addrsIn returns the addresses of a family of another network namespace, of those that other machines can reach; nil if
// they cannot be read.
func addrsIn(ctx context.Context, s *socket.Socket, f ir.Family, namespace uint32) (all []netip.Prefix) {
	data := make([]byte, unix.SizeofIfAddrmsg)
	data[0] = byte(addressFamily[f])
	data = append(data, nl.NewRtAttr(unix.IFA_TARGET_NETNSID, binary.NativeEndian.AppendUint32(nil, namespace)).Serialize()...)
	get := mdlayher.Message{Header: mdlayher.Header{Type: unix.RTM_GETADDR, Flags: mdlayher.Request | mdlayher.Dump}, Data: data}
	s.Ask(ctx, get, func(data []byte) error {
		attrs, err := nl.ParseRouteAttr(data[unix.SizeofIfAddrmsg:])
		for _, attr := range attrs {
			if addr, ok := netip.AddrFromSlice(attr.Value); ok && attr.Attr.Type == unix.IFA_ADDRESS && addr.IsGlobalUnicast() {
				all = append(all, netip.PrefixFrom(addr, int(data[1])))
			}
		}
		return err
	})
	return all
}

// Direct reports whether packets from a pod to another pass only the bridge.
func (b *Bridge) Direct(from, to netip.Addr) bool {
	p := b.at[from]
	return p != nil && b.at[to] != nil && b.at[to] != p && slices.ContainsFunc(p.addrs, func(n netip.Prefix) bool { return n.Contains(to) })
}

// Stops returns why the bridge prevents connections from an address to an endpoint to which it leads; "" if it does
// not. It forwards frames that rules translate, and the replies of neighbours. The node routes other packets.
func (b *Bridge) Stops(src, dst netip.Addr, masqueraded bool) string {
	from, to := b.at[src], b.at[dst]
	direct := !masqueraded && b.Direct(dst, src)
	switch {
	case to == nil:
		return b.absent(dst)
	case !to.connected:
		return "no carrier on port " + to.name + " of bridge " + b.name
	case from == nil:
	case from.isolated && to.isolated && (b.forwards || direct):
		return fmt.Sprintf("isolated ports %s and %s of bridge %s", from.name, to.name, b.name)
	case from == to && b.forwards && !to.hairpin:
		return fmt.Sprintf("hairpin mode is off on port %s of bridge %s, so the pod cannot reach itself", to.name, b.name)
	case direct && !b.filtered:
		return fmt.Sprintf("replies of pods to others on bridge %s bypass the rules: net.bridge.bridge-nf-call-%s must be 1 (module br_netfilter)", b.name, ir.Pick(b.family, "iptables", "ip6tables"))
	}
	return ""
}

// lost returns what bridges do to connections between pods. One example of each is enough.
func lost(ctx context.Context, p *ir.Program, to map[netip.Addr]Destination) (found []string, err error) {
	all, err := Bridges(ctx, p)
	known := map[string]bool{}
	for _, addr := range slices.SortedFunc(maps.Keys(to), netip.Addr.Compare) {
		if !to[addr].Local || len(all) == 0 {
			continue
		}
		by, _, _ := Route(RouteQuery{Dst: addr})
		b := all[by]
		if b == nil {
			continue
		}
		clients := slices.SortedFunc(maps.Keys(b.at), netip.Addr.Compare)
		for _, src := range append([]netip.Addr{{}}, clients...) {
			why := b.Stops(src, addr, p.Node.MasqueradeAll || !p.Node.Detector.IsPod(src, by))
			if kind, _, _ := strings.Cut(why, " port"); why != "" && !known[kind] {
				from := ""
				if src.IsValid() {
					from = fmt.Sprintf(" from %s by %s", src, by)
				}
				known[kind], found = true, append(found, fmt.Sprintf("route to %s, %s%s: %s", addr, to[addr].of, from, why))
			}
		}
	}
	return found, err
}

// absent returns that no pod has an address, if that is known: no machine with it has answered on the bridge.
func (b *Bridge) absent(addr netip.Addr) string {
	all, err := netlink.NeighList(b.index, addressFamily[b.family])
	if err != nil || !b.whole || len(b.at) == 0 || slices.ContainsFunc(all, func(n netlink.Neigh) bool {
		return n.IP.Equal(addr.AsSlice()) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0
	}) {
		return ""
	}
	return "no port of bridge " + b.name + " leads to it"
}
