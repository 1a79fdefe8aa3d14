package userspace

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// nodePort returns a Service whose node port has backends for external clients, and by rules none
// for the node's own processes.
func nodePort(name string, at uint16, backends ...netip.AddrPort) ir.Service {
	id := ir.Name{Namespace: "default", Name: name}
	port := ir.ServicePort{Service: id, Port: "http", Protocol: ir.TCP}
	s := ir.Service{Name: id, Pools: []ir.Pool{
		{Port: port, Policy: ir.Cluster, Backends: []ir.Backend{{AddrPort: netip.MustParseAddrPort("192.0.2.1:1")}}},
		{Port: port, Policy: ir.Local},
	}}
	f := ir.Frontend{Kind: ir.NodePort, Match: ir.Match{Protocol: ir.TCP, Port: at}, Port: port, Policy: ir.Local,
		Routes: []ir.Route{{From: ir.ThisNode, Pool: 0, SNAT: true}}}
	for _, b := range backends {
		s.Pools[1].Backends = append(s.Pools[1].Backends, ir.Backend{AddrPort: b})
	}
	if len(backends) > 0 {
		f.Routes = append(f.Routes, ir.Route{From: ir.Any, Pool: 1})
	}
	s.Frontends = []ir.Frontend{
		{Kind: ir.ClusterIP, Match: ir.Match{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: ir.TCP, Port: 80}, Port: port, Routes: f.Routes}, f,
	}
	return s
}

func programsOf(services ...ir.Service) ir.Programs {
	return ir.Programs{IPv4: &ir.Program{Family: ir.IPv4, Node: ir.Node{NodePorts: ir.NodePortAddrs{Proxied: true}}, Services: services}}
}

// reported contains the last result of each failed listener.
type reported struct {
	mu   sync.Mutex
	last map[ir.ServicePort]error
	n    int
}

func (x *reported) tell(_ ir.Family, l *rules.Listener, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last[l.Port] = err
	x.n++
}

func (x *reported) failing() (list []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for port, err := range x.last {
		if err != nil {
			list = append(list, port.Service.Name)
		}
	}
	return list
}

func newLocalhost(t *testing.T) (*Localhost, *reported) {
	t.Helper()
	x := &reported{last: map[ir.ServicePort]error{}}
	l := NewLocalhost(slog.New(slog.DiscardHandler), x.tell)
	t.Cleanup(func() {
		l.Close()
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		l.Drain(ended)
	})
	return l, x
}

// at returns a node port on localhost.
func at(n uint16) netip.AddrPort { return netip.AddrPortFrom(ir.IPv4.Localhost(), n) }

func refuses(t *testing.T, to netip.AddrPort) bool {
	t.Helper()
	c, err := net.Dial("tcp4", to.String())
	if err == nil {
		c.Close()
	}
	return err != nil
}

// Node ports use the same backends as for external clients: the node's own endpoints under policy
// Local. Connections outlive all changes, and ports may be swapped.
func TestLocalhostFollows(t *testing.T) {
	l, _ := newLocalhost(t)
	one, two := dead(t).Port(), dead(t).Port()
	a, b := named(t, "a"), named(t, "b")
	l.Replace(programsOf(nodePort("web", one, a), nodePort("empty", two)))
	kept := dialTCP(t, at(one))
	if got := hello(t, kept); got != "a" {
		t.Errorf("reached %q", got)
	}
	if !refuses(t, at(two)) {
		t.Error("without an endpoint for clients from outside somebody answers")
	}
	web, empty := nodePort("web", two, b), nodePort("empty", one)
	l.Change(ir.Changes{IPv4: []ir.Change{{Name: web.Name, New: &web}, {Name: empty.Name, New: &empty}}})
	if got := hello(t, dialTCP(t, at(two))); got != "b" {
		t.Errorf("after the swap: reached %q", got)
	}
	if !refuses(t, at(one)) {
		t.Error("after the swap the one without endpoints answers")
	}
	l.Change(ir.Changes{IPv4: []ir.Change{{Name: web.Name}}})
	if !refuses(t, at(two)) {
		t.Error("a Service that is gone answers")
	}
	l.Replace(ir.Programs{})
	if !refuses(t, at(one)) || l.Carried() != 2 {
		t.Errorf("not wanted any longer: %d connections go on, want 2", l.Carried())
	}
	echoes(t, kept, "still here")
}

// All clients on localhost have the same address, and so the same backend under affinity.
func TestLocalhostAffinity(t *testing.T) {
	l, _ := newLocalhost(t)
	n := dead(t).Port()
	s := nodePort("web", n, named(t, "a"), named(t, "b"))
	s.Pools[1].Affinity = &ir.Affinity{Timeout: time.Hour}
	l.Replace(programsOf(s))
	first := hello(t, dialTCP(t, at(n)))
	for range 5 {
		if got := hello(t, dialTCP(t, at(n))); got != first {
			t.Fatalf("reached %q after %q", got, first)
		}
	}
}

// A port that another program has does not block others. It is reported, and served when the port
// is free.
func TestLocalhostTaken(t *testing.T) {
	l, x := newLocalhost(t)
	other, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken, free := other.Addr().(*net.TCPAddr).AddrPort().Port(), dead(t).Port()
	a := named(t, "a")
	want := programsOf(nodePort("taken", taken, a), nodePort("web", free, a))
	l.Replace(want)
	if got := hello(t, dialTCP(t, at(free))); got != "a" {
		t.Errorf("reached %q", got)
	}
	if got := x.failing(); len(got) != 1 || got[0] != "taken" {
		t.Errorf("reported: %v", got)
	}
	if left := Unserved(want); len(left) != 0 {
		t.Errorf("nobody listens at %v", left)
	}
	other.Close()
	if left := Unserved(want); len(left) != 1 || left[0].Listen.Port() != taken {
		t.Errorf("nobody listens at %v, want %d", left, taken)
	}
	applytest.Until(t, 2*time.Minute, "another try", func() bool { return len(x.failing()) == 0 })
	if got := hello(t, dialTCP(t, at(taken))); got != "a" {
		t.Errorf("reached %q", got)
	}
}

// A failed listener that is no longer required is neither reported nor retried.
func TestLocalhostGivesUp(t *testing.T) {
	l, x := newLocalhost(t)
	other, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l.Replace(programsOf(nodePort("taken", other.Addr().(*net.TCPAddr).AddrPort().Port(), named(t, "a"))))
	if len(x.failing()) != 1 {
		t.Fatal("not reported")
	}
	l.Close()
	if got := x.failing(); len(got) != 0 || l.retryTimer != nil {
		t.Errorf("still reported: %v", got)
	}
}

// Programs that do not require it open no listener.
func TestLocalhostUnasked(t *testing.T) {
	l, _ := newLocalhost(t)
	p := programsOf(nodePort("web", dead(t).Port(), named(t, "a")))
	p.IPv4.Node.NodePorts.Proxied = false
	l.Replace(p)
	l.Change(ir.Changes{IPv4: []ir.Change{{Name: p.IPv4.Services[0].Name, New: &p.IPv4.Services[0]}}})
	if keys := l.Keys(); len(keys) > 0 {
		t.Errorf("listeners %v", keys)
	}
}
