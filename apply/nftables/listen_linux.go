package nftables

import (
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	rules "github.com/proxyc/proxyc/render/nftables"
)

// listener hears of the changes of all tables, to tell whether others changed
// ours. While it rests, it hears nothing.
type listener struct {
	nl  *netlink.Conn
	own uint32 // address of the connection by which we change tables
}

const (
	// hearingBuffer holds what others change during a reading.
	hearingBuffer = 8 << 20
	// hearingLate is how long after a change the kernel may tell of it.
	hearingLate = time.Second
)

func dialListener(netns int, own *conn) (*listener, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("listening to nf_tables: %w", err)
	}
	if err := nl.SetReadBuffer(hearingBuffer); err != nil {
		nl.Close()
		return nil, fmt.Errorf("listening to nf_tables: %w", err)
	}
	return &listener{nl, own.nl.PID()}, nil
}

func (l *listener) listen() error {
	if err := l.nl.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("listening to nf_tables: %w", err)
	}
	return nil
}

func (l *listener) rest() { l.nl.LeaveGroup(unix.NFNLGRP_NFTABLES) }

// touched reports whether others changed our tables after one generation and until
// another one. Where messages were lost, they did as far as anybody knows.
func (l *listener) touched(after, until uint32) bool {
	if after == until {
		return false
	}
	if err := l.nl.SetReadDeadline(time.Now().Add(hearingLate)); err != nil {
		return true
	}
	ours := false // of the transaction whose messages come now; its number is the last
	for {
		msgs, err := l.nl.Receive()
		if err != nil {
			return true
		}
		for _, m := range msgs {
			done, touched, err := l.met(m, &ours, after, until)
			if done || touched || err != nil {
				return touched || err != nil
			}
		}
	}
}

// met looks at one message. Messages of earlier transactions may be there from
// the last time.
func (l *listener) met(m netlink.Message, ours *bool, after, until uint32) (done, touched bool, err error) {
	if len(m.Data) < nfgenHead {
		return false, false, errShort
	}
	a, err := parse(m.Data[nfgenHead:])
	if err != nil {
		return false, false, err
	}
	if uint8(m.Header.Type) != unix.NFT_MSG_NEWGEN {
		// In all kinds of messages the first attribute names the table.
		*ours = *ours || a.text(unix.NFTA_TABLE_NAME) == rules.Table && m.Header.PID != l.own
		return false, false, nil
	}
	was := *ours
	*ours = false
	generation := a.u32(unix.NFTA_GEN_ID)
	within := int32(generation-after) > 0 // generations wrap around
	return int32(generation-until) >= 0, was && within && int32(generation-until) <= 0, nil
}
