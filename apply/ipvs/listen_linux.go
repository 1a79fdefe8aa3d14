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

// listen also reports the removal of the device.
func (n *node) listen(ctx context.Context, report func(error)) (func(), error) {
	s, err := socket.New(socket.Config{Protocol: unix.NETLINK_ROUTE, Setup: func(nl *netlink.Conn) error {
		return errors.Join(
			nl.SetReadBuffer(receiveBuffer),
			nl.JoinGroup(unix.RTNLGRP_LINK), nl.JoinGroup(unix.RTNLGRP_IPV4_IFADDR), nl.JoinGroup(unix.RTNLGRP_IPV6_IFADDR),
		)
	}})
	if err != nil {
		return nil, wrap("listening to addresses", err)
	}
	s.Connect() // before reading the index; Follow tries again
	l := listener{ownPort: n.device.PID, device: func() (uint32, error) { return n.device.index(ctx) }}
	l.readIndex()
	return func() {
		s.Follow(ctx, func(m netlink.Message) {
			if l.isForeign(m) {
				report(nil)
			}
		}, func(err error) {
			l.readIndex()                     // the device may have been created again
			if errors.Is(err, unix.ENOBUFS) { // notifications exceeded the socket buffer
				err = nil
			}
			report(wrap("listening to addresses", err))
		})
	}, nil
}

// listener interprets notifications.
type listener struct {
	ownPort func() uint32          // netlink port of our own changes
	device  func() (uint32, error) // reads the index of kube-ipvs0; 0 if it does not exist
	index   uint32                 // of kube-ipvs0, as far as known
	failed  bool                   // the index could not be read
}

func (l *listener) readIndex() {
	index, err := l.device()
	if l.failed = err != nil; err == nil {
		l.index = index
	}
}

// isDevice reports whether an index may be that of kube-ipvs0. If that was unknown until now, each
// may be: kube-ipvs0 may have been removed before its index could be read.
func (l *listener) isDevice(index uint32) bool {
	unknown := l.failed
	if unknown {
		l.readIndex()
	}
	return unknown || index == l.index
}

// isForeign reports whether a message is about a foreign change. The kernel reports the netlink
// port that changed an address.
func (l *listener) isForeign(m netlink.Message) bool {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return false
	}
	on := binary.NativeEndian.Uint32(m.Data[4:])
	switch m.Header.Type {
	case unix.RTM_NEWLINK:
		attributes(m.Data[min(len(m.Data), unix.SizeofIfInfomsg):], func(kind uint16, value []byte) {
			if kind == unix.IFLA_IFNAME && text(value) == ir.IPVSDevice {
				l.index, l.failed = on, false
			}
		})
		return false
	case unix.RTM_DELLINK:
		return l.isDevice(on)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a := parseAddress(m.Data)
		return m.Header.PID != l.ownPort() && !a.IsLinkLocalUnicast() && l.isDevice(on)
	}
	return false
}
