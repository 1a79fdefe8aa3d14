package ir_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
)

var byValue = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}),
}

func TestJSONRoundTrip(t *testing.T) {
	for _, mode := range ir.Modes() {
		p := irtest.Program(mode)
		p.Node.IPVS = &ir.IPVS{Scheduler: "rr", TCPTimeout: 1.5e9, ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		p.Node.Userspace = &ir.Userspace{PortMin: 1, PortMax: 2, UDPIdleTimeout: 250e6}
		p.Node.HNS = &ir.HNS{NetworkName: "n", SourceVIP: netip.MustParseAddr("10.0.0.1")}
		p.Services[0].HNS = &ir.HNSService{PreserveDIP: true}
		p.Services[0].Health = &ir.HealthCheck{Port: 31000, Local: 2, Origin: p.Services[0].Origin}
		want := ir.NewPrograms(p, &ir.Program{Family: ir.IPv6, Node: ir.Node{Name: "node1", Mode: mode}})
		var buf bytes.Buffer
		if err := ir.WriteJSON(&buf, want); err != nil {
			t.Fatal(err)
		}
		got, err := ir.ReadJSON(&buf)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, byValue); d != "" {
			t.Errorf("%s (-want +got):\n%s", mode, d)
		}
	}
}

func TestReadJSONRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"apiVersion":"proxyc.dev/v0","kind":"Programs","programs":[]}`:                                        "apiVersion and kind must be",
		`{"apiVersion":"proxyc.dev/v1alpha1","kind":"Programs","extra":1}`:                                      "unknown object member",
		`{"apiVersion":"proxyc.dev/v1alpha1","kind":"Programs","programs":[{"family":"IPv5"}]}`:                 "family: must be one of",
		`{"apiVersion":"proxyc.dev/v1alpha1","kind":"Programs","programs":[{"family":"IPv4","node":{}}]}`:       "mode: must be one of",
		`{"apiVersion":"proxyc.dev/v1alpha1","kind":"Programs","programs":[{"family":"IPv4","services":[{}]}]}`: "service: has no origin",
	} {
		if _, err := ir.ReadJSON(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestWriteText(t *testing.T) {
	p := irtest.Program(ir.ModeNFTables)
	p.Services = p.Services[:1]
	var buf bytes.Buffer
	if err := ir.WriteText(&buf, ir.NewPrograms(p)); err != nil {
		t.Fatal(err)
	}
	want := `program IPv4 mode nftables node "node1"
  zone zone-a
  ip 192.0.2.11
  address 10.244.1.1
  address 192.0.2.11
  node-ports all                                         # config: nodePortAddresses
  pods from 10.244.0.0/16                                # config: clusterCIDR
  masquerade-bit 14
  service-cidr 10.96.0.0/16                              # ServiceCIDR kubernetes: spec.cidrs[0]

service default/local                                    # Service default/local
  pool 0 tcp cluster                                     # Service default/local
    10.244.1.10:8080 local                               # EndpointSlice default/local-1: endpoints[0] (ready)
    10.244.2.10:8080                                     # EndpointSlice default/local-1: endpoints[1] (ready)
  pool 1 tcp local                                       # Service default/local
    10.244.1.10:8080 local                               # EndpointSlice default/local-1: endpoints[0] (ready)
  ClusterIP 10.96.0.11:80/tcp port tcp policy cluster    # Service default/local
    from pods -> pool 0                                  # Service default/local
    from any -> pool 0 masquerade                        # Service default/local
  LoadBalancer 203.0.113.11:80/tcp port tcp policy local # Service default/local
    from pods -> pool 0                                  # Service default/local
    from node -> pool 0 masquerade                       # Service default/local
    from any -> pool 1                                   # Service default/local
  NodePort node:30081/tcp port tcp policy local          # Service default/local
    from pods -> pool 0                                  # Service default/local
    from node -> pool 0 masquerade                       # Service default/local
    from any -> pool 1                                   # Service default/local
`
	if d := cmp.Diff(want, buf.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestTextDraining(t *testing.T) {
	p := irtest.Program(ir.ModeNFTables)
	const want = `  keeps udp                                              # Service default/sticky: spec.ports[0]
    10.244.1.12:8080 local                               # EndpointSlice default/sticky-1: endpoints[2]
