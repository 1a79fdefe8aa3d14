package userspace

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

var dials = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

func newTestProxy(t *testing.T, l Limits) *Proxy {
	t.Helper()
	p := NewProxy(Options{Limits: l, DialTimeouts: dials, UDPIdle: time.Minute})
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		p.Drain(ended)
	})
	return p
}

func port(protocol ir.Protocol) ir.ServicePort {
	return ir.ServicePort{Service: ir.Name{Namespace: "default", Name: "web"}, Port: "p", Protocol: protocol}
}

func listenerTo(protocol ir.Protocol, backends ...netip.AddrPort) *rules.Listener {
	return &rules.Listener{Port: port(protocol), Listen: netip.MustParseAddrPort("127.0.0.1:0"), Backends: backends}
}

// counted returns the counters of a protocol over IPv4.
func counted(p *Proxy, protocol ir.Protocol) apply.Proxied {
	for _, c := range p.Counts() {
		if c.Family == ir.IPv4 && c.Protocol == protocol {
			return c
		}
	}
	return apply.Proxied{}
}

// open opens a listener of a Proxy.
func open(t *testing.T, p *Proxy, l *rules.Listener) netip.AddrPort {
	t.Helper()
	at, err := p.Open(ir.IPv4, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// update changes the backends of an open listener.
func update(t *testing.T, p *Proxy, l *rules.Listener) {
	t.Helper()
	l.Listen, _ = p.At(KeyOf(ir.IPv4, l))
	open(t, p, l)
}

// backend serves TCP connections until the test ends.
func backend(t *testing.T, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.AcceptTCP()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// named replies to each connection with its name, and then echoes.
func named(t *testing.T, name string) netip.AddrPort {
	return backend(t, func(c *net.TCPConn) {
		io.WriteString(c, name+"\n")
		io.Copy(c, c)
	})
}

// dead returns an address where nothing listens.
func dead(t *testing.T) netip.AddrPort {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func dialTCP(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(2 * time.Minute))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// hello reads the name of a connection's backend.
func hello(t *testing.T, c net.Conn) string {
	t.Helper()
	var line []byte
	one := make([]byte, 1)
	for {
		if _, err := c.Read(one); err != nil {
			t.Fatalf("after %q: %v", line, err)
		}
		if one[0] == '\n' {
			return string(line)
		}
		line = append(line, one[0])
	}
}

func echoes(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("sent %q, got %q, %v", text, got, err)
	}
}

func TestTCP(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	at := open(t, p, listenerTo(ir.TCP, named(t, "a"), named(t, "b")))
	seen := map[string]int{}
	for range 4 {
		c := dialTCP(t, at)
		seen[hello(t, c)]++
		echoes(t, c, "ping")
	}
	if seen["a"] != 2 || seen["b"] != 2 {
		t.Errorf("reached %v, want each twice", seen)
	}
}

// A client that has closed its direction still receives the complete reply, and the backend sees
// the end of the request before it replies.
func TestHalfClosed(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	at := open(t, p, listenerTo(ir.TCP, backend(t, func(c *net.TCPConn) {
		all, err := io.ReadAll(c)
		if err == nil && string(all) == "question" {
			c.Write(big)
		}
	})))
	c := dialTCP(t, at)
	io.WriteString(c, "question")
	c.CloseWrite()
	if answer, err := io.ReadAll(c); err != nil || !bytes.Equal(answer, big) {
		t.Errorf("got %d bytes, %v; want %d", len(answer), err, len(big))
	}

	// The reverse: the backend has closed its direction, and the client continues.
	got := make(chan string, 1)
	update(t, p, listenerTo(ir.TCP, backend(t, func(c *net.TCPConn) {
		io.WriteString(c, "bye\n")
		c.CloseWrite()
		all, _ := io.ReadAll(c)
		got <- string(all)
	})))
	c = dialTCP(t, at)
	if hello(t, c) != "bye" {
		t.Error("no word")
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("want the end, got %v", err)
	}
	io.WriteString(c, "last words")
	c.CloseWrite()
	if s := <-got; s != "last words" {
		t.Errorf("the backend heard %q", s)
	}
}

// A connection that breaks on one side is reset on the other. An orderly end would make a partial
// reply look complete.
func TestBrokenConnectionStaysBroken(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	at := open(t, p, listenerTo(ir.TCP, backend(t, func(c *net.TCPConn) {
		c.Read(make([]byte, 1))
		io.WriteString(c, "half\n")
		c.SetLinger(0)
	})))
	c := dialTCP(t, at)
	io.WriteString(c, "?")
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("want a reset, got %v", err)
	}
}

// A backend that does not respond is replaced by the next one, also for its clients with affinity.
func TestDeadBackends(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	l := listenerTo(ir.TCP, dead(t), named(t, "alive"), dead(t), dead(t))
	l.Affinity = time.Hour
	at := open(t, p, l)
	for range 3 {
		if got := hello(t, dialTCP(t, at)); got != "alive" {
			t.Errorf("reached %q", got)
		}
	}
	update(t, p, listenerTo(ir.TCP, dead(t)))
	conn, err := net.Dial("tcp4", at.String())
	if err == nil { // the reset may arrive with the connection
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("nobody alive: want a reset, got %v", err)
	}
	if s := counted(p, ir.TCP); s.Unreachable != 1 || s.Accepted != 4 || s.DialFailures < 4 || s.DialFailures > 7 || s.Listeners != 1 {
		t.Errorf("counted %+v", s)
	}
}

// Each port of a Service has its own listener, round robin and affinity. One is removed and added
// again with the same port, without effect on the others.
func TestPortsOfAService(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	tcp, udp := listenerTo(ir.TCP, named(t, "a"), named(t, "b")), listenerTo(ir.UDP)
	answering, _ := udpBackend(t, "u")
	udp.Backends = []netip.AddrPort{answering}
	other := listenerTo(ir.TCP, named(t, "c"), named(t, "d"))
	other.Port.Port = "q"
	tcp.Affinity = time.Hour
	tcp.Listen, udp.Listen = open(t, p, tcp), open(t, p, udp)
	otherAt := open(t, p, other)
	bound := hello(t, dialTCP(t, tcp.Listen))
	last := hello(t, dialTCP(t, otherAt))
	inTurn := func() {
		t.Helper()
		got := hello(t, dialTCP(t, otherAt))
		if got == last || got != "c" && got != "d" {
			t.Errorf("the other port leads to %q after %q", got, last)
		}
		last = got
	}
	for range 3 {
		inTurn()
		if got := hello(t, dialTCP(t, tcp.Listen)); got != bound {
			t.Errorf("bound to %q, led to %q", bound, got)
		}
	}
	for _, l := range []*rules.Listener{tcp, udp} {
		p.CloseListener(Key{Family: ir.IPv4, Port: l.Port})
		if _, is := p.At(Key{Family: ir.IPv4, Port: l.Port}); is {
			t.Errorf("%s is there after its end", l.Port)
		}
		inTurn()
		if again := open(t, p, l); again != l.Listen {
			t.Errorf("%s comes back at %v, not at %v", l.Port, again, l.Listen)
		}
	}
	hello(t, dialTCP(t, tcp.Listen))
	if got := asks(t, dialUDP(t, udp.Listen), "?"); got != "u?" {
		t.Errorf("UDP answers %q", got)
	}
}

// Each family and protocol has its own counters. A listener without backends does not count.
func TestCounts(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	at := open(t, p, listenerTo(ir.TCP, named(t, "a")))
	open(t, p, listenerTo(ir.UDP))
	hello(t, dialTCP(t, at))
	var got []apply.Proxied
	for _, c := range p.Counts() {
		if c.Listeners+c.Clients > 0 || c.Accepted > 0 {
			got = append(got, c)
		}
	}
	want := []apply.Proxied{{Family: ir.IPv4, Protocol: ir.TCP, Listeners: 1, Clients: 1, Accepted: 1}}
	if runtime.GOOS != "linux" { // elsewhere a port cannot be kept without listening
		t.Skip("the listener without a backend counts")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n := len(p.Counts()); n != 4 {
		t.Errorf("%d rows, want one for each family and protocol", n)
	}
}

// Without backends clients are rejected as if nothing listened, and no other program can use the
// port.
func TestRefusesWithoutBackends(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems accept, and reset")
	}
	p := newTestProxy(t, DefaultLimits)
	a := named(t, "a")
	at := open(t, p, listenerTo(ir.TCP))
	for range 3 {
		if _, err := net.Dial("tcp4", at.String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("want a refusal, got %v", err)
		}
		update(t, p, listenerTo(ir.TCP, a))
		c := dialTCP(t, at)
		if got := hello(t, c); got != "a" {
			t.Fatalf("reached %q", got)
		}
		update(t, p, listenerTo(ir.TCP))
		echoes(t, c, "going on")
	}
	p.CloseListener(Key{Family: ir.IPv4, Port: port(ir.TCP)})

	b, _ := udpBackend(t, "b")
	l := listenerTo(ir.UDP)
	l.Listen = netip.MustParseAddrPort("0.0.0.0:0")
	at = open(t, p, l)
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port())
	for range 3 {
		c := dialUDP(t, to)
		c.Write([]byte("?"))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("UDP: want a refusal, got %v", err)
		}
		if l, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(at.Port())}); err == nil {
			l.Close()
			t.Fatal("somebody else got the port")
		}
		update(t, p, &rules.Listener{Port: port(ir.UDP), Listen: l.Listen, Backends: []netip.AddrPort{b}})
		if got := asks(t, c, "!"); got != "b!" {
			t.Fatalf("got %q", got)
		}
		update(t, p, &rules.Listener{Port: port(ir.UDP), Listen: l.Listen})
	}
}

