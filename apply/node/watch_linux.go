package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch calls changed each time an address comes or goes in the network
// namespace of the calling thread, until ctx ends. Interfaces themselves are
// not watched: they count by their addresses.
func Watch(ctx context.Context, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{
		Groups: unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
	if err != nil {
		return fmt.Errorf("listening to interface addresses: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		if stop() {
			conn.Close()
		}
	}()
	changed() // what changes from here on is seen
	for {
		_, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrClosed):
			return fmt.Errorf("listening to interface addresses: %w", err)
		}
		changed() // after an error, too: messages were lost
	}
}
