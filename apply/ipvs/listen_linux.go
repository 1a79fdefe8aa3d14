package ipvs

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/mdlayher/netlink"
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
	for _, group := range [...]uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		if err := s.nl.JoinGroup(group); err != nil {
			s.close()
			return nil, wrapped("listening to addresses", err)
		}
	}
	index, err := n.device.index(ctx)
	if err != nil {
		s.close()
		return nil, err
	}
	return func() {
		defer s.close()
		defer context.AfterFunc(ctx, func() { s.close() })() // which ends what waits for news
		l := listener{nl: s.nl, own: n.device.nl.PID(), index: index}
		for ctx.Err() == nil {
			if l.next() && ctx.Err() == nil {
				tell()
			}
		}
	}, nil
}

// listener reads news.
type listener struct {
	nl    *netlink.Conn
	own   uint32 // port by which our own changes go
	index uint32 // of kube-ipvs0; 0: there was none yet
}

// next waits for news, and reports whether others changed something. Where news
// were lost, they did as far as anybody knows.
func (l *listener) next() (foreign bool) {
	messages, err := l.nl.Receive()
	for _, m := range messages {
		foreign = l.met(m) || foreign
	}
	return foreign || errors.Is(err, unix.ENOBUFS)
}

// met reports whether a message tells of another's change. The kernel names the
// socket by which an address was changed.
func (l *listener) met(m netlink.Message) bool {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return false
	}
	on := binary.NativeEndian.Uint32(m.Data[4:])
	switch m.Header.Type {
	case unix.RTM_NEWLINK:
		attributes(m.Data[min(len(m.Data), unix.SizeofIfInfomsg):], func(kind uint16, value []byte) {
			if kind == unix.IFLA_IFNAME && text(value) == ir.IPVSDevice {
				l.index = on
			}
		})
		return false
	case unix.RTM_DELLINK:
		return on == l.index
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a := parseAddress(m.Data)
		return on == l.index && m.Header.PID != l.own && !a.IsLinkLocalUnicast()
	}
	return false
}