// A port that another program took while there were no backends is an error, and is served once it is
// free.
func TestPortTakenWithoutBackends(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems accept, and reset")
	}
	p := newTestProxy(t, DefaultLimits)
	l := listenerTo(ir.TCP)
	l.Listen = open(t, p, l)
	other, err := net.Listen("tcp4", l.Listen.String())
	if err != nil {
		t.Fatal(err)
	}
	l.Backends = []netip.AddrPort{named(t, "a")}
	for range 2 {
		if _, err := p.Open(ir.IPv4, l, nil); !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("got %v, want that the port is in use", err)
		}
		if open, _ := p.Status(ir.IPv4, l); open {
			t.Error("it counts as open")
		}
	}
	other.Close()
	if got := hello(t, dialTCP(t, open(t, p, l))); got != "a" {
		t.Errorf("reached %q", got)
	}
}

// Connections outlive their backend and their listener.
func TestConnectionsGoOn(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	at := open(t, p, listenerTo(ir.TCP, named(t, "old")))
	c := dialTCP(t, at)
	hello(t, c)
	update(t, p, listenerTo(ir.TCP, named(t, "new")))
	echoes(t, c, "still here")
	if got := hello(t, dialTCP(t, at)); got != "new" {
		t.Errorf("a new connection reached %q", got)
	}
	p.CloseListener(Key{Family: ir.IPv4, Port: port(ir.TCP)})
	echoes(t, c, "and here")
	if conn, err := net.Dial("tcp4", at.String()); err == nil {
		conn.Close()
		t.Error("a listener that was shut takes connections")
	}
	// The port can be used again while the connection exists.
	l := listenerTo(ir.TCP, named(t, "again"))
	l.Listen = at
	if open(t, p, l) != at {
		t.Error("not at the same place")
	}
	if got := hello(t, dialTCP(t, at)); got != "again" {
		t.Errorf("reached %q", got)
	}
	echoes(t, c, "and here, too")
}