`
	if got := p.Services[4].Text(); !strings.Contains(got, want) {
		t.Errorf("want %q in:\n%s", want, got)
	}
}

func TestValidate(t *testing.T) {
	if errs := irtest.Program(ir.ModeIPTables).Validate(); len(errs) > 0 {
		t.Fatalf("the sample: %v", errs)
	}
	tests := []struct {
		want   string
		change func(p *ir.Program)
	}{
		{"Service default/local: must come after default/none", func(p *ir.Program) { p.Services[0], p.Services[1] = p.Services[1], p.Services[0] }},
		{"is taken by Service default/local already", func(p *ir.Program) { p.Services[1].Frontends[0].Match = p.Services[0].Frontends[0].Match }},
		{"pool 0: has no backends", func(p *ir.Program) { p.Services[0].Pools[0].Backends = nil }},
		{"pool 0: no route leads to it", func(p *ir.Program) { p.Services[0].Frontends = nil }},
		{"route 1: is never reached", func(p *ir.Program) { p.Services[0].Frontends[0].Routes[0].From = ir.Any }},
		{"route 0: there is no pool 7", func(p *ir.Program) { p.Services[0].Frontends[0].Routes[0].Pool = 7 }},
		{"backend 10.244.1.10:8080 stands twice", func(p *ir.Program) {
			b := p.Services[0].Pools[0].Backends
			b[1] = b[0]
		}},
		{"route: has no origin", func(p *ir.Program) { p.Services[0].Frontends[0].Routes[0].Origin = ir.Origin{} }},
		{"reject: has no origin", func(p *ir.Program) { p.Services[1].Frontends[0].FallbackOrigin = ir.Origin{} }},
		{"affinity timeout must be", func(p *ir.Program) { p.Services[4].Pools[0].Affinity.Timeout = 1 }},
		{"cannot have this match", func(p *ir.Program) { p.Services[0].Frontends[0].Match.Addr = netip.MustParseAddr("fd00::1") }},
		{"must be a masked IPv4 prefix", func(p *ir.Program) { p.Node.Detector.Prefix = netip.MustParsePrefix("10.244.0.1/16") }},
		{"draining of default/sticky: has no backends", func(p *ir.Program) { p.Services[4].Draining[0].Backends = nil }},
		{"draining of default/sticky: backend 10.244.1.10:8080 stands twice", func(p *ir.Program) {
			p.Services[4].Draining[0].Backends = p.Services[4].Pools[0].Backends[:1]
		}},
		{"draining of default/sticky:web: no UDP frontend is of this port", func(p *ir.Program) { p.Services[4].Draining[0].Port.Port = "web" }},
		{"draining of default/local: no UDP frontend is of this port", func(p *ir.Program) {
			p.Services[0].Draining = []ir.Draining{{Port: p.Services[0].Pools[0].Port}}
		}},
		{"draining of default/sticky: must come after", func(p *ir.Program) {
			p.Services[4].Draining = append(p.Services[4].Draining, p.Services[4].Draining[0])
		}},
		{"maglev: slots must be one of [251 ", func(p *ir.Program) {
			p.Services[5].Frontends[1].Maglev = &ir.Maglev{Slots: 250, Origin: p.Services[5].Origin}
		}},
		{"10.96.0.15:53/udp: maglev: must have one route for all sources, to a pool without affinity", func(p *ir.Program) {
			f := &p.Services[4].Frontends[0]
			f.Routes, f.Maglev = f.Routes[1:], &ir.Maglev{Slots: 251, Origin: f.Origin}
		}},
		{"maglev: has no origin", func(p *ir.Program) { p.Services[5].Frontends[1].Maglev = &ir.Maglev{Slots: 251} }},
		{"only LoadBalancer frontends", func(p *ir.Program) {
			p.Services[0].Frontends[0].SourceRanges = p.Services[2].Frontends[0].SourceRanges
		}},
	}
	for _, tt := range tests {
		p := irtest.Program(ir.ModeIPTables)
		tt.change(p)
		var all strings.Builder
		for _, err := range p.Validate() {
			all.WriteString(err.Error() + "\n")
		}
		if !strings.Contains(all.String(), tt.want) {
			t.Errorf("want an error with %q, got:\n%s", tt.want, all.String())
		}
	}
}

func TestDiff(t *testing.T) {
	from, to := irtest.Program(ir.ModeIPTables), irtest.Program(ir.ModeIPTables)
	if d := ir.Diff(from, to); len(d) > 0 {
		t.Errorf("equal programs differ: %v", d)
	}
	to.Services[1].Frontends[0].Match.Port = 81                 // none: changed
	to.Services = append(to.Services[:2:2], to.Services[3:]...) // ranges: removed
	from.Services = from.Services[1:]                           // local: added
	var got []string
	for _, c := range ir.Diff(from, to) {
		state := "changed"
		if c.Old == nil {
			state = "added"
		} else if c.New == nil {
			state = "removed"
		}
		got = append(got, c.Name.String()+" "+state)
	}
	if d := cmp.Diff([]string{"default/local added", "default/none changed", "default/ranges removed"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Localhost returns a loopback address, in IPv6 the only one.
func TestLocalhost(t *testing.T) {
	for _, f := range ir.Families() {
		if a := f.Localhost(); !f.Has(a) || !f.Loopback().Contains(a) {
			t.Errorf("%s: %s is no address of %s", f, a, f.Loopback())
		}
	}
}
