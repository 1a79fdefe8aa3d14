package ipvs

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/ir"
)

// listen calls tell when others change the addresses of kube-ipvs0, or remove the
// device, and with an error when it cannot hear whether they do. What listens is to
// be run until ctx ends.
func (n *node) listen(ctx context.Context, tell func(error)) (func(), error) {
	s, err := socket.Dial(socket.Config{Protocol: unix.NETLINK_ROUTE, Setup: func(nl *netlink.Conn) error {
		return errors.Join(
			nl.SetReadBuffer(receiveRoom),
			nl.JoinGroup(unix.RTNLGRP_LINK), nl.JoinGroup(unix.RTNLGRP_IPV4_IFADDR), nl.JoinGroup(unix.RTNLGRP_IPV6_IFADDR),
		)
	}})
	if err != nil {
		return nil, wrapped("listening to addresses", err)
	}
	index, err := n.device.index(ctx)
	if err != nil {
		s.Close()
		return nil, err
	}
	l := listener{own: n.device.PID, index: index}
	return func() {
		s.Follow(ctx, func(m netlink.Message) {
			if l.met(m) {
				tell(nil)
			}
		}, func(err error) {
			if index, indexErr := n.device.index(ctx); indexErr == nil { // the device may have been made again
				l.index = index
			}
			if errors.Is(err, unix.ENOBUFS) { // there were more than the socket holds
				err = nil
			}
			tell(wrapped("listening to addresses", err))
		})
	}, nil
}

// listener reads news.
type listener struct {
	own   func() uint32 // port by which our own changes go
	index uint32        // of kube-ipvs0; 0: there was none yet
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
		return on == l.index && m.Header.PID != l.own() && !a.IsLinkLocalUnicast()
	}
	return false
}
