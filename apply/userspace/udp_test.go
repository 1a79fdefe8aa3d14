package userspace

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
)

// udpBackend replies to each datagram with its name and the datagram, and reports the sender.
func udpBackend(t *testing.T, name string) (netip.AddrPort, chan netip.AddrPort) {
	t.Helper()
	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	from, done := make(chan netip.AddrPort, 100), make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, maxDatagram)
		for {
			n, client, err := l.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			from <- client
			l.WriteToUDPAddrPort(append([]byte(name), buffer[:n]...), client)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.LocalAddr().(*net.UDPAddr).AddrPort(), from
}

func dialUDP(t *testing.T, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	t.Cleanup(func() { c.Close() })
	return c
}

func asks(t *testing.T, c *net.UDPConn, text string) string {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, maxDatagram)
	n, err := c.Read(buffer)
	if err != nil {
		t.Fatalf("asked %q: %v", text, err)
	}
	return string(buffer[:n])
}

func TestUDP(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	a, fromA := udpBackend(t, "a")
	b, fromB := udpBackend(t, "b")
	at := open(t, p, listenerTo(ir.UDP, a, b))
	first, second := dialUDP(t, at), dialUDP(t, at)
	one, two := asks(t, first, "1"), asks(t, second, "1")
	if one == two {
		t.Errorf("both reached %q", one)
	}
	for range 3 {
		if again := asks(t, first, "1"); again != one {
			t.Errorf("the client that had %q has %q", one, again)
		}
	}
	big := string(bytes.Repeat([]byte("x"), 60000))
	if got := asks(t, first, big); got != one[:1]+big {
		t.Errorf("%d bytes became %d", len(big), len(got)-1)
	}
	sources := map[netip.AddrPort]bool{}
	for _, from := range []chan netip.AddrPort{fromA, fromB} {
		for len(from) > 0 {
			sources[<-from] = true
		}
	}
	if len(sources) != 2 {
		t.Errorf("two clients came from %d sockets", len(sources))
	}
	if n := counted(p, ir.UDP).Clients; n != 2 {
		t.Errorf("%d sessions", n)
	}
}

// A client that was silent for the timeout loses its socket, and receives a new one.
func TestUDPIdle(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	p.SetUDPIdle(50 * time.Millisecond)
	a, from := udpBackend(t, "a")
	at := open(t, p, listenerTo(ir.UDP, a))
	c := dialUDP(t, at)
	asks(t, c, "1")
	first := <-from
	applytest.Until(t, 0, "Clients == 0", func() bool { return counted(p, ir.UDP).Clients == 0 })
	asks(t, c, "2")
	if second := <-from; second == first {
		t.Error("the same socket as before")
	}
}

// Clients of a removed backend receive another; the others keep theirs.
func TestUDPBackendGoes(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	a, _ := udpBackend(t, "a")
	b, _ := udpBackend(t, "b")
	at := open(t, p, listenerTo(ir.UDP, a, b))
	clients := map[string]*net.UDPConn{}
	for len(clients) < 2 {
		c := dialUDP(t, at)
		clients[asks(t, c, "")] = c
	}
	update(t, p, listenerTo(ir.UDP, b))
	for had, c := range clients {
		if got := asks(t, c, ""); got != "b" {
			t.Errorf("the client of %s reaches %q", had, got)
		}
	}
	p.CloseListener(Key{Family: ir.IPv4, Port: port(ir.UDP)})
	applytest.Until(t, 0, "Clients == 0", func() bool { return counted(p, ir.UDP).Clients == 0 })
}

// A client whose backend rejects datagrams receives the next backend.
func TestUDPRefused(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	gone, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	nobody := gone.LocalAddr().(*net.UDPAddr).AddrPort()
	gone.Close()
	a, _ := udpBackend(t, "a")
	at := open(t, p, listenerTo(ir.UDP, a, nobody))
	c := dialUDP(t, at)
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		c.Read(make([]byte, 10))
	}()
	for {
		select {
		case <-answers:
			return
		case <-time.After(10 * time.Millisecond):
			c.Write([]byte("?"))
		}
	}
}

// Clients above the limit are served only after others expire.
func TestUDPLimit(t *testing.T) {
	p := newTestProxy(t, Limits{Connections: 1, Sessions: 1})
	a, from := udpBackend(t, "a")
	at := open(t, p, listenerTo(ir.UDP, a))
	first, second := dialUDP(t, at), dialUDP(t, at)
	asks(t, first, "1")
	<-from
	second.Write([]byte("2"))
	applytest.Until(t, 0, "Dropped > 0", func() bool { return counted(p, ir.UDP).Dropped > 0 })
	if len(from) > 0 {
		t.Error("served all the same")
	}
	p.SetUDPIdle(time.Millisecond)
	asks(t, first, "1") // and detects the rejection
	applytest.Until(t, 0, "Clients == 0", func() bool { return counted(p, ir.UDP).Clients == 0 })
	asks(t, second, "3")
}

// A client that sends to one of several addresses receives replies from it.
func TestUDPAnswersFromWhereItWasAsked(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	a, _ := udpBackend(t, "a")
	l := listenerTo(ir.UDP, a)
	l.Listen = netip.MustParseAddrPort("0.0.0.0:0")
	at := open(t, p, l)
	asks(t, dialUDP(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.7"), at.Port())), "1")
}

// Expiry uses the monotonic clock. With the wall clock, setting it forward would end all sessions,
// and setting it back none.
func TestSilenceIsNotByTheTimeOfDay(t *testing.T) {
	one := session{began: time.Now()}
	one.touch()
	until := one.expiry(time.Minute)
	set := one.began.Round(0).AddDate(1, 0, 0) // the wall clock, set forward by a year
	if !strings.Contains(until.String(), " m=+") || !set.After(until) {
		t.Errorf("silent at %s, which has no monotonic reading", until)
	}
	if left := time.Until(until); left <= 0 || left > time.Minute {
		t.Errorf("%s are left, want at most a minute", left)
	}
}