// Close waits for connections, and closes those that do not end in time.
func TestDrain(t *testing.T) {
	p := NewProxy(Options{Limits: DefaultLimits, DialTimeouts: dials, UDPIdle: time.Minute})
	at := open(t, p, listenerTo(ir.TCP, named(t, "a")))
	short, long := dialTCP(t, at), dialTCP(t, at)
	hello(t, short)
	hello(t, long)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() { ended <- p.Drain(ctx) }()
	for { // until the port is closed
		conn, err := net.Dial("tcp4", at.String())
		if err != nil {
			break
		}
		conn.Close()
	}
	echoes(t, short, "going on")
	short.CloseWrite()
	if rest, err := io.ReadAll(short); err != nil || len(rest) > 0 {
		t.Errorf("the end: %q, %v", rest, err)
	}
	select {
	case <-ended:
		t.Fatal("did not wait for the other one")
	default:
	}
	applytest.Until(t, 0, "Carried <= 1", func() bool { return p.Carried() <= 1 })
	echoes(t, long, "going on")
	cancel()
	if cut := <-ended; cut != 1 {
		t.Errorf("%d were cut off, want 1", cut)
	}
	if _, err := long.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("want a reset, got %v", err)
	}
}

// If the port is in use, another is used.
func TestTakenPort(t *testing.T) {
	for _, protocol := range []ir.Protocol{ir.TCP, ir.UDP} {
		p := newTestProxy(t, DefaultLimits)
		var other netip.AddrPort
		if protocol == ir.TCP {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			other = l.Addr().(*net.TCPAddr).AddrPort()
		} else {
			l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			other = l.LocalAddr().(*net.UDPAddr).AddrPort()
		}
		l := listenerTo(protocol)
		l.Listen = other
		if _, err := p.Open(ir.IPv4, l, nil); err == nil || !strings.Contains(err.Error(), other.String()) {
			t.Errorf("%s: want an error that names %s, got %v", protocol, other, err)
		}
		var asked []uint16
		at, err := p.Open(ir.IPv4, l, func(yield func(uint16) bool) {
			for _, n := range []uint16{other.Port(), 0, 1} {
				asked = append(asked, n)
				if !yield(n) {
					return
				}
			}
		})
		if err != nil || at.Port() == 0 || at.Port() == other.Port() || len(asked) != 2 {
			t.Errorf("%s: at %s, %v, after ports %v", protocol, at, err, asked)
		}
		if got, ok := p.At(Key{Family: ir.IPv4, Port: port(protocol)}); !ok || got != at {
			t.Errorf("%s: At says %s", protocol, got)
		}
	}
}

