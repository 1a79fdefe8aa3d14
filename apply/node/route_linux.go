package node

import (
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

// Sent is a packet for which the kernel is asked for a route.
type Sent struct {
	Src  netip.Addr // not valid: the kernel chooses, as for what the node sends
	Dst  netip.Addr
	In   string // the interface by which it comes in; "": the node itself sends it
	Mark uint32
}

// ErrNoInterface says that the node has no interface of a name.
var ErrNoInterface = errors.New("there is no such interface")

// Route returns the interface by which the kernel of the calling thread's namespace sends a
// packet, "" where that is for the node itself. refused tells why it sends it nowhere: the errors
// of RTM_GETROUTE, which in IPv4 are those of the packet itself, forwarding and rp_filter included.
func Route(s Sent) (out, refused string, err error) {
	o := netlink.RouteGetOptions{Mark: s.Mark}
	if s.Src.IsValid() {
		o.SrcAddr = s.Src.AsSlice()
	}
	if s.In != "" {
		link, err := netlink.LinkByName(s.In)
		if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
			return "", "", fmt.Errorf("%s: %w", s.In, ErrNoInterface)
		} else if err != nil {
			return "", "", fmt.Errorf("interface %s: %w", s.In, err)
		}
		o.IifIndex = link.Attrs().Index
	}
	routes, err := netlink.RouteGetWithOptions(s.Dst.AsSlice(), &o)
	switch {
	case errors.Is(err, unix.EINVAL) && s.In == "":
		return "", "a blackhole route or rule", nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EXDEV):
		return "", "a blackhole route or rule, or rp_filter, which takes no such source by " + s.In, nil
	case errors.Is(err, unix.EACCES):
		return "", "a route or rule that prohibits it", nil
	case errors.Is(err, unix.EHOSTUNREACH):
		return "", "an unreachable route or rule", nil
	case errors.Is(err, unix.ENETUNREACH):
		return "", "there is none", nil
	case err == nil && len(routes) == 0:
		err = errors.New("no answer")
	case err == nil && routes[0].Type == unix.RTN_LOCAL:
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("route to %s: %w", s.Dst, err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", "", fmt.Errorf("route to %s: %w", s.Dst, err)
	}
	return link.Attrs().Name, "", nil
}

// Unforwarded returns the setting that keeps packets of a family that come in by an interface
// from leaving the node again; "": none does.
func Unforwarded(f ir.Family, in string) (setting string) {
	is := func(path, value string) bool {
		text, err := os.ReadFile("/proc/sys/net/" + path)
		return err == nil && strings.TrimSpace(string(text)) == value
	}
	switch {
	case f == ir.IPv4 && is("ipv4/conf/"+in+"/forwarding", "0"):
		return "net.ipv4.conf." + in + ".forwarding is 0"
	case f == ir.IPv6 && is("ipv6/conf/all/forwarding", "0") && !is("ipv6/conf/"+in+"/force_forwarding", "1"): // from Linux 6.17 on
		return "net.ipv6.conf.all.forwarding is 0"
	}
	return ""
}

// Carries reports whether an interface has an address.
func Carries(a netip.Addr, on string) bool {
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

// IsBridge reports whether an interface is a bridge.
func IsBridge(name string) bool {
	link, err := netlink.LinkByName(name)
	return err == nil && link.Type() == "bridge"
}
