package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// listen calls tell when others change the addresses of kube-ipvs0, or remove the
// device. What listens is to be run until ctx ends.
func (n *node) listen(ctx context.Context, tell func()) (func(), error) {
	s, err := dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	for _, group := range [...]int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			s.close()
			return nil, wrapped("listening to addresses", err)
		}
	}
	index, err := n.device.index(ctx)
	if err != nil {
		s.close()
		return nil, err
	}
	// A short wait, so that the end of ctx is seen.
	wait := unix.NsecToTimeval(int64(200 * time.Millisecond))
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		s.close()
		return nil, err
	}
	return func() {
		defer s.close()
		l := listener{socket: s, own: n.device.port, index: index}
		for ctx.Err() == nil {
			if l.next() {
				tell()
			}
		}
	}, nil
}

// listener reads news.
type listener struct {
	*socket
	own   uint32 // port by which our own changes go
	index uint32 // of kube-ipvs0; 0: there was none yet
}

// next waits a while for news, and reports whether others changed something.
func (l *listener) next() (foreign bool) {
	n, _, err := unix.Recvfrom(l.fd, l.buf, 0)
	if errors.Is(err, unix.ENOBUFS) {
		return true // nobody knows
	}
	if err != nil || n <= 0 {
		return false
	}
	for b := l.buf[:n]; len(b) >= 16; {
		size := int(binary.NativeEndian.Uint32(b))
		if size < 16 || size > len(b) {
			return true
		}
		foreign = l.met(binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[12:]), b[16:size]) || foreign
		b = b[min(len(b), (size+3)&^3):]
	}
	return foreign
}

// met reports whether a message tells of another's change. The kernel names the
// socket by which an address was changed.
func (l *listener) met(kind uint16, port uint32, body []byte) bool {
	if len(body) < 8 {
		return false
	}
	on := binary.NativeEndian.Uint32(body[4:])
	switch kind {
	case unix.RTM_NEWLINK:
		attributes(body[min(len(body), unix.SizeofIfInfomsg):], func(kind uint16, value []byte) {
			if kind == unix.IFLA_IFNAME && text(value) == ir.IPVSDevice {
				l.index = on
			}
		})
		return false
	case unix.RTM_DELLINK:
		return on == l.index
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a := parseAddress(body)
		return on == l.index && port != l.own && !a.IsLinkLocalUnicast()
	}
	return false
}
