package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// listen calls tell when others change the addresses of kube-ipvs0, or remove the
// device, and with an error when it cannot hear whether they do. What listens is to
// be run until ctx ends.
func (n *node) listen(ctx context.Context, tell func(error)) (func(), error) {
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
		l.run(ctx, tell)
	}, nil
}

// deafFor is how long to wait after the kernel gave an error for no reason that goes
// away by listening on. What is told then is a whole comparison.
const deafFor = 10 * time.Second

// listener reads news.
type listener struct {
	nl interface {
		Receive() ([]netlink.Message, error)
	}
	own   uint32 // port by which our own changes go
	index uint32 // of kube-ipvs0; 0: there was none yet
}

// run tells of news until ctx ends. Where news were lost, others changed something
// as far as anybody knows.
func (l *listener) run(ctx context.Context, tell func(error)) {
	for {
		foreign, err := l.next()
		lost := errors.Is(err, unix.ENOBUFS) // there were more than the socket holds
		switch {
		case ctx.Err() != nil:
			return
		case foreign, lost:
			tell(nil)
		case err != nil:
			tell(fmt.Errorf("listening to addresses: %w", err))
		}
		if err == nil || lost {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(deafFor):
		}
	}
}

// next waits for news, and reports whether others changed something.
func (l *listener) next() (foreign bool, err error) {
	messages, err := l.nl.Receive()
	for _, m := range messages {
		foreign = l.met(m) || foreign
	}
	return foreign, err
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
