package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

const (
	nested       = unix.NLA_F_NESTED
	networkOrder = unix.NLA_F_NET_BYTEORDER
	hashSize     = 1024 // that sets begin with; they grow
	// grownName is that of a set while it is filled to take the place of another.
	grownName = "PROXYC-GROWN"
)

// Errors of ip_set, which it has beside those of the system.
const (
	errSetType      = unix.Errno(nl.IPSET_ERR_FIND_TYPE)
	errSetBusy      = unix.Errno(nl.IPSET_ERR_BUSY)
	errElementThere = unix.Errno(nl.IPSET_ERR_EXIST)
	errSetFull      = unix.Errno(nl.IPSET_ERR_PRIVATE + 256) // IPSET_ERR_HASH_FULL
)

// errNoSets is that of a kernel without ip_set.
var errNoSets = errors.New("mode ipvs: the kernel has no ip_set")

// ipset speaks to ip_set.
type ipset struct{ *socket }

func dialSets() (*ipset, error) {
	s, err := dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return &ipset{s}, nil
}

func (s *ipset) command(b *batch, cmd uint16, flags uint16) {
	b.message(unix.NFNL_SUBSYS_IPSET<<8|cmd, flags)
	b.b = append(b.b, unix.AF_INET, nl.NFNETLINK_V0, 0, 0)
	b.attribute(nl.IPSET_ATTR_PROTOCOL, nl.IPSET_PROTOCOL)
}

// revision is the oldest form of a type that does what is needed, so that any
// tool can list the sets.
func revision(t rules.SetType) byte {
	switch t {
	case rules.BitmapPort:
		return 0
	case rules.HashIPPortNet:
		return 2
	}
	return 1
}

// hasType finds out whether the kernel has a type of sets, and lets it load it.
func (s *ipset) hasType(ctx context.Context, t rules.SetType, f ir.Family) error {
	ask := func(b *batch) {
		s.command(b, nl.IPSET_CMD_TYPE, 0)
		b.text(nl.IPSET_ATTR_TYPENAME, t.String())
		b.attribute(nl.IPSET_ATTR_FAMILY, byte(familyOf(t, f)))
	}
	err := s.dump(ctx, ask, func() {}, func([]byte) error { return nil })
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return errNoSets
	case errors.Is(err, errSetType), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("ipset type %s: the kernel has none: modprobe ip_set_%s", t, moduleOf(t))
	}
	return wrapped("ipset type "+t.String(), err)
}

func moduleOf(t rules.SetType) string {
	var b []byte
	for _, c := range t.String() {
		switch c {
		case ':':
			b = append(b, '_')
		case ',':
		default:
			b = append(b, byte(c))
		}
	}
	return string(b)
}

