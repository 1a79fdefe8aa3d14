//go:build !linux

package userspace

import (
	"errors"
	"io"
	"net"
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// hold listens without accepting, so that no other program can use the port.
func hold(k Key, at netip.AddrPort) (io.Closer, error) {
	if k.Port.Protocol == ir.UDP {
		return net.ListenUDP(network(k), net.UDPAddrFromAddrPort(at))
	}
	return net.ListenTCP(network(k), net.TCPAddrFromAddrPort(at))
}

// hush is not supported: connections are accepted and reset.
func hush(*net.TCPListener) error { return errors.ErrUnsupported }

func listenAgain(*net.TCPListener) error { return errors.ErrUnsupported }
