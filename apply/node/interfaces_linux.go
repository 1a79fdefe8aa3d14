package node

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/compiler"
)

// Interfaces returns the network interfaces of the calling thread's namespace, ordered by name. It
// makes three requests to the kernel for any number of interfaces. A list that changed while it was
// read may lack unchanged entries, and is read again.
func Interfaces() ([]compiler.Interface, error) {
	var links []netlink.Link
	if err := socket.RetryInterrupted(func() (_ bool, err error) { links, err = netlink.LinkList(); return false, err }); err != nil {
		return nil, fmt.Errorf("network interfaces: %w", err)
	}
	// The kernel marks most, but not all lists that changed (since Linux 6.9, it reads without a
	// lock and counts an address after its removal), so two equal lists are required.
	var addrs, before []netlink.Addr
	if err := socket.RetryInterrupted(func() (changed bool, err error) {
		before = addrs
		addrs, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
		return !slices.EqualFunc(before, addrs, func(a, b netlink.Addr) bool { return a.LinkIndex == b.LinkIndex && a.Equal(b) }), err
	}); err != nil {
		return nil, fmt.Errorf("interface addresses: %w", err)
	}
	byLink := map[int][]netip.Prefix{}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ones, _ := a.Mask.Size()
		byLink[a.LinkIndex] = append(byLink[a.LinkIndex], netip.PrefixFrom(ip.Unmap(), ones))
	}
	out := make([]compiler.Interface, len(links))
	for i, l := range links {
		out[i] = compiler.Interface{Name: l.Attrs().Name, Addrs: byLink[l.Attrs().Index]}
	}
	return canonical(out), nil
}
