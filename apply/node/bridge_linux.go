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
	*netlink.LinkAttrs
	family   ir.Family
	filtered bool // frames pass the rules (br_netfilter)
	forwards bool // the bridge forwards what the rules translate: not in mode ipvs, or to a process
	whole    bool // at has the addresses behind all ports
	at       map[netip.Addr]*port
}

// port is a port of a Bridge.
type port struct {
	*netlink.LinkAttrs
	addrs []netip.Prefix // of the namespace at its other end
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
	byIndex := map[int]*Bridge{}
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "bridge" {
			filtered := Filtered(p.Family, a.Name)
			forwards := filtered && p.Node.IPVS == nil && !p.Node.Mode.ByProcess()
			b := &Bridge{a, p.Family, filtered, forwards, true, map[netip.Addr]*port{}}
			all[a.Name], byIndex[a.Index] = b, b
		}
	}
	if len(all) == 0 || err != nil {
		return nil, err
	}
	settings, err := portSettings()
	// Without strict checks, the kernel returns the addresses of the own namespace.
	s, socketErr := socket.Dial(socket.Config{Protocol: unix.NETLINK_ROUTE, Setup: func(c *mdlayher.Conn) error { return c.SetOption(mdlayher.GetStrictCheck, true) }})
	if errors.Is(socketErr, unix.ENOPROTOOPT) { // before Linux 4.20, which cannot return those of another one
		return nil, nil
	}
	if err = errors.Join(err, socketErr); err != nil {
		return nil, fmt.Errorf("ports of bridges: %w", err)
	}
	defer s.Close()
	for _, l := range links {
		a := l.Attrs()
		b := byIndex[a.MasterIndex]
		if a.Protinfo = settings[a.Index]; b == nil || a.Protinfo == nil {
			continue
		}
		addrs, ends := addrsBehind(ctx, s, p.Family, a)
		of := &port{a, addrs}
		for _, addr := range addrs {
			b.at[addr.Addr()] = of
		}
		b.whole = b.whole && ends
	}
	return all, nil
}

// portSettings returns the settings of ports of bridges, by index.
func portSettings() (all map[int]*netlink.Protinfo, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	all = map[int]*netlink.Protinfo{}
	for _, m := range answers {
		if l, err := netlink.LinkDeserialize(&unix.NlMsghdr{Type: unix.RTM_NEWLINK}, m); err == nil {
			all[l.Attrs().Index] = l.Attrs().Protinfo
		}
	}
	return all, err
}

// addrsBehind returns the addresses of a family of the network namespace at the other end of a port, of those that other
// machines can reach, with the networks of the other end. ends reports whether it has addresses: a port of another bridge has none.
func addrsBehind(ctx context.Context, s *socket.Socket, f ir.Family, of *netlink.LinkAttrs) (all []netip.Prefix, ends bool) {
	if of.NetNsID < 0 {
		return nil, false
	}
	data := make([]byte, unix.SizeofIfAddrmsg)
	data[0] = byte(addressFamily[f])
	data = append(data, nl.NewRtAttr(unix.IFA_TARGET_NETNSID, binary.NativeEndian.AppendUint32(nil, uint32(of.NetNsID))).Serialize()...)
	get := mdlayher.Message{Header: mdlayher.Header{Type: unix.RTM_GETADDR, Flags: mdlayher.Request | mdlayher.Dump}, Data: data}
	interrupted, err := s.Ask(ctx, get, func(data []byte) error {
		attrs, err := nl.ParseRouteAttr(data[unix.SizeofIfAddrmsg:])
		for _, attr := range attrs {
			addr, ok := netip.AddrFromSlice(attr.Value)
			if !ok || attr.Attr.Type != unix.IFA_ADDRESS || !addr.IsGlobalUnicast() {
				continue
			}
			bits := addr.BitLen()
			if binary.NativeEndian.Uint32(data[4:]) == uint32(of.ParentIndex) {
				bits, ends = int(data[1]), true
			}
			all = append(all, netip.PrefixFrom(addr, bits))
		}
		return err
	})
	return all, ends && err == nil && !interrupted
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
	case to.RawFlags&unix.IFF_LOWER_UP == 0:
		return "no carrier on port " + to.Name + " of bridge " + b.Name
	case from == nil:
	case from.Protinfo.Isolated && to.Protinfo.Isolated && (b.forwards || direct):
		return fmt.Sprintf("isolated ports %s and %s of bridge %s", from.Name, to.Name, b.Name)
	case from == to && b.forwards && !to.Protinfo.Hairpin:
		return fmt.Sprintf("hairpin mode is off on port %s of bridge %s, so the pod cannot reach itself", to.Name, b.Name)
	case direct && !b.filtered:
		return fmt.Sprintf("replies of pods to others on bridge %s bypass the rules: net.bridge.bridge-nf-call-%s must be 1 (module br_netfilter)", b.Name, ir.Pick(b.family, "iptables", "ip6tables"))
	}
	return ""
}

// lost returns what bridges do to connections between pods. One example of each is enough. That a pod cannot reach itself is not
// among them, since it is usual: the bridge plugin of CNI has hairpin mode off by default. Stops returns it.
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
		clients := []netip.Addr{{}} // to an address that no port leads to, all are alike
		if b.at[addr] != nil {
			clients = slices.AppendSeq(clients, maps.Keys(b.at))
			clients = slices.DeleteFunc(clients, func(src netip.Addr) bool { return b.at[src] == b.at[addr] })
		}
		slices.SortFunc(clients, netip.Addr.Compare)
		for _, src := range clients {
			masqueraded := p.Node.MasqueradeAll || p.Node.Mode.ByProcess() || p.Node.Detector.Mode != ir.DetectNone && !p.Node.Detector.IsPod(src, by)
			why := b.Stops(src, addr, masqueraded)
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

// absent returns that no pod has an address, if that is known: the route to it has no gateway, and no machine with it has
// answered on the bridge.
func (b *Bridge) absent(addr netip.Addr) string {
	routes, routeErr := netlink.RouteGet(addr.AsSlice())
	all, err := netlink.NeighList(b.Index, addressFamily[b.family])
	if b.whole && len(b.at) > 0 && errors.Join(routeErr, err) == nil && len(routes) > 0 && routes[0].Gw == nil && routes[0].Via == nil && !slices.ContainsFunc(all, func(n netlink.Neigh) bool {
		return n.IP.Equal(addr.AsSlice()) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0
	}) {
		return "no port of bridge " + b.Name + " leads to it"
	}
	return ""
}
