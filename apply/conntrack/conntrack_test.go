package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func match(t testing.TB, s string) ir.Match {
	t.Helper()
	m, ok := ir.ParseMatch(s)
	if !ok {
		t.Fatalf("no match: %q", s)
	}
	return m
}

// program returns a Program with one Service "x/dns". frontends maps each frontend to indexes of
// pools. Frontends of a protocol that have pools share a port; each of the others has a port of its
// own name.
func program(t testing.TB, family ir.Family, addrs []string, frontends map[string][]int, pools ...[]string) *ir.Program {
	s := ir.Service{Name: ir.Name{Namespace: "x", Name: "dns"}}
	for _, backends := range pools {
		var pool ir.Pool
		for _, b := range backends {
			pool.Backends = append(pool.Backends, ir.Backend{AddrPort: addrPort(b)})
		}
		s.Pools = append(s.Pools, pool)
	}
	for m, routes := range frontends {
		f := ir.Frontend{Match: match(t, m)}
		f.Port.Protocol = f.Match.Protocol
		if len(routes) == 0 {
			f.Port.Port = m
		}
		for _, r := range routes {
			f.Routes = append(f.Routes, ir.Route{Pool: r})
			s.Pools[r].Port = f.Port
		}
		s.Frontends = append(s.Frontends, f)
	}
	p := &ir.Program{Family: family, Services: []ir.Service{s}}
	p.Node.Mode = ir.ModeNFTables
	p.Node.NodePorts = ir.NodePortAddrs{All: true}
	for _, a := range addrs {
		p.Node.Addrs = append(p.Node.Addrs, netip.MustParseAddr(a))
	}
	return p
}

