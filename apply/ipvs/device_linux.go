package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// device is kube-ipvs0, by way of rtnetlink.
type device struct{ *client }

func dialDevice() (*device, error) {
	s, err := dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &device{s}, nil
}

// index returns the device's; 0: there is none.
func (d *device) index(ctx context.Context) (index uint32, err error) {
	ask := message(unix.RTM_GETLINK, 0, make([]byte, unix.SizeofIfInfomsg), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, ir.IPVSDevice)
	})
	err = d.dump(ctx, ask, unix.SizeofIfInfomsg, func() {}, func(body []byte) { index = binary.NativeEndian.Uint32(body[4:]) })
	if errors.Is(err, unix.ENODEV) {
		err = nil
	}
	return index, wrapped("device "+ir.IPVSDevice, err)
}

// newLink returns a request for a dummy device; rest adds attributes, where it is
// not nil.
func newLink(name string, rest func(*netlink.AttributeEncoder)) netlink.Message {
	return message(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, make([]byte, unix.SizeofIfInfomsg), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, name)
		nested(ae, unix.IFLA_LINKINFO, func(ae *netlink.AttributeEncoder) { ae.Bytes(unix.IFLA_INFO_KIND, []byte("dummy")) })
		if rest != nil {
			rest(ae)
		}
	})
}

// make makes the device. It stays down: addresses are the node's all the same.
func (d *device) make(ctx context.Context) error {
	return d.one(ctx, newLink(ir.IPVSDevice, nil))
}

// remove removes the device with its addresses.
func (d *device) remove(ctx context.Context) error {
	err := d.one(ctx, message(unix.RTM_DELLINK, 0, make([]byte, unix.SizeofIfInfomsg), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, ir.IPVSDevice)
	}))
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// possible finds out whether the kernel has dummy devices, and lets it load them.
// It asks for a device that cannot be, without a queue: the kernel looks for the
// kind first.
func (d *device) possible(ctx context.Context) error {
	if index, err := d.index(ctx); err != nil || index != 0 {
		return err
	}
	err := d.one(ctx, newLink("proxyc-probe", func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.IFLA_NUM_TX_QUEUES, 0) }))
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("device %s: the kernel has no dummy devices: modprobe dummy", ir.IPVSDevice)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOMEM): // it has, and wants a queue
		return nil
	}
	return wrapped("device "+ir.IPVSDevice, err)
}

// boundAddress returns a request about an address of a device. No neighbour is
// asked whether it has it, too.
func boundAddress(kind, flags uint16, index uint32, a netip.Addr) netlink.Message {
	const noDAD = 0x02 // IFA_F_NODAD
	head := []byte{byte(addressFamily(a)), byte(a.BitLen()), 0, 0}
	if a.Is6() {
		head[2] = noDAD
	}
	return message(kind, flags, binary.NativeEndian.AppendUint32(head, index), func(ae *netlink.AttributeEncoder) {
		ae.Bytes(unix.IFA_LOCAL, a.AsSlice())
		ae.Bytes(unix.IFA_ADDRESS, a.AsSlice())
	})
}

// addresses returns those of the device with an index, and those of all others.
func (d *device) addresses(ctx context.Context, f ir.Family, index uint32) (bound, others map[netip.Addr]bool, err error) {
	family := byte(unix.AF_INET)
	if f == ir.IPv6 {
		family = unix.AF_INET6
	}
	ask := message(unix.RTM_GETADDR, unix.NLM_F_DUMP, []byte{family, 0, 0, 0, 0, 0, 0, 0}, nil)
	err = d.dump(ctx, ask, unix.SizeofIfAddrmsg,
		func() { bound, others = map[netip.Addr]bool{}, map[netip.Addr]bool{} },
		func(body []byte) {
			a := parseAddress(body)
			switch on := binary.NativeEndian.Uint32(body[4:]); {
			case !a.IsValid() || !f.Has(a):
			case index == 0 || on != index:
				others[a] = true
			case !a.IsLinkLocalUnicast(): // the kernel's own, should somebody set the device up
				bound[a] = true
			}
		})
	return bound, others, wrapped("addresses", err)
}

func parseAddress(body []byte) (a netip.Addr) {
	attributes(body[unix.SizeofIfAddrmsg:], func(kind uint16, value []byte) {
		if kind == unix.IFA_LOCAL || kind == unix.IFA_ADDRESS && !a.IsValid() {
			a, _ = netip.AddrFromSlice(value)
		}
	})
	return a
}
