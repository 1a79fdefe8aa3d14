package monitor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
)

// listening opens an NFT in a new namespace. nft runs a script there.
func listening(t *testing.T, notify func(missed error)) (m *NFT, nft func(script string)) {
	t.Helper()
	ns := applytest.RequireNamespace(t)
	if err := ns.Do(func() (err error) {
		m, err = OpenNFT(NFTables, notify)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return m, func(script string) {
		t.Helper()
		cmd := ns.Command(context.WithoutCancel(t.Context()), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := ns.Run(cmd); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// Notifications that overflow a small buffer are reported as missed, and later ones are received.
func TestMissedMessages(t *testing.T) {
	reported := make(chan bool, 10_000)
	m, nft := listening(t, func(missed error) { reported <- missed != nil })
	if err := m.events.Set(func(nl *netlink.Conn) error { return nl.SetReadBuffer(1) }); err != nil { // the kernel uses its minimum
		t.Fatal(err)
	}
	var flood strings.Builder
	flood.WriteString("add table ip other\nadd set ip other s { type ipv4_addr; }\n")
	for i := range 5000 {
		fmt.Fprintf(&flood, "add element ip other s { 10.0.%d.%d }\n", i>>8, i&255)
	}
	nft(flood.String())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(t.Context()) }()
	t.Cleanup(func() { m.Close(); <-done })
	wait := func(what string, want bool) {
		t.Helper()
		limit := time.After(2 * time.Minute)
		for {
			select {
			case missed := <-reported:
				if missed == want {
					return
				}
			case <-limit:
				t.Fatalf("%s is not reported", what)
			}
		}
	}
	wait("that messages were missed", true)
	nft("add table ip proxyc\n")
	wait("a change of ours after that", false)
}

// A monitor that cannot listen at first reports that messages may be missed, and listens later.
func TestListensLater(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	reported := make(chan bool, 100)
	attempts := 0 // one goroutine at a time opens connections
	var m *NFT
	if err := ns.Do(func() (err error) {
		m, err = openNFT(NFTables, func(missed error) { reported <- missed != nil }, func(nl *netlink.Conn) error {
			if attempts++; attempts < 4 {
				return unix.ENOBUFS
			}
			return nl.JoinGroup(unix.NFNLGRP_NFTABLES)
		})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); m.Run(t.Context()) }()
	t.Cleanup(func() { m.Close(); <-done })
	want := func(what string, missed bool) {
		t.Helper()
		select {
		case got := <-reported:
			if got != missed {
				t.Fatalf("%s: missed: %t, want %t", what, got, missed)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s is not reported", what)
		}
	}
	want("the first attempt of Run", true)
	want("the second one", true)
	want("that messages before the third one were missed", true)
	if out, err := ns.Run(ns.Command(context.WithoutCancel(t.Context()), "nft", "add table ip proxyc")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want("a change of ours", false)
}
