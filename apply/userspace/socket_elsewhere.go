//go:build !linux && !windows

package userspace

import "net"

// isPortTaken reports whether a port may be in use. On this system any error may mean that.
func isPortTaken(err error) bool { return err != nil }

// readable does not wait, so the reader holds its buffer while it waits.
func readable(*net.UDPConn) error { return nil }
