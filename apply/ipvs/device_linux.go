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

// device accesses kube-ipvs0 through rtnetlink.
type device struct{ *client }

// index returns the index of the device; 0 if it does not exist.
func (d *device) index(ctx context.Context) (index uint32, err error) {
	ask := message(unix.RTM_GETLINK, 0, make([]byte, unix.SizeofIfInfomsg), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, ir.IPVSDevice)
	})
	err = d.dump(ctx, ask, unix.SizeofIfInfomsg, func() {}, func(body []byte) { index = binary.NativeEndian.Uint32(body[4:]) })
	if errors.Is(err, unix.ENODEV) {
		err = nil
	}
	return index, wrap("device "+ir.IPVSDevice, err)
}

// newLink returns a request to create a dummy device. rest is optional and adds attributes.
func newLink(name string, rest func(*netlink.AttributeEncoder)) netlink.Message {
	return message(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, make([]byte, unix.SizeofIfInfomsg), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, name)
		nested(ae, unix.IFLA_LINKINFO, func(ae *netlink.AttributeEncoder) { ae.Bytes(unix.IFLA_INFO_KIND, []byte("dummy")) })
		if rest != nil {
			rest(ae)
		}
	})
}

// create creates the device. It stays down; its addresses are local to the node nevertheless.
func (d *device) create(ctx context.Context) error {
	return d.send(ctx, newLink(ir.IPVSDevice, nil))
}

// remove removes the device and its addresses.
func (d *device) remove(ctx context.Context) error {
	err := d.send(ctx, message(unix.RTM_DELLINK, 0, make([]byte, unix.SizeofIfInfomsg), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, ir.IPVSDevice)
	}))
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// probe checks whether the kernel supports dummy devices, which may load the module. It requests
// an invalid device without a queue: the kernel checks the kind first.
func (d *device) probe(ctx context.Context) error {
	if index, err := d.index(ctx); err != nil || index != 0 {
		return err
	}
	err := d.send(ctx, newLink("proxyc-probe", func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.IFLA_NUM_TX_QUEUES, 0) }))
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("device %s: the kernel does not support dummy devices: modprobe dummy", ir.IPVSDevice)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOMEM): // supported; the kernel rejects the missing queue
		return nil
	}
	return wrap("device "+ir.IPVSDevice, err)
}

// boundAddress returns a request about an address of a device. Duplicate address detection is
// disabled.
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

// addresses returns the addresses of the device with an index, and those of all others.
func (d *device) addresses(ctx context.Context, f ir.Family, index uint32) (bound, others map[netip.Addr]bool, err error) {
	ask := message(unix.RTM_GETADDR, unix.NLM_F_DUMP, []byte{ir.Pick[byte](f, unix.AF_INET, unix.AF_INET6), 0, 0, 0, 0, 0, 0, 0}, nil)
	err = d.dump(ctx, ask, unix.SizeofIfAddrmsg,
		func() { bound, others = map[netip.Addr]bool{}, map[netip.Addr]bool{} },
		func(body []byte) {
			a := parseAddress(body)
			switch on := binary.NativeEndian.Uint32(body[4:]); {
			case !a.IsValid() || !f.Has(a):
			case index == 0 || on != index:
				others[a] = true
			case !a.IsLinkLocalUnicast(): // added by the kernel if the device is up
				bound[a] = true
			}
		})
	return bound, others, wrap("addresses", err)
}

func parseAddress(body []byte) (a netip.Addr) {
	attributes(body[unix.SizeofIfAddrmsg:], func(kind uint16, value []byte) {
		if kind == unix.IFA_LOCAL || kind == unix.IFA_ADDRESS && !a.IsValid() {
			a, _ = netip.AddrFromSlice(value)
		}
	})
	return a
}
