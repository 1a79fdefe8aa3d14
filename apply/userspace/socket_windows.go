package userspace

import (
	"errors"
	"net"

	"golang.org/x/sys/windows"
)

// taken reports whether a port belongs to somebody else, or to nobody: Windows keeps
// ranges of ports to itself.
func taken(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES)
}

// readable waits until there is something to read, so that no buffer waits with it.
func readable(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	waited := false
	return raw.Read(func(uintptr) bool { // it waits once the function says no
		ready := waited
		waited = true
		return ready
	})
}
