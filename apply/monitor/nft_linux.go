package monitor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/apply/socket"
)

// NFT monitors nf_tables by the kernel's notifications.
type NFT struct {
	filter  Filter
	events  *socket.Socket
	queries *conn.Conn

	mu     sync.Mutex
	seen   transactions
	notify func(missed error)
}

// eventBuffer is the receive buffer in bytes. It has room for large changes, which send one
// notification per rule and element. An overflow is reported as missed notifications.
const eventBuffer = 8 << 20

// OpenNFT monitors the network namespace of the calling thread. It calls notify, from another
// goroutine, when another program changed something that concerns us, and with an error when
// notifications may have been missed. While it cannot listen, it tries again, and calls notify at
// intervals of at most a minute.
func OpenNFT(concern Filter, notify func(missed error)) (*NFT, error) {
	return openNFT(concern, notify, func(nl *netlink.Conn) error {
		return errors.Join(nl.SetReadBuffer(eventBuffer), nl.JoinGroup(unix.NFNLGRP_NFTABLES))
	})
}

func openNFT(concern Filter, notify func(missed error), listen func(*netlink.Conn) error) (*NFT, error) {
	events, err := socket.New(socket.Config{Protocol: unix.NETLINK_NETFILTER, Setup: listen})
	if err != nil {
		return nil, fmt.Errorf("listening to nf_tables: %w", err)
	}
	queries, err := conn.New(0)
	if err != nil {
		events.Close()
		return nil, fmt.Errorf("listening to nf_tables: %w", err)
	}
	m := &NFT{filter: concern, events: events, queries: queries, notify: notify}
	m.seen.own = ownNames()
	events.Connect() // before reading the generation; Run tries again
	if m.seen.last, err = queries.Generation(context.Background()); err != nil {
		m.notify(err)
	}
	return m, nil
}

// ownNames returns the kernel's names of the programs that write our rules.
func ownNames() []string {
	names := []string{"iptables-nft-re", "ip6tables-nft-r"}
	if comm, err := os.ReadFile("/proc/self/comm"); err == nil {
		names = append(names, strings.TrimSpace(string(comm)))
	}
	return names
}

// Own calls work, in which one program that it starts, or this thread, changes the rules. work
// returns true if it certainly made a transaction.
func (m *NFT) Own(work func() (certain bool)) {
	runtime.LockOSThread() // the kernel reports the thread
	defer runtime.UnlockOSThread()
	from, err := m.queries.Generation(context.Background())
	if err != nil {
		work()
		m.notify(err)
		return
	}
	m.mu.Lock()
	w := m.seen.begin(from)
	m.mu.Unlock()
	certain := work()
	until, err := m.queries.Generation(context.Background())
	m.mu.Lock()
	foreign := m.seen.end(w, until, certain && err == nil)
	m.mu.Unlock()
	switch {
	case err != nil:
		m.notify(err)
	case foreign:
		m.notify(nil)
	}
}

// OwnMuted is Own for changes without notifications. work returns the number of its transactions.
// While any socket listens, the kernel creates an 8 KiB notification for each changed element, and
// holds them all until the transaction ends: 7 GB for a million elements. OwnMuted detects foreign
// transactions by their number; their content is unknown.
func (m *NFT) OwnMuted(work func() (transactions uint32)) {
	before, err := m.queries.Generation(context.Background())
	if err == nil {
		err = m.events.Set(func(nl *netlink.Conn) error { return nl.LeaveGroup(unix.NFNLGRP_NFTABLES) })
	}
	made := work()
	joined := m.events.Set(func(nl *netlink.Conn) error { return nl.JoinGroup(unix.NFNLGRP_NFTABLES) })
	after, asked := m.queries.Generation(context.Background())
	why := errors.Join(err, joined, asked)
	if why == nil && after-before != made { // generations wrap around
		why = errors.New("another program made a transaction meanwhile")
	}
	if why != nil {
		m.notify(why)
	}
}

// ChangedBy returns the programs that changed something of ours since the last call, as the kernel
// names them: "nft (process 4711)".
func (m *NFT) ChangedBy() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	by := m.seen.programs
	m.seen.programs = nil
	return by
}

// Close ends Run.
func (m *NFT) Close() error { return errors.Join(m.events.Close(), m.queries.Close()) }

// Run receives notifications until Close.
func (m *NFT) Run(ctx context.Context) {
	touched := false // by the current transaction
	m.events.Follow(ctx, func(msg netlink.Message) {
		m.mu.Lock()
		defer m.mu.Unlock()
		switch kind := uint8(msg.Header.Type); {
		case kind == unix.NFT_MSG_NEWGEN:
			one := parseGeneration(msg.Data)
			one.touched, touched = touched, false
			if m.seen.add(one) {
				m.notify(nil)
			}
		default:
			touched = touched || m.relevant(kind, msg.Data)
		}
	}, func(err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		touched = false
		m.seen.lost()
		if err == nil {
			err = errors.New("the first attempt failed")
		}
		m.notify(fmt.Errorf("listening to nf_tables: %w", err))
	})
}

func parseGeneration(data []byte) transaction {
	a := attributes(data)
	return transaction{generation: a.Uint32(unix.NFTA_GEN_ID), program: a.Text(unix.NFTA_GEN_PROC_NAME), process: a.Uint32(unix.NFTA_GEN_PROC_PID)}
}

// attributes returns the attributes of a message.
func attributes(data []byte) codec.Fields {
	if len(data) < codec.NfgenHead {
		return nil
	}
	a, _ := codec.Parse(data[codec.NfgenHead:]) // the kernel's messages are valid
	return a
}

// relevant reports whether a message is about something of ours. The first attribute of every
// message is the table. In messages about rules the second one is the chain, in messages about
// chains the third one. The kernel sends a message about a table when it is created and when its
// flags change, which may disable everything in it. A table of another family is foreign, whatever
// its name.
func (m *NFT) relevant(kind uint8, data []byte) bool {
	chainAt := uint16(0) // no attribute
	loss := false
	if len(data) < codec.NfgenHead || data[0] != unix.NFPROTO_IPV4 && data[0] != unix.NFPROTO_IPV6 {
		return false
	}
	switch kind {
	case unix.NFT_MSG_NEWRULE: // the rule contains the name of the chain that it jumps to
		chainAt, loss = unix.NFTA_RULE_CHAIN, bytes.Contains(data, []byte("KUBE-"))
	case unix.NFT_MSG_DELRULE:
		chainAt, loss = unix.NFTA_RULE_CHAIN, true
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chainAt, loss = unix.NFTA_CHAIN_NAME, kind == unix.NFT_MSG_DELCHAIN
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM:
		loss = true
	}
	a := attributes(data)
	return m.filter(a.Text(unix.NFTA_TABLE_NAME), a.Text(chainAt), loss)
}
