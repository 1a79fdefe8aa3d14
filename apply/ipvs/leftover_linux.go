package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Leftovers lists what is there, in the order in which it should go. The
// ipsets can only go after the iptables rules that look into them. What the
// kernel has no support for cannot be left over.
func Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	sets, err := knownSets()
	if err != nil {
		return nil, fmt.Errorf("ipsets: %w", err)
	}
	device, err := findDevice()
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", ir.IPVSDevice, err)
	}
	servers, err := ownServers(device, sets)
	if err != nil {
		return nil, fmt.Errorf("virtual servers: %w", err)
	}
	var left []apply.Leftover
	if len(servers) > 0 {
		left = append(left, apply.Leftover{Object: some("virtual server", servers), Remove: removal(servers, removeServer)})
	}
	if device != nil {
		left = append(left, apply.Leftover{Object: device.String(), Remove: removal([]*bound{device}, removeDevice)})
	}
	if len(sets) > 0 {
		left = append(left, apply.Leftover{Object: some("ipset", sets), Remove: removal(sets, removeSet)})
	}
	return left, nil
}

// some names the first of several objects and counts the others.
func some[T fmt.Stringer](kind string, objects []T) string {
	s := kind + " " + objects[0].String()
	if more := len(objects) - 1; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// removal removes each of several objects, whatever happens to the others.
func removal[T fmt.Stringer](objects []T, remove func(T) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var errs []error
		for _, o := range objects {
			if err := ctx.Err(); err != nil {
				return errors.Join(append(errs, err)...)
			}
			if err := remove(o); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", o, err))
			}
		}
		return errors.Join(errs...)
	}
}

// bound is device kube-ipvs0 with the addresses of Services that it holds (IPV-1).
type bound struct {
	link  netlink.Link
	addrs map[netip.Addr]bool
}

func (b *bound) String() string {
	return fmt.Sprintf("device %s with %d addresses", ir.IPVSDevice, len(b.addrs))
}

// findDevice returns nil where there is no such device.
func findDevice() (*bound, error) {
	link, err := netlink.LinkByName(ir.IPVSDevice)
	if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	addrs, err := addresses(link)
	if err != nil {
		return nil, err
	}
	return &bound{link, addrs}, nil
}

// addresses returns those of a device, or of all devices where link is nil.
func addresses(link netlink.Link) (map[netip.Addr]bool, error) {
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	addrs := map[netip.Addr]bool{}
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			addrs[ip.Unmap()] = true
		}
	}
	return addrs, nil
}

func removeDevice(b *bound) error {
	err := netlink.LinkDel(b.link)
	if isGone(err) {
		return nil
	}
	return err
}
