package userspace

import (
	"errors"
	"net"

	"golang.org/x/sys/windows"
)

// isPortTaken reports whether a port is in use or reserved. Windows reserves ranges of ports.
func isPortTaken(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES)
}

// readable waits until the socket is readable, so that waiting readers hold no buffer.
func readable(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	waited := false
	return raw.Read(func(uintptr) bool { // Read waits after the function has returned false
		ready := waited
		waited = true
		return ready
	})
}
