package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/proxyc/proxyc/ir"
)

// Discards returns the settings of interfaces, rules of routing and routes with which the kernel
// discards, or may discard, packets of a Program's Services.
// marking returns the foreign rule after which the mark of a packet may match a value and mask; "" for none.
func Discards(ctx context.Context, p *ir.Program, marking func(value, mask uint32) string) (found []string, err error) {
	r, err := readRouting(p, marking)
	found = append(notForwarding(p.Family, r.links), r.unclear...)
	pods, clients, linksErr := neighbours(p.Family, r.rules)
	if gone := Gone(p); gone != "" && len(clients) > 0 && p.Node.NodePorts.Has(p.Node.IP, false) {
		found = append(found, gone)
	}
	to := map[netip.Addr]Destination{}
	for _, c := range clients {
		to[c.Src] = Destination{RouteQuery{Dst: c.Src, Rerouted: true, In: c.In}, "a client on " + c.In}
	}
	maps.Copy(to, Destinations(p))
	networked := slices.ContainsFunc(p.Node.Addrs, netip.Addr.IsGlobalUnicast)
	refused, routeErr := refusals(ctx, append(r.senders, pods...), r.doubtful(to, networked))
	bridged, bridgeErr := lost(ctx, p, to)
	return slices.Concat(found, refused, bridged), errors.Join(err, linksErr, routeErr, bridgeErr)
}

// Gone returns that no interface has the node's address; "" if one has.
func Gone(p *ir.Program) string {
	if at, why, err := Route(RouteQuery{Dst: p.Node.IP}); err != nil || at+why == "" {
		return ""
	}
	return p.Node.IP.String() + " is the node's address by bindAddress or its Node object, and no interface has it: correct it, or restart the kubelet"
}

// sender is a packet whose route may depend on more than its destination. of is its difference from others.
type sender Destination

// refusals asks for the routes of senders to destinations. One example of each sender is enough.
func refusals(ctx context.Context, senders []sender, to []Destination) (found []string, err error) {
	refused := map[netip.Addr]bool{}
	for _, s := range senders {
		for _, d := range to {
			client := d.In != ""
			if refused[d.Dst] || d.Dst == s.Src || client && s.In == "" || d.Rerouted && !client && s.RouteQuery != (RouteQuery{}) {
				continue
			}
			_, why, routeErr := Route(RouteQuery{Src: s.Src, Dst: d.Dst, In: s.In, Mark: s.Mark, Local: d.Local && s.In == "", Rerouted: d.Rerouted})
			err = errors.Join(err, routeErr, context.Cause(ctx))
			if refused[d.Dst] = why != ""; refused[d.Dst] {
				found = append(found, fmt.Sprintf("route to %s, %s%s: %s", d.Dst, d.of, s.of, why))
			}
			if refused[d.Dst] || err != nil {
				break
			}
		}
	}
	return found, err
}

// neighbours returns packets of other machines and pods: linked has one of each network of an interface, and ruled one
// of each that a rule of routing selects, or that rp_filter checks.
func neighbours(f ir.Family, rules []netlink.Rule) (ruled, linked []sender, err error) {
	interfaces, err := Interfaces()
	for _, i := range interfaces {
		for _, n := range i.Addrs {
			if f.Has(n.Addr()) && n.Addr().IsGlobalUnicast() {
				linked = append(linked, neighbour(f, n, i.Name)...)
			}
		}
	}
	selected, asked := map[string]bool{}, map[string]bool{}
	for _, r := range rules {
		alike := fmt.Sprint(r.Priority, r.Table, r.Dst, r.Mark) // a cloud may have one for each pod, and their routes are the same
		if selected[r.IifName] = true; r.Src != nil && r.IifName == "" && !asked[alike] {
			addr, _ := netip.AddrFromSlice(r.Src.IP)
			ones, _ := r.Src.Mask.Size()
			one := neighbour(f, netip.PrefixFrom(addr.Unmap(), ones), "")
			ruled, asked[alike] = append(ruled, one...), one != nil
		}
	}
	return append(ruled, slices.DeleteFunc(slices.Clone(linked), func(s sender) bool { return !selected[s.In] && !strict(f, s.In) })...), linked, err
}

// neighbour returns a packet of another machine or pod of a network that arrives by an interface, or by that to the network
// if in is "".
func neighbour(f ir.Family, n netip.Prefix, in string) []sender {
	src, by := n.Masked().Addr(), ""
	for i := 0; i < 4 && by == ""; i++ { // addresses of the node are no others'
		if n.Contains(src.Next()) {
			src = src.Next()
		}
		by, _, _ = Route(RouteQuery{Dst: src})
	}
	if in = cmp.Or(in, by); by == "" || ForwardingDisabled(f, in) != "" || !connected(in) {
		return nil
	}
	return []sender{{RouteQuery{Src: src, In: in}, fmt.Sprintf(" from %s by %s", src, in)}}
}

// notForwarding returns the settings of IPv4 interfaces that do not forward; IPv6 has no such setting.
func notForwarding(f ir.Family, links map[int]bool) (found []string) {
	for _, index := range slices.Sorted(maps.Keys(links)) {
		if link, err := netlink.LinkByIndex(index); err == nil && f == ir.IPv4 {
			if off := ForwardingDisabled(f, link.Attrs().Name); off != "" {
				found = append(found, off+": the node forwards no packet that arrives by this interface")
			}
		}
	}
	return found
}

// Destination is an address of a Program to which the node routes packets.
type Destination struct {
	RouteQuery
	of string // what has the address
}

// Destinations returns the addresses of a Program to which the node routes packets. It alone sends packets
// to frontends: our rules translate those of other clients before the kernel routes them.
func Destinations(p *ir.Program) map[netip.Addr]Destination {
	all := map[netip.Addr]Destination{}
	for i := range p.Services {
		for _, pool := range p.Services[i].Pools {
			for _, b := range pool.Backends {
				addr := b.AddrPort.Addr()
				all[addr] = Destination{RouteQuery{Dst: addr, Local: b.Local}, "endpoint of Service " + p.Services[i].Name.String()}
			}
		}
	}
	for i := range p.Services {
		for _, f := range p.Services[i].Frontends {
			if addr := f.Match.Addr; all[addr].of == "" {
				all[addr] = Destination{RouteQuery{Dst: addr, Rerouted: true}, "to which the node itself sends packets"}
			}
		}
	}
	maps.DeleteFunc(all, func(a netip.Addr, _ Destination) bool { return !a.IsValid() || p.Node.HasAddr(a) })
	return all
}
