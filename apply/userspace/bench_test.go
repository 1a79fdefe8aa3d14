package userspace

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// sink accepts connections, reads everything, and closes.
func sink(b *testing.B) netip.AddrPort {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// ways runs a benchmark through a Proxy and without one.
func ways(b *testing.B, run func(b *testing.B, to netip.AddrPort)) {
	to := sink(b)
	p := NewProxy(Options{Limits: fitLimits(DefaultLimits), DialTimeouts: dials, UDPIdle: time.Minute})
	at, err := p.Open(ir.IPv4, listenerTo(ir.TCP, to), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close(b.Context()) })
	b.Run("proxy", func(b *testing.B) { run(b, at) })
	b.Run("direct", func(b *testing.B) { run(b, to) })
}

// BenchmarkConnections opens and closes connections one by one.
func BenchmarkConnections(b *testing.B) {
	ways(b, func(b *testing.B, to netip.AddrPort) {
		for b.Loop() {
			c, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(to))
			if err != nil {
				b.Fatal(err)
			}
			c.CloseWrite()
			io.Copy(io.Discard, c)
			c.Close()
		}
	})
}

// BenchmarkThroughput sends data over one connection.
func BenchmarkThroughput(b *testing.B) {
	ways(b, func(b *testing.B, to netip.AddrPort) {
		c, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(to))
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		chunk := make([]byte, 1<<20)
		b.SetBytes(int64(len(chunk)))
		for b.Loop() {
			if _, err := c.Write(chunk); err != nil {
				b.Fatal(err)
			}
		}
	})
}
