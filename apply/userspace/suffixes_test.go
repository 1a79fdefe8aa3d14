package userspace

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// nameServer resolves some names, and records queries.
type nameServer struct {
	mu    sync.Mutex
	known []string
	asked []string
}

func (s *nameServer) answer(t *testing.T, datagram []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(datagram); err != nil {
		return datagram // echoes what is not DNS
	}
	q := m.Questions[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, q.Name.String())
	m.Response, m.RCode = true, dnsmessage.RCodeNameError
	if slices.Contains(s.known, q.Name.String()) {
		m.RCode = dnsmessage.RCodeSuccess
		for i := range 2 {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 5},
				Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, byte(i)}}})
		}
	}
	out, err := m.Pack()
	if err != nil {
		t.Error(err)
	}
	return out
}

func (s *nameServer) serve(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, maxDatagram)
		for {
			n, from, err := l.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			l.WriteToUDPAddrPort(s.answer(t, buffer[:n]), from)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.LocalAddr().(*net.UDPAddr).AddrPort()
}

func (s *nameServer) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func question(t *testing.T, id uint16, name string, of dnsmessage.Type, additional ...dnsmessage.Resource) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: of, Class: dnsmessage.ClassINET}}, Additionals: additional}
	out, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Names that a DNS service cannot resolve are retried with each suffix, and the client sees its own
// name (USR-21).
func TestSuffixes(t *testing.T) {
	server := &nameServer{known: []string{"www.example.com.", "web.default.svc.cluster.local.", "web.prod.svc.cluster.local.", "host.corp."}}
	at := server.serve(t)
	p := NewProxy(Options{Limits: DefaultLimits, UDPIdle: time.Minute, Suffixes: []string{"", "default.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp"}})
	t.Cleanup(func() { p.Drain(t.Context()) })
	opt := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT, Class: 1232}, Body: &dnsmessage.OPTResource{}}
	for i, test := range []struct {
		what, port, name string
		of               dnsmessage.Type
		extra            []dnsmessage.Resource
		asked            []string
		rcode            dnsmessage.RCode
	}{
		{what: "a whole name", port: "dns", name: "www.example.com.", of: dnsmessage.TypeA, asked: []string{"www.example.com."}},
		{what: "a Service of the default namespace", port: "dns", name: "web.", of: dnsmessage.TypeA, asked: []string{"web.", "web.default.svc.cluster.local."}},
		{what: "a Service of another one", port: "dns", name: "web.prod.", of: dnsmessage.TypeAAAA,
			asked: []string{"web.prod.", "web.prod.default.svc.cluster.local.", "web.prod.svc.cluster.local."}},
		{what: "the node's own suffix", port: "dns", name: "host.", of: dnsmessage.TypeA,
			asked: []string{"host.", "host.default.svc.cluster.local.", "host.svc.cluster.local.", "host.cluster.local.", "host.corp."}},
		{what: "a name that nobody knows", port: "dns", name: "no.", of: dnsmessage.TypeA, rcode: dnsmessage.RCodeNameError,
			asked: []string{"no.", "no.default.svc.cluster.local.", "no.svc.cluster.local.", "no.cluster.local.", "no.corp."}},
		{what: "another type", port: "dns", name: "web.", of: dnsmessage.TypeTXT, asked: []string{"web."}, rcode: dnsmessage.RCodeNameError},
		{what: "more than a question", port: "dns", name: "web.", of: dnsmessage.TypeA, extra: []dnsmessage.Resource{opt}, asked: []string{"web."}, rcode: dnsmessage.RCodeNameError},
		{what: "another service port", port: "p", name: "web.", of: dnsmessage.TypeA, asked: []string{"web."}, rcode: dnsmessage.RCodeNameError},
	} {
		t.Run(test.what, func(t *testing.T) {
			name := port(ir.UDP)
			name.Port = test.port
			listener := &rules.Listener{Port: name, Listen: netip.MustParseAddrPort("127.0.0.1:0"), Backends: []netip.AddrPort{at}}
			c := dialUDP(t, open(t, p, listener))
			defer p.CloseListener(Key{Family: ir.IPv4, Port: name})
			var got dnsmessage.Message
			if err := got.Unpack([]byte(asks(t, c, string(question(t, uint16(i), test.name, test.of, test.extra...))))); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.asked, server.took()); diff != "" {
				t.Errorf("asked for (-want +got):\n%s", diff)
			}
			names := []string{got.Questions[0].Name.String()}
			for _, a := range got.Answers {
				names = append(names, a.Header.Name.String())
			}
			want := []string{test.name}
			if test.rcode == dnsmessage.RCodeSuccess {
				want = append(want, test.name, test.name)
			}
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("names in the answer (-want +got):\n%s", diff)
			}
			if got.RCode != test.rcode || got.ID != uint16(i) || !got.Response {
				t.Errorf("answer %+v", got.Header)
			}
		})
	}
}

// Concurrent queries of a client are independent, and a repeated query continues at its suffix.
func TestQuestionsAtOnce(t *testing.T) {
	s := &lookups{suffixes: []string{"", "a", "b"}}
	name := func(datagram []byte) string {
		var m dnsmessage.Message
		if err := m.Unpack(datagram); err != nil {
			t.Fatal(err)
		}
		return m.Questions[0].Name.String()
	}
	fails := func(datagram []byte) (client, server []byte) {
		var m dnsmessage.Message
		if err := m.Unpack(datagram); err != nil {
			t.Fatal(err)
		}
		m.Response, m.RCode = true, dnsmessage.RCodeNameError
		out, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return s.reply(out)
	}
	one, two := question(t, 1, "one.", dnsmessage.TypeA), question(t, 2, "two.", dnsmessage.TypeA)
	_, first := fails(s.query(one))
	if got := name(s.query(two)); got != "two." {
		t.Errorf("asked for %s", got)
	}
	if got := name(s.query(one)); name(first) != "one.a." || got != "one.a." {
		t.Errorf("asked for %s, then for %s", name(first), got)
	}
	_, second := fails(first)
	client, server := fails(second)
	if name(second) != "one.b." || server != nil || name(client) != "one." {
		t.Errorf("asked for %s, answered for %s", name(second), name(client))
	}
	if client, server = fails(second); server != nil || name(client) != "one.b." {
		t.Errorf("an answer that nobody waits for: %s", name(client))
	}
	for i := range 3 * maxLookups {
		s.query(question(t, uint16(i), "many.", dnsmessage.TypeA))
	}
	if n := len(s.pending); n != maxLookups || len(s.order) != n {
		t.Errorf("%d questions are kept, in an order of %d", n, len(s.order))
	}
	// Lost replies do not block later queries.
	if _, next := fails(s.query(question(t, 9999, "late.", dnsmessage.TypeA))); next == nil || name(next) != "late.a." {
		t.Errorf("after many that were lost, tried %q", next)
	}
	if _, oldest := fails(question(t, 2*maxLookups, "many.", dnsmessage.TypeA)); oldest != nil {
		t.Errorf("the oldest is tried on")
	}
	if got := s.query([]byte("no DNS")); string(got) != "no DNS" {
		t.Errorf("%q", got)
	}
}