// familyOf is that of the sets of a type: bitmaps have none.
func familyOf(t rules.SetType, f ir.Family) uint16 {
	switch {
	case t == rules.BitmapPort:
		return unix.AF_UNSPEC
	case f == ir.IPv6:
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// write writes a request about an element, or makes a set.
func (s *ipset) write(b *batch, r *request) {
	switch r.op {
	case makeSet:
		s.create(b, r.set.Name(r.family), r.set.Type(), r.family, r.max)
	case addElement:
		s.element(b, nl.IPSET_CMD_ADD, r.element.Set.Name(r.family), &r.element.ElementKey)
	case removeElement:
		s.element(b, nl.IPSET_CMD_DEL, r.element.Set.Name(r.family), &r.element.ElementKey)
	}
}

func (s *ipset) create(b *batch, name string, t rules.SetType, f ir.Family, most int) {
	s.command(b, nl.IPSET_CMD_CREATE, unix.NLM_F_EXCL)
	b.text(nl.IPSET_ATTR_SETNAME, name)
	b.text(nl.IPSET_ATTR_TYPENAME, t.String())
	b.attribute(nl.IPSET_ATTR_REVISION, revision(t))
	b.attribute(nl.IPSET_ATTR_FAMILY, byte(familyOf(t, f)))
	b.nested(nl.IPSET_ATTR_DATA|nested, func() {
		if t == rules.BitmapPort {
			b.bigShort(nl.IPSET_ATTR_PORT_FROM|networkOrder, 0)
			b.bigShort(nl.IPSET_ATTR_PORT_TO|networkOrder, 65535)
			return
		}
		b.big(nl.IPSET_ATTR_HASHSIZE|networkOrder, hashSize)
		b.big(nl.IPSET_ATTR_MAXELEM|networkOrder, uint32(most))
	})
}

// element writes a request for one element. That it is there already, or is gone,
// is no error.
func (s *ipset) element(b *batch, cmd uint16, name string, k *rules.ElementKey) {
	s.command(b, cmd, 0)
	b.text(nl.IPSET_ATTR_SETNAME, name)
	t := k.Set.Type()
	ip := func(kind uint16, a netip.Addr) {
		b.nested(kind|nested, func() {
			if a.Is4() {
				b.attribute(nl.IPSET_ATTR_IPADDR_IPV4|networkOrder, a.AsSlice()...)
			} else {
				b.attribute(nl.IPSET_ATTR_IPADDR_IPV6|networkOrder, a.AsSlice()...)
			}
		})
	}
	b.nested(nl.IPSET_ATTR_DATA|nested, func() {
		if t != rules.BitmapPort {
			ip(nl.IPSET_ATTR_IP, k.Addr)
		}
		if t != rules.HashIP {
			b.bigShort(nl.IPSET_ATTR_PORT|networkOrder, k.Number)
		}
		if t != rules.HashIP && t != rules.BitmapPort {
			b.attribute(nl.IPSET_ATTR_PROTO, byte(k.Protocol))
		}
		switch t {
		case rules.HashIPPortIP:
			ip(nl.IPSET_ATTR_IP2, k.Source.Addr())
		case rules.HashIPPortNet:
			ip(nl.IPSET_ATTR_IP2, k.Source.Addr())
			b.attribute(nl.IPSET_ATTR_CIDR2, byte(k.Source.Bits()))
		}
	})
}

// read reads a set; nil where there is none. One of another type belongs to
// somebody else.
func (s *ipset) read(ctx context.Context, name rules.Set, f ir.Family) (found *set, err error) {
	want := name.Type()
	foreign := ""
	err = s.dump(ctx,
		func(b *batch) {
			s.command(b, nl.IPSET_CMD_LIST, unix.NLM_F_DUMP)
			b.text(nl.IPSET_ATTR_SETNAME, name.Name(f))
		},
		func() { found = &set{elements: map[rules.ElementKey]bool{}} },
		func(body []byte) error {
			attributes(body[4:], func(kind uint16, value []byte) {
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
					attributes(value, func(_ uint16, value []byte) { found.elements[parseElement(name, value)] = true })
				}
			})
			return nil
		})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return nil, errNoSets
	case err == nil && foreign != "":
		err = &apply.Foreign{Object: "ipset " + name.Name(f), Why: "it is a " + foreign + ", must be a " + want.String()}
	}
	return found, wrapped("ipset "+name.Name(f), err)
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

// grow makes a set that has room for more, with the same elements, and puts it in
// the place of one that is in use.
func (s *ipset) grow(ctx context.Context, r *request) error {
	have, err := s.read(ctx, r.set, r.family)
	if err != nil || have == nil {
		return errors.Join(err, errMissing)
	}
	s.destroy(ctx, grownName) // of a process that was killed; what is wrong with it shows when it is made
	if err := s.one(ctx, func(b *batch) { s.create(b, grownName, r.set.Type(), r.family, r.max) }); err != nil {
		return err
	}
	keys := make([]rules.ElementKey, 0, len(have.elements))
	for k := range have.elements {
		keys = append(keys, k)
	}
	var no error
	err = s.all(ctx, len(keys), func(b *batch, i int) { s.element(b, nl.IPSET_CMD_ADD, grownName, &keys[i]) }, func(_ int, err error) { no = err })
	if err = errors.Join(err, no); err == nil {
		err = s.one(ctx, func(b *batch) {
			s.command(b, nl.IPSET_CMD_SWAP, 0)
			b.text(nl.IPSET_ATTR_SETNAME, r.set.Name(r.family))
			b.text(nl.IPSET_ATTR_SETNAME2, grownName)
		})
	}
	return errors.Join(err, s.destroy(ctx, grownName))
}

// destroy removes a set, if there is one.
func (s *ipset) destroy(ctx context.Context, name string) error {
	err := s.one(ctx, func(b *batch) {
		s.command(b, nl.IPSET_CMD_DESTROY, 0)
		b.text(nl.IPSET_ATTR_SETNAME, name)
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, errSetBusy):
		return errors.New("iptables rules refer to it, which must go first")
	}
	return err
}
