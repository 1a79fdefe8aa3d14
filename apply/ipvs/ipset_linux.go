package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

const (
	networkOrder = unix.NLA_F_NET_BYTEORDER
	hashSize     = 1024 // initial size; sets grow
	// grownName is the temporary name of a larger set before it replaces another.
	grownName = "PROXYC-GROWN"
)

// Errors specific to ip_set.
const (
	errSetType      = unix.Errno(nl.IPSET_ERR_FIND_TYPE)
	errSetBusy      = unix.Errno(nl.IPSET_ERR_BUSY)
	errElementThere = unix.Errno(nl.IPSET_ERR_EXIST)
	errSetFull      = unix.Errno(nl.IPSET_ERR_PRIVATE + 256) // IPSET_ERR_HASH_FULL
)

// errNoSets is the error of a kernel without ip_set.
var errNoSets = errors.New("the kernel has no ip_set")

// ipset is a connection to ip_set.
type ipset struct{ *client }

// setsHead is the size of the header before the attributes.
const setsHead = 4 // struct nfgenmsg

// setsCommand returns a message.
func setsCommand(cmd, flags uint16, write func(*netlink.AttributeEncoder)) netlink.Message {
	return message(unix.NFNL_SUBSYS_IPSET<<8|cmd, flags, []byte{unix.AF_INET, nl.NFNETLINK_V0, 0, 0}, func(ae *netlink.AttributeEncoder) {
		ae.Uint8(nl.IPSET_ATTR_PROTOCOL, nl.IPSET_PROTOCOL)
		write(ae)
	})
}

// revision returns the oldest sufficient revision of a type, so that any version of the ipset tool
// can list the sets.
func revision(t rules.SetType) byte {
	switch t {
	case rules.BitmapPort:
		return 0
	case rules.HashIPPortNet:
		return 2
	}
	return 1
}

// hasType checks whether the kernel supports a type of sets, which may load its module.
func (s *ipset) hasType(ctx context.Context, t rules.SetType, f ir.Family) error {
	ask := setsCommand(nl.IPSET_CMD_TYPE, 0, func(ae *netlink.AttributeEncoder) {
		ae.String(nl.IPSET_ATTR_TYPENAME, t.String())
		ae.Uint8(nl.IPSET_ATTR_FAMILY, byte(familyOf(t, f)))
	})
	err := s.dump(ctx, ask, setsHead, func() {}, func([]byte) {})
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return errNoSets
	case errors.Is(err, errSetType), errors.Is(err, unix.ENOENT):
		module := strings.NewReplacer(":", "_", ",", "").Replace(t.String()) // that of hash:ip,port is ip_set_hash_ipport
		return fmt.Errorf("ipset type %s: the kernel has none: modprobe ip_set_%s", t, module)
	}
	return wrap("ipset type "+t.String(), err)
}