func TestSelector(t *testing.T) {
	v4 := func() *ir.Program {
		p := program(t, ir.IPv4, []string{"192.0.2.11", "198.51.100.11"}, map[string][]int{
			"10.96.0.10:53/udp":   {0},
			"203.0.113.1:53/udp":  {0, 1},
			"node:30053/udp":      {0},
			"10.96.0.10:80/tcp":   {2},
			"10.96.0.11:53/udp":   nil, // without endpoints
			"10.96.0.13:53/udp":   nil, // only a draining one
			"node:30054/udp":      nil,
			"192.0.2.11:5300/udp": {0},
		}, []string{"10.244.1.5:53", "10.244.2.5:53"}, []string{"10.244.3.5:53"}, []string{"10.244.1.6:80"})
		kept := func(port, addr string) ir.Draining {
			return ir.Draining{Port: ir.ServicePort{Port: port, Protocol: ir.UDP}, Backends: []ir.Backend{{AddrPort: addrPort(addr)}}}
		}
		p.Services[0].Draining = []ir.Draining{kept("", "10.244.4.5:53"), kept("10.96.0.13:53/udp", "10.244.4.6:53")}
		return p
	}
	guarded := func(ranges ...string) *ir.Program { // the source ranges of the load balancer's address
		p := v4()
		for i := range p.Services[0].Frontends {
			f := &p.Services[0].Frontends[i]
			if f.Match != match(t, "203.0.113.1:53/udp") {
				continue
			}
			for _, r := range ranges {
				f.SourceRanges = append(f.SourceRanges, ir.SourceRange{Prefix: netip.MustParsePrefix(r)})
			}
		}
		return p
	}
	v6 := program(t, ir.IPv6, []string{"2001:db8::11"}, map[string][]int{"[fd00::10]:53/udp": {0}, "node:30055/udp": {0}}, []string{"[fd00:244::5]:53"})
	primary := v4()
	primary.Node.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: netip.MustParsePrefix("192.0.2.11/32")}}}
	loopback := v4()
	loopback.Node.NodePorts.Loopback = true
	onHost := v4()
	onHost.Services[0].Pools[0].Backends[0].AddrPort = addrPort("192.0.2.11:30053")
	userspace := v4()
	userspace.Node.Mode = ir.ModeUserspace
	iptables := v4()
	iptables.Node.Mode = ir.ModeIPTables

	const (
		noEndpoint = "the Service has no endpoint left"
		gone       = "the Service, or its port, is gone"
		older      = neverTranslated
	)
	cases := []struct {
		name     string
		program  *ir.Program // default v4
		to, from string
		gone     []string
		proto    ir.Protocol // default UDP
		zone     uint16
		silent   bool   // no reply was seen
		want     string // frontend and reason; "" if not stale
	}{
		{name: "at an endpoint", to: "10.96.0.10:53", from: "10.244.2.5:53"},
		{name: "endpoint went", to: "10.96.0.10:53", from: "10.244.9.9:53", want: "10.96.0.10:53/udp the backend is no endpoint of the Service"},
		{name: "endpoint changed its port", to: "10.96.0.10:53", from: "10.244.1.5:54", want: "10.96.0.10:53/udp the backend is no endpoint of the Service"},
		{name: "endpoint of the second route", to: "203.0.113.1:53", from: "10.244.3.5:53"},
		{name: "endpoint of another policy's pool", to: "10.96.0.10:53", from: "10.244.3.5:53"},
		{name: "endpoint of another port", to: "10.96.0.10:53", from: "10.244.1.6:80", want: "10.96.0.10:53/udp the backend is no endpoint of the Service"},
		{name: "endpoint that gets no new clients", to: "10.96.0.10:53", from: "10.244.4.5:53"},
		{name: "such an endpoint, node port", to: "192.0.2.11:30053", from: "10.244.4.5:53"},
		{name: "such an endpoint of another port", to: "10.96.0.10:53", from: "10.244.4.6:53", want: "10.96.0.10:53/udp the backend is no endpoint of the Service"},
		{name: "the only endpoint gets no new clients", to: "10.96.0.13:53", from: "10.244.4.6:53"},
		{name: "another one went before that", to: "10.96.0.13:53", from: "10.244.4.7:53", want: "10.96.0.13:53/udp the backend is no endpoint of the Service"},
		{name: "before the Service", to: "10.96.0.10:53", from: "10.96.0.10:53", want: "10.96.0.10:53/udp " + older},
		{name: "before the Service, load balancer", to: "203.0.113.1:53", from: "203.0.113.1:53", want: "203.0.113.1:53/udp " + older},
		{name: "at an endpoint with the frontend's address", program: onHost, to: "192.0.2.11:30053", from: "192.0.2.11:30053"},
		{name: "last endpoint went", to: "10.96.0.11:53", from: "10.244.1.5:53", want: "10.96.0.11:53/udp " + noEndpoint},
		{name: "never an endpoint", to: "10.96.0.11:53", from: "10.96.0.11:53"},
		{name: "never an endpoint, not answered", to: "10.96.0.11:53", from: "10.96.0.11:53", silent: true, want: "10.96.0.11:53/udp " + noEndpoint},
		{name: "never an endpoint, not answered, mode iptables", program: iptables, to: "10.96.0.11:53", from: "10.96.0.11:53", silent: true},
		{name: "Service went", to: "10.96.0.12:53", from: "10.244.1.5:53", gone: []string{"10.96.0.12:53/udp"}, want: "10.96.0.12:53/udp " + gone},
		{name: "Service went, not translated", to: "10.96.0.12:53", from: "10.96.0.12:53", gone: []string{"10.96.0.12:53/udp"}},
		{name: "another protocol of it went", to: "10.96.0.12:53", from: "10.244.1.5:53", gone: []string{"10.96.0.12:53/tcp"}},
		{name: "went and came back", to: "10.96.0.10:53", from: "10.244.1.5:53", gone: []string{"10.96.0.10:53/udp"}},

		{name: "node port, at an endpoint", to: "192.0.2.11:30053", from: "10.244.1.5:53"},
		{name: "node port, endpoint went", to: "192.0.2.11:30053", from: "10.244.9.9:53", want: "node:30053/udp the backend is no endpoint of the Service"},
		{name: "node port on the second address", to: "198.51.100.11:30053", from: "10.244.9.9:53", want: "node:30053/udp the backend is no endpoint of the Service"},
		{name: "node port before the Service", to: "192.0.2.11:30053", from: "192.0.2.11:30053", want: "node:30053/udp " + older},
		{name: "node port, last endpoint went", to: "192.0.2.11:30054", from: "10.244.1.5:53", want: "node:30054/udp " + noEndpoint},
		{name: "node port went", to: "192.0.2.11:30060", from: "10.244.1.5:53", gone: []string{"node:30060/udp"}, want: "node:30060/udp " + gone},
		{name: "node port went, on an address that is out of nodePortAddresses", program: primary, to: "198.51.100.11:30060", from: "10.244.1.5:53", gone: []string{"node:30060/udp"}, want: "node:30060/udp " + gone},
		{name: "node port of another machine", to: "192.0.2.12:30053", from: "10.244.9.9:53"},
		{name: "node port of another machine went", to: "192.0.2.12:30060", from: "10.244.9.9:53", gone: []string{"node:30060/udp"}},
		{name: "address out of nodePortAddresses", program: primary, to: "198.51.100.11:30053", from: "198.51.100.11:30053"},
		{name: "address in nodePortAddresses", program: primary, to: "192.0.2.11:30053", from: "192.0.2.11:30053", want: "node:30053/udp " + older},
		{name: "loopback without node ports", to: "127.0.0.1:30053", from: "127.0.0.1:30053"},
		{name: "loopback with node ports", program: loopback, to: "127.0.0.1:30053", from: "127.0.0.1:30053", want: "node:30053/udp " + older},
		{name: "exact address before node port", to: "192.0.2.11:5300", from: "10.244.9.9:53", want: "192.0.2.11:5300/udp the backend is no endpoint of the Service"},
		{name: "gone in the other family only", to: "192.0.2.11:30053", from: "10.244.1.5:53", gone: []string{"node:30053/udp"}},

		{name: "client outside of the ranges, not answered", program: guarded("198.51.100.0/24"), to: "203.0.113.1:53", from: "10.244.1.5:53", silent: true,
			want: "203.0.113.1:53/udp spec.loadBalancerSourceRanges does not admit the client"},
		{name: "client outside of the ranges, answered", program: guarded("198.51.100.0/24"), to: "203.0.113.1:53", from: "10.244.1.5:53"},
		{name: "client inside of a range", program: guarded("198.51.100.0/24", "192.0.2.128/25"), to: "203.0.113.1:53", from: "10.244.1.5:53", silent: true},
		{name: "frontend without ranges", program: guarded("198.51.100.0/24"), to: "10.96.0.10:53", from: "10.244.1.5:53", silent: true},

		{name: "foreign", to: "8.8.8.8:53", from: "8.8.8.8:53"},
		{name: "foreign, translated", to: "192.0.2.11:8053", from: "172.17.0.2:53"},
		{name: "another port of the VIP", to: "10.96.0.10:54", from: "10.244.9.9:54"},
		{name: "TCP", to: "10.96.0.10:80", from: "10.244.9.9:80", proto: ir.TCP},
		{name: "TCP, not answered", to: "10.96.0.10:80", from: "10.244.9.9:80", proto: ir.TCP, silent: true},
		{name: "TCP, not translated", to: "10.96.0.10:80", from: "10.96.0.10:80", proto: ir.TCP},
		{name: "TCP, older than the rules", to: "10.96.0.10:80", from: "10.96.0.10:80", proto: ir.TCP, silent: true, want: "10.96.0.10:80/tcp " + older},
		{name: "TCP, older than the rules, of another Service", to: "10.96.0.99:80", from: "10.96.0.99:80", proto: ir.TCP, silent: true},
		{name: "TCP, older than the rules, mode iptables", program: iptables, to: "10.96.0.10:80", from: "10.96.0.10:80", proto: ir.TCP, silent: true},
		{name: "TCP, at an endpoint with the frontend's address", program: onHost, to: "192.0.2.11:30053", from: "192.0.2.11:30053", proto: ir.TCP, silent: true},
		{name: "SCTP to the same port", to: "10.96.0.10:53", from: "10.244.9.9:53", proto: ir.SCTP},
		{name: "another zone", to: "10.96.0.10:53", from: "10.244.9.9:53", zone: 7},
		{name: "userspace mode", program: userspace, to: "10.96.0.10:53", from: "192.0.2.11:40000"},
		{name: "IPv6, at an endpoint", program: v6, to: "[fd00::10]:53", from: "[fd00:244::5]:53"},
		{name: "IPv6, endpoint went", program: v6, to: "[fd00::10]:53", from: "[fd00:244::9]:53", want: "[fd00::10]:53/udp the backend is no endpoint of the Service"},
		{name: "IPv6 node port, endpoint went", program: v6, to: "[2001:db8::11]:30055", from: "[fd00:244::9]:53", want: "node:30055/udp the backend is no endpoint of the Service"},
		{name: "no program of the family", program: v6, to: "10.96.0.10:53", from: "10.244.9.9:53"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, e := c.program, Entry{Protocol: c.proto, Client: addrPort("192.0.2.200:5000"), To: addrPort(c.to), From: addrPort(c.from), Unanswered: c.silent, Zone: c.zone}
			if p == nil {
				p = v4()
			}
			if e.Protocol == 0 {
				e.Protocol = ir.UDP
			}
			var gone []ir.Match
			for _, m := range c.gone {
				gone = append(gone, match(t, m))
			}
			var got string
			sel := NewSelector(p, gone)
			if s, stale := sel.Stale(e); stale {
				if s.Entry != e {
					t.Errorf("got entry %v, want %v", s.Entry, e)
				}
				got = s.Frontend.String() + " " + s.Why
				if !slices.ContainsFunc(sel.filters(), func(f filter) bool { return f.matches(e) }) {
					t.Errorf("no filter of %v lets it through", sel.filters())
				}
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestSelectorNamesTheService(t *testing.T) {
	p := program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:53/udp": {0}}, []string{"10.244.1.5:53"})
	sel := NewSelector(p, []ir.Match{match(t, "10.96.0.99:53/udp")})
	for to, want := range map[string]ir.Name{"10.96.0.10:53": {Namespace: "x", Name: "dns"}, "10.96.0.99:53": {}} {
		s, stale := sel.Stale(Entry{Protocol: ir.UDP, To: addrPort(to), From: addrPort("10.244.1.9:53")})
		if !stale || s.Service != want {
			t.Errorf("%s: got stale %v, %v, want %v", to, stale, s.Service, want)
		}
	}
}

func TestIdle(t *testing.T) {
	tcp := program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:53/tcp": nil})
	iptables := program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:53/tcp": nil})
	iptables.Node.Mode = ir.ModeIPTables
	udp := program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:53/udp": nil})
	userspace := program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:53/udp": nil})
	userspace.Node.Mode = ir.ModeUserspace
	cases := []struct {
		name    string
		program *ir.Program
		gone    []ir.Match
		want    bool
	}{
		{"nothing", program(t, ir.IPv4, nil, nil), nil, true},
		{"TCP", tcp, nil, false},
		{"TCP, mode iptables", iptables, nil, true},
		{"TCP gone", iptables, []ir.Match{match(t, "10.96.0.1:1/tcp")}, true},
		{"UDP", udp, nil, false},
		{"UDP, which the proxy serves itself", userspace, nil, true},
		{"UDP gone", iptables, []ir.Match{match(t, "10.96.0.1:1/udp")}, false},
		{"UDP gone in the other family", iptables, []ir.Match{match(t, "[fd00::1]:1/udp")}, true},
		{"UDP node port gone", iptables, []ir.Match{match(t, "node:30053/udp")}, false},
	}
	for _, c := range cases {
		sel := NewSelector(c.program, c.gone)
		if got := sel.Idle(); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if got := len(sel.filters()) == 0; got != c.want && !c.want {
			t.Errorf("%s: no filters", c.name)
		}
	}
}

// The dump filters are as narrow as a few dumps allow.
func TestFilters(t *testing.T) {
	frontends := func(n int, format string) (out map[string][]int) {
		out = map[string][]int{"10.96.0.1:80/tcp": nil}
		for i := range n {
			out[fmt.Sprintf(format, i+1)] = nil
		}
		return out
	}
	cases := []struct {
		name      string
		frontends map[string][]int
		gone      []ir.Match
		want      []filter
	}{
		{"each frontend", map[string][]int{"10.96.0.10:53/udp": nil, "node:30053/udp": nil},
			[]ir.Match{match(t, "10.96.0.11:53/udp"), match(t, "[fd00::1]:53/udp"), match(t, "10.96.0.10:53/udp")},
			[]filter{{ir.IPv4, ir.UDP, netip.Addr{}, 30053}, {ir.IPv4, ir.UDP, netip.MustParseAddr("10.96.0.10"), 53}, {ir.IPv4, ir.UDP, netip.MustParseAddr("10.96.0.11"), 53}}},
		{"each protocol", map[string][]int{"10.96.0.10:53/udp": nil, "10.96.0.10:53/tcp": nil}, nil,
			[]filter{{family: ir.IPv4, protocol: ir.TCP}, {ir.IPv4, ir.UDP, netip.MustParseAddr("10.96.0.10"), 53}}},
		{"each port", frontends(maxFilters+1, "10.96.0.%d:53/udp"), nil, []filter{{family: ir.IPv4, protocol: ir.TCP}, {family: ir.IPv4, protocol: ir.UDP, port: 53}}},
		{"all", frontends(maxFilters+1, "10.96.0.9:%d/udp"), nil, []filter{{family: ir.IPv4, protocol: ir.TCP}, {family: ir.IPv4, protocol: ir.UDP}}},
	}
	for _, c := range cases {
		got := NewSelector(program(t, ir.IPv4, nil, c.frontends), c.gone).filters()
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(filter{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, diff)
		}
	}
}

func TestEntryString(t *testing.T) {
	e := Entry{Protocol: ir.UDP, Client: addrPort("192.0.2.1:5000"), To: addrPort("10.96.0.10:53"), From: addrPort("10.244.1.5:53")}
	if got, want := e.String(), "192.0.2.1:5000 -> 10.96.0.10:53 (10.244.1.5:53)/udp"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func entry(proto ir.Protocol, client, to, from string) Entry {
	return Entry{Protocol: proto, Client: addrPort(client), To: addrPort(to), From: addrPort(from)}
}

// texts returns entries without kernel IDs, sorted.
func texts(entries []Entry) []string {
	out := []string{}
	for _, e := range entries {
		out = append(out, e.String())
	}
	slices.Sort(out)
	return out
}
