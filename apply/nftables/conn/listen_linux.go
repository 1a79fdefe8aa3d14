package conn

import (
	"context"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/socket"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Listener receives the changes of all tables, to detect foreign changes of proxyc's tables.
// It receives none between Leave and the next Join.
type Listener struct {
	*socket.Socket
	own *Conn // its changes are not foreign
}

const (
	// listenBuffer is the size in bytes for foreign changes during a read.
	listenBuffer = 8 << 20
	// notificationTimeout is the longest delay between a change and its notification.
	notificationTimeout = time.Second
)

// DialListener opens a Listener in a network namespace; see [Dial].
func DialListener(netns int, own *Conn) (*Listener, error) {
	s, err := socket.Dial(socket.Config{Protocol: unix.NETLINK_NETFILTER, NetNS: netns, Setup: func(nl *netlink.Conn) error {
		return nl.SetReadBuffer(listenBuffer)
	}})
	if err != nil {
		return nil, fmt.Errorf("listening to nf_tables: %w", err)
	}
	return &Listener{s, own}, nil
}

// Join starts to receive notifications.
func (l *Listener) Join() error {
	if err := l.Set(func(nl *netlink.Conn) error { return nl.JoinGroup(unix.NFNLGRP_NFTABLES) }); err != nil {
		return fmt.Errorf("listening to nf_tables: %w", err)
	}
	return nil
}

// Leave stops to receive notifications. If it fails, the next Join dials again.
func (l *Listener) Leave() {
	l.Set(func(nl *netlink.Conn) error { return nl.LeaveGroup(unix.NFNLGRP_NFTABLES) })
}

// Changed reports whether other programs changed proxyc's tables after one generation and
// until another. It returns true if messages were lost.
func (l *Listener) Changed(after, until uint32) (touched bool) {
	if after == until {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), notificationTimeout)
	defer cancel()
	err := l.Do(ctx, func(nl *socket.Conn) error {
		ours := false // whether the current transaction changes our tables; its last message is its number
		for m, err := range nl.Answers() {
			if err != nil {
				return err
			}
			var done bool
			if done, touched, err = l.handle(m, &ours, after, until); done || touched || err != nil {
				return err
			}
		}
		return nil
	})
	return touched || err != nil
}

// handle handles one message. Messages of earlier transactions may still be queued.
func (l *Listener) handle(m netlink.Message, ours *bool, after, until uint32) (done, touched bool, err error) {
	if len(m.Data) < codec.NfgenHead {
		return false, false, codec.ErrShort
	}
	a, err := codec.Parse(m.Data[codec.NfgenHead:])
	if err != nil {
		return false, false, err
	}
	if uint8(m.Header.Type) != unix.NFT_MSG_NEWGEN {
		// In all kinds of messages the first attribute names the table.
		*ours = *ours || a.Text(unix.NFTA_TABLE_NAME) == rules.Table && m.Header.PID != l.own.PID()
		return false, false, nil
	}
	was := *ours
	*ours = false
	generation := a.Uint32(unix.NFTA_GEN_ID)
	within := int32(generation-after) > 0 // generations wrap around
	return int32(generation-until) >= 0, was && within && int32(generation-until) <= 0, nil
}
