//go:build linux

package userspace

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/proxyc/proxyc/ir"
)

// isPortTaken reports whether a port is in use by another program.
func isPortTaken(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

// readable waits until the socket is readable, so that waiting readers hold no buffer. It may
// return a pending error of the socket.
func readable(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var received error
	err = raw.Read(func(fd uintptr) bool {
		_, _, received = syscall.Recvfrom(int(fd), nil, syscall.MSG_PEEK)
		return !errors.Is(received, syscall.EAGAIN) && !errors.Is(received, syscall.EINTR)
	})
	if err != nil {
		return err
	}
	return received
}

// reserve binds a socket without serving it. No other program can use the port, and TCP clients are
// rejected, since nothing listens.
func reserve(k Key, at netip.AddrPort) (io.Closer, error) {
	domain, kind := ir.Pick(k.Family, syscall.AF_INET, syscall.AF_INET6), syscall.SOCK_STREAM
	if k.Port.Protocol == ir.UDP {
		kind = syscall.SOCK_DGRAM
	}
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(domain, kind, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	var to syscall.Sockaddr
	if k.Family == ir.IPv6 {
		if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 1); err != nil {
			syscall.Close(fd)
			return nil, os.NewSyscallError("setsockopt", err)
		}
		to = &syscall.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	} else {
		to = &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	if err := syscall.Bind(fd, to); err != nil {
		syscall.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return socketFD(fd), nil
}

// stopListening makes a listener reject connections while it keeps its port.
func stopListening(l *net.TCPListener) error {
	return control(l, func(fd int) error { return os.NewSyscallError("shutdown", syscall.Shutdown(fd, syscall.SHUT_RDWR)) })
}

// listenAgain reverses stopListening.
func listenAgain(l *net.TCPListener) error {
	return control(l, func(fd int) error { return os.NewSyscallError("listen", syscall.Listen(fd, backlog)) })
}

// backlog is the length of the accept queue; the kernel reduces it to its own limit.
const backlog = 1<<16 - 1

func control(c syscall.Conn, do func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// socketFD is a file descriptor.
type socketFD int

func (h socketFD) Close() error { return syscall.Close(int(h)) }