// No other program can use a held port, and its clients are rejected.
func TestHold(t *testing.T) {
	p := newTestProxy(t, DefaultLimits)
	open(t, p, listenerTo(ir.TCP, named(t, "a")))
	place := dead(t)
	if err := p.Reserve(ir.IPv4, port(ir.TCP), []netip.AddrPort{place}); err != nil {
		t.Fatal(err)
	}
	if err := p.Reserve(ir.IPv4, port(ir.TCP), []netip.AddrPort{place}); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if l, err := net.Listen("tcp4", place.String()); err == nil {
		l.Close()
		t.Error("somebody else got the number")
	}
	if _, err := net.Dial("tcp4", place.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("want a refusal, got %v", err)
	}
	if err := p.Reserve(ir.IPv4, port(ir.TCP), nil); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", place.String())
	if err != nil {
		t.Fatalf("given back, and not to be had: %v", err)
	}
	defer l.Close()
	if err := p.Reserve(ir.IPv4, port(ir.TCP), []netip.AddrPort{place}); err == nil || !strings.Contains(err.Error(), place.String()) {
		t.Errorf("want an error that names %s, got %v", place, err)
	}
}

// Above the limit a connection waits for the end of another.
func TestLimit(t *testing.T) {
	p := newTestProxy(t, Limits{Connections: 2, Sessions: 1})
	at := open(t, p, listenerTo(ir.TCP, named(t, "a")))
	first, second := dialTCP(t, at), dialTCP(t, at)
	hello(t, first)
	hello(t, second)
	third := dialTCP(t, at) // accepted by the kernel
	applytest.Until(t, 0, "Waited > 0", func() bool { return counted(p, ir.TCP).Waited > 0 })
	if n := p.Carried(); n != 2 {
		t.Errorf("%d connections are carried", n)
	}
	first.CloseWrite()
	if got := hello(t, third); got != "a" {
		t.Errorf("reached %q", got)
	}
}
