package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/socket"
)

// Watch calls changed once, and after each change of an address in the network namespace of the
// calling thread, until ctx ends. While it cannot listen to changes, it calls changed with the reason
// at intervals of at most a minute. Interfaces without addresses do not matter.
func Watch(ctx context.Context, changed func(missed error)) error {
	s, err := socket.New(socket.Config{Protocol: unix.NETLINK_ROUTE, Setup: func(nl *netlink.Conn) error {
		return errors.Join(nl.JoinGroup(unix.RTNLGRP_IPV4_IFADDR), nl.JoinGroup(unix.RTNLGRP_IPV6_IFADDR))
	}})
	if err != nil {
		return fmt.Errorf("listening to interface addresses: %w", err)
	}
	s.Follow(ctx, func(netlink.Message) { changed(nil) }, changed)
	return nil
}