// familyOf returns the family of the sets of a type; bitmaps have none.
func familyOf(t rules.SetType, f ir.Family) uint16 {
	switch {
	case t == rules.BitmapPort:
		return unix.AF_UNSPEC
	case f == ir.IPv6:
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// request returns the message for a request about an element, or to create a set.
func (s *ipset) request(r *request) netlink.Message {
	switch r.op {
	case makeSet:
		return newSet(r.set.Name(r.family), r.set.Type(), r.family, r.max)
	case addElement:
		return element(nl.IPSET_CMD_ADD, r.element.Set.Name(r.family), &r.element.ElementKey)
	}
	return element(nl.IPSET_CMD_DEL, r.element.Set.Name(r.family), &r.element.ElementKey)
}

func newSet(name string, t rules.SetType, f ir.Family, most int) netlink.Message {
	return setsCommand(nl.IPSET_CMD_CREATE, unix.NLM_F_EXCL, func(ae *netlink.AttributeEncoder) {
		ae.String(nl.IPSET_ATTR_SETNAME, name)
		ae.String(nl.IPSET_ATTR_TYPENAME, t.String())
		ae.Uint8(nl.IPSET_ATTR_REVISION, revision(t))
		ae.Uint8(nl.IPSET_ATTR_FAMILY, byte(familyOf(t, f)))
		nested(ae, nl.IPSET_ATTR_DATA, func(ae *netlink.AttributeEncoder) {
			if t == rules.BitmapPort {
				netUint16(ae, nl.IPSET_ATTR_PORT_FROM|networkOrder, 0)
				netUint16(ae, nl.IPSET_ATTR_PORT_TO|networkOrder, 65535)
				return
			}
			netUint32(ae, nl.IPSET_ATTR_HASHSIZE|networkOrder, hashSize)
			netUint32(ae, nl.IPSET_ATTR_MAXELEM|networkOrder, uint32(most))
		})
	})
}

// element returns a message to add or remove an element. It is no error if the element exists, or
// does not exist.
func element(cmd uint16, name string, k *rules.ElementKey) netlink.Message {
	t := k.Set.Type()
	ip := func(ae *netlink.AttributeEncoder, kind uint16, a netip.Addr) {
		nested(ae, kind, func(ae *netlink.AttributeEncoder) {
			if a.Is4() {
				ae.Bytes(nl.IPSET_ATTR_IPADDR_IPV4|networkOrder, a.AsSlice())
			} else {
				ae.Bytes(nl.IPSET_ATTR_IPADDR_IPV6|networkOrder, a.AsSlice())
			}
		})
	}
	return setsCommand(cmd, 0, func(ae *netlink.AttributeEncoder) {
		ae.String(nl.IPSET_ATTR_SETNAME, name)
		nested(ae, nl.IPSET_ATTR_DATA, func(ae *netlink.AttributeEncoder) {
			if t != rules.BitmapPort {
				ip(ae, nl.IPSET_ATTR_IP, k.Addr)
			}
			if t != rules.HashIP {
				netUint16(ae, nl.IPSET_ATTR_PORT|networkOrder, k.Number)
			}
			if t != rules.HashIP && t != rules.BitmapPort {
				ae.Uint8(nl.IPSET_ATTR_PROTO, byte(k.Protocol))
			}
			switch t {
			case rules.HashIPPortIP:
				ip(ae, nl.IPSET_ATTR_IP2, k.Source.Addr())
			case rules.HashIPPortNet:
				ip(ae, nl.IPSET_ATTR_IP2, k.Source.Addr())
				ae.Uint8(nl.IPSET_ATTR_CIDR2, byte(k.Source.Bits()))
			}
		})
	})
}

// read reads a set. It returns nil if the set does not exist, and an *apply.Foreign if its type
// differs.
func (s *ipset) read(ctx context.Context, name rules.Set, f ir.Family) (found *set, err error) {
	want := name.Type()
	foreign := ""
	ask := setsCommand(nl.IPSET_CMD_LIST, unix.NLM_F_DUMP, func(ae *netlink.AttributeEncoder) {
		ae.String(nl.IPSET_ATTR_SETNAME, name.Name(f))
	})
	err = s.dump(ctx, ask, setsHead,
		func() { found = &set{elements: map[rules.ElementKey]*rules.Element{}} },
		func(body []byte) {
			attributes(body[setsHead:], func(kind uint16, value []byte) {
				switch kind {
				case nl.IPSET_ATTR_TYPENAME:
					if text(value) != want.String() {
						foreign = text(value)
					}
				case nl.IPSET_ATTR_FAMILY:
					if got := uint16(value[0]); foreign == "" && got != familyOf(want, f) {
						foreign = fmt.Sprintf("%s of family %d", want, got)
					}
				case nl.IPSET_ATTR_DATA:
					attributes(value, func(kind uint16, value []byte) {
						if kind == nl.IPSET_ATTR_MAXELEM {
							found.max = int(binary.BigEndian.Uint32(value))
						}
					})
				case nl.IPSET_ATTR_ADT:
					attributes(value, func(_ uint16, value []byte) { found.elements[parseElement(name, value)] = nil })
				}
			})
		})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return nil, errNoSets
	case err == nil && foreign != "":
		err = &apply.Foreign{Object: "ipset " + name.Name(f), Why: "it is a " + foreign + ", must be a " + want.String()}
	}
	return found, wrap("ipset "+name.Name(f), err)
}

func parseElement(name rules.Set, b []byte) rules.ElementKey {
	k := rules.ElementKey{Set: name}
	var second netip.Addr
	bits := -1
	attributes(b, func(kind uint16, value []byte) {
		switch kind {
		case nl.IPSET_ATTR_IP:
			k.Addr = parseIP(value)
		case nl.IPSET_ATTR_IP2:
			second = parseIP(value)
		case nl.IPSET_ATTR_CIDR2:
			bits = int(value[0])
		case nl.IPSET_ATTR_PORT:
			k.Number = binary.BigEndian.Uint16(value)
		case nl.IPSET_ATTR_PROTO:
			k.Protocol = ir.Protocol(value[0])
		}
	})
	if second.IsValid() {
		if bits < 0 {
			bits = second.BitLen()
		}
		k.Source = netip.PrefixFrom(second, bits)
	}
	return k
}

func parseIP(b []byte) (a netip.Addr) {
	attributes(b, func(_ uint16, value []byte) { a, _ = netip.AddrFromSlice(value) })
	return a
}

// grow creates a larger set with the same elements, and swaps it with a set that is in use.
func (s *ipset) grow(ctx context.Context, r *request) error {
	have, err := s.read(ctx, r.set, r.family)
	if err != nil || have == nil {
		return errors.Join(err, errMissing)
	}
	s.destroy(ctx, grownName) // left by a process that was killed; errors recur in the creation
	if err := s.send(ctx, newSet(grownName, r.set.Type(), r.family, r.max)); err != nil {
		return err
	}
	keys := make([]rules.ElementKey, 0, len(have.elements))
	for k := range have.elements {
		keys = append(keys, k)
	}
	var no error
	err = s.sendAll(ctx, len(keys), func(i int) netlink.Message { return element(nl.IPSET_CMD_ADD, grownName, &keys[i]) }, func(_ int, err error) { no = err })
	if err = errors.Join(err, no); err == nil {
		err = s.send(ctx, setsCommand(nl.IPSET_CMD_SWAP, 0, func(ae *netlink.AttributeEncoder) {
			ae.String(nl.IPSET_ATTR_SETNAME, r.set.Name(r.family))
			ae.String(nl.IPSET_ATTR_SETNAME2, grownName)
		}))
	}
	return errors.Join(err, s.destroy(ctx, grownName))
}

// destroy removes a set if it exists.
func (s *ipset) destroy(ctx context.Context, name string) error {
	err := s.send(ctx, setsCommand(nl.IPSET_CMD_DESTROY, 0, func(ae *netlink.AttributeEncoder) {
		ae.String(nl.IPSET_ATTR_SETNAME, name)
	}))
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, errSetBusy):
		return errors.New("iptables rules use it: remove them first")
	}
	return err
}
