package node

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// RouteQuery is a packet whose route is requested from the kernel.
type RouteQuery struct {
	Src  netip.Addr // if invalid, the kernel selects one, as for packets from the node
	Dst  netip.Addr
	In   string // incoming interface; "" for packets from the node itself
	Mark uint32
	// Local is set for the address of a pod on this node: a default route does not lead there.
	Local bool
	// Rerouted is set if rules translate the destination, after which the kernel routes the packet again.
	Rerouted bool
}

// ErrNoInterface is returned for an incoming interface that does not exist.
var ErrNoInterface = errors.New("no such interface")

// refusedBy has the reasons why the kernel drops a packet, by the errors of RTM_GETROUTE.
var refusedBy = map[error]string{
	unix.EINVAL:       blackhole,
	unix.EXDEV:        blackhole,
	unix.EACCES:       "a route or rule that prohibits it",
	unix.EHOSTUNREACH: "an unreachable route or rule",
	unix.ENETUNREACH:  "there is none, or an unreachable rule",
}

const blackhole = "a blackhole route or rule"

// Route returns the interface through which the kernel of the calling thread's namespace sends a
// packet; "" if the packet is for the node itself. refused is the reason if the kernel drops it. It
// is derived from the errors of RTM_GETROUTE, which in IPv4 are those of the packet itself,
// including forwarding and rp_filter.
func Route(s RouteQuery) (out, refused string, err error) {
	o := netlink.RouteGetOptions{Mark: s.Mark, SrcAddr: s.Src.AsSlice()}
	if s.In != "" {
		link, err := netlink.LinkByName(s.In)
		if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
			err = ErrNoInterface
		}
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", s.In, err)
		}
		o.IifIndex = link.Attrs().Index
	}
	routes, err := netlink.RouteGetWithOptions(s.Dst.AsSlice(), &o)
	if refused = refusedBy[err]; refused != "" {
		if refused == blackhole && s.In != "" {
			refused += ", or rp_filter, which rejects this source on " + s.In
		}
		return "", refused, nil
	}
	if err != nil || len(routes) == 0 {
		return "", "", fmt.Errorf("route to %s: %w", s.Dst, cmp.Or(err, errors.New("no answer")))
	}
	if routes[0].Type == unix.RTN_LOCAL {
		return "", "", nil
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", "", fmt.Errorf("route to %s: %w", s.Dst, err)
	}
	out = link.Attrs().Name
	if !s.Rerouted && link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
		return out, "interface " + out + " is down", nil
	}
	if s.Local && byDefault(s.Dst, o) {
		return out, "only a default route, by " + out + ", although it is a pod of this node", nil
	}
	return out, "", nil
}

// byDefault reports whether only a default route leads to an address.
func byDefault(dst netip.Addr, o netlink.RouteGetOptions) bool {
	o.FIBMatch = true
	match, err := netlink.RouteGetWithOptions(dst.AsSlice(), &o)
	return err == nil && len(match) > 0 && (match[0].Dst == nil || match[0].Dst.IP.IsUnspecified())
}

// ForwardingDisabled returns the setting that prevents forwarding of packets of a family from an
// interface; "" if there is none.
func ForwardingDisabled(f ir.Family, in string) (setting string) {
	switch {
	case f == ir.IPv4 && is("ipv4/conf/"+in+"/forwarding", "0"):
		return "net.ipv4.conf." + in + ".forwarding is 0"
	case f == ir.IPv6 && is("ipv6/conf/all/forwarding", "0") && !is("ipv6/conf/"+in+"/force_forwarding", "1"): // added in Linux 6.17
		return "net.ipv6.conf.all.forwarding is 0"
	}
	return ""
}

// connected reports whether packets may arrive by an interface.
func connected(in string) bool {
	link, err := netlink.LinkByName(in)
	return err == nil && link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
}

// strict reports whether an interface accepts only sources to which the kernel sends packets by it.
func strict(f ir.Family, in string) bool {
	has := func(value string) bool {
		return is("ipv4/conf/all/rp_filter", value) || is("ipv4/conf/"+in+"/rp_filter", value)
	}
	return f == ir.IPv4 && has("1") && !has("2") // the greater value counts
}

// is reports whether a setting of the network has a value.
func is(path, value string) bool {
	text, err := os.ReadFile("/proc/sys/net/" + path)
	return err == nil && strings.TrimSpace(string(text)) == value
}

// HasAddress reports whether an interface has an address.
func HasAddress(a netip.Addr, on string) bool {
	link, err := netlink.LinkByName(on)
	if err != nil {
		return false
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	return err == nil && slices.ContainsFunc(addrs, func(has netlink.Addr) bool {
		ip, _ := netip.AddrFromSlice(has.IP)
		return ip.Unmap() == a
	})
}
