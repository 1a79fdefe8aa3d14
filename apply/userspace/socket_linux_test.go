package userspace

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// TestHoldPort: a held port cannot be bound by another socket, and rejects TCP clients.
func TestHoldPort(t *testing.T) {
	for _, family := range ir.Families() {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(family.Loopback().Addr(), 0)))
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().(*net.TCPAddr).AddrPort()
		l.Close()
		for _, protocol := range []ir.Protocol{ir.TCP, ir.UDP} {
			held, err := reserve(Key{Family: family, Port: ir.ServicePort{Protocol: protocol}}, at)
			if err != nil || held == nil {
				t.Fatalf("%s/%s: held %v, %v", at, protocol, held, err)
			}
			if protocol == ir.TCP {
				_, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
				if c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at)); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%s: connected %v, %v; want a refusal", at, c, err)
				}
			} else {
				_, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			}
			if !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("%s/%s: bound while held: %v", at, protocol, err)
			}
			if err := held.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
