//go:build !linux

package userspace

import (
	"errors"
	"io"
	"net"
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// reserve listens without accepting, so that no other program can use the port.
func reserve(k Key, at netip.AddrPort) (io.Closer, error) {
	if k.Port.Protocol == ir.UDP {
		return net.ListenUDP(network(k), net.UDPAddrFromAddrPort(at))
	}
	return net.ListenTCP(network(k), net.TCPAddrFromAddrPort(at))
}

// stopListening is not supported: connections are accepted and reset.
func stopListening(*net.TCPListener) error { return errors.ErrUnsupported }

func listenAgain(*net.TCPListener) error { return errors.ErrUnsupported }
