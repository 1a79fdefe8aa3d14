package compiler

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// The cluster of the tests: node1 in zone-a is 192.0.2.11 and hosts the pods
// 10.1.0.0/16, node2 in zone-b is 192.0.2.12 and hosts 10.2.0.0/16. All objects
// are in namespace ns.

func newConfig(mode ir.Mode) *config.Config {
	c := config.Default()
	c.Mode = string(mode)
	c.ClusterCIDR = "10.0.0.0/12,fd00:10::/32"
	c.Winkernel.NetworkName = "net"
	config.Complete(c)
	return c
}

func ns(name string) ir.Name { return ir.Name{Namespace: "ns", Name: name} }

// object adds an object to a snapshot.
type object func(*snapshot.Snapshot)

func snapshotOf(objects ...object) *snapshot.Snapshot {
	s := snapshot.New()
	node("node1", "zone-a", "192.0.2.11", "2001:db8::11")(s)
	node("node2", "zone-b", "192.0.2.12", "2001:db8::12")(s)
	for _, o := range objects {
		o(s)
	}
	return s
}

func node(name, zone string, addrs ...string) object {
	n := &snapshot.Node{Name: name, Zone: zone}
	for _, a := range addrs {
		n.Addresses = append(n.Addresses, snapshot.NodeAddress{Type: "InternalIP", Address: a})
	}
	return func(s *snapshot.Snapshot) { s.SetNode(n) }
}

// newService returns a ClusterIP Service at 10.96.0.10 port 80, edited by change.
func newService(name string, change ...func(*snapshot.Service)) object {
	svc := &snapshot.Service{
		Name: ns(name), Object: "Service ns/" + name, Type: "ClusterIP",
		ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []string{"IPv4"},
		Ports: []snapshot.ServicePort{{Protocol: "TCP", Port: 80}},
	}
	for _, c := range change {
		c(svc)
	}
	return func(s *snapshot.Snapshot) { s.SetService(svc) }
}

type change = func(*snapshot.Service)

func clusterIP(addrs ...string) change {
	return func(s *snapshot.Service) {
		s.ClusterIP, s.ClusterIPs, s.IPFamilies = addrs[0], addrs, nil
		for _, a := range addrs {
			s.IPFamilies = append(s.IPFamilies, ir.FamilyOf(netip.MustParseAddr(a)).String())
		}
	}
}

func nodePort(n int32) change {
	return func(s *snapshot.Service) { s.Type, s.Ports[0].NodePort = "NodePort", n }
}

func loadBalancer(addrs ...string) change {
	return func(s *snapshot.Service) {
		s.Type = "LoadBalancer"
		for _, a := range addrs {
			s.LoadBalancer = append(s.LoadBalancer, snapshot.Ingress{IP: a})
		}
	}
}

func externalIPs(addrs ...string) change { return func(s *snapshot.Service) { s.ExternalIPs = addrs } }
func ranges(r ...string) change          { return func(s *snapshot.Service) { s.SourceRanges = r } }
func internalLocal(s *snapshot.Service)  { s.InternalLocal = true }
func externalLocal(s *snapshot.Service)  { s.ExternalLocal, s.HealthPort = true, 32000 }
func affinity(seconds int32) change {
	return func(s *snapshot.Service) { s.AffinityIP, s.AffinitySecs = true, seconds }
}
func ports(p ...snapshot.ServicePort) change { return func(s *snapshot.Service) { s.Ports = p } }

// slice returns the EndpointSlice "name" of the Service before the first dash. An
// endpoint is an address followed by words: the node (by default the one that
// hosts the address), not-ready, terminating (and serving), dead (and not
// serving), unready-serving, zone=, hint= (a node).
func slice(name string, endpoints ...string) object {
	return editSlice(name, func(*snapshot.EndpointSlice) {}, endpoints...)
}

func editSlice(name string, edit func(*snapshot.EndpointSlice), endpoints ...string) object {
	owner, _, _ := strings.Cut(name, "-")
	e := &snapshot.EndpointSlice{
		Name: ns(name), Object: "EndpointSlice ns/" + name, Service: ns(owner), AddressType: "IPv4",
		Ports: []snapshot.EndpointPort{{Protocol: "TCP", Port: 8080, HasName: true, HasPort: true}},
	}
	for _, text := range endpoints {
		e.Endpoints = append(e.Endpoints, endpointOf(text))
	}
	edit(e)
	return func(s *snapshot.Snapshot) { s.SetSlice(e) }
}

func endpointOf(text string) snapshot.Endpoint {
	words := strings.Fields(text)
	e := snapshot.Endpoint{Address: words[0], Ready: true, Serving: true}
	e.Addr, _ = netip.ParseAddr(words[0])
	for net, name := range map[string]string{"10.1.": "node1", "fd00:10:1:": "node1", "10.2.": "node2", "fd00:10:2:": "node2"} {
		if strings.HasPrefix(words[0], net) {
			e.NodeName = name
		}
	}
	e.Hints = &snapshot.Hints{}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "not-ready":
			e.Ready, e.Serving = false, false
		case "unready-serving":
			e.Ready = false
		case "terminating":
			e.Ready, e.Terminating = false, true
		case "dead":
			e.Ready, e.Serving, e.Terminating = false, false, true
		case "zone":
			e.Hints.Zones = append(e.Hints.Zones, value)
		case "hint":
			e.Hints.Nodes = append(e.Hints.Nodes, value)
		case "node":
			e.NodeName = value
		default:
			panic(w)
		}
	}
	return e
}

// compileFor compiles objects for node1 and checks that the Programs are valid.
func compileFor(t *testing.T, cfg *config.Config, objects ...object) (ir.Programs, diag.List) {
	t.Helper()
	programs, diags := Compile(cfg, snapshotOf(objects...), Facts{NodeName: "node1"})
	for _, p := range ir.Present(programs) {
		for _, err := range p.Validate() {
			t.Errorf("%s: %v", p.Family, err)
		}
	}
	return programs, diags
}

// lines prints the frontends of Programs, one per line: kind, match, each route
// as "scope→backends" with "+snat", and the verdict without a route. Backends are
// printed without port 8080. The draining backends of a port follow.
func lines(programs ir.Programs) []string {
	var out []string
	for _, p := range ir.Present(programs) {
		for _, s := range p.Services {
			for _, f := range s.Frontends {
				words := []string{f.Kind.String(), f.Match.String()}
				for _, r := range f.Routes {
					words = append(words, routeText(s.Pools[r.Pool], r))
				}
				if !ir.RoutesAll(f.Routes) {
					words = append(words, f.Fallback.String())
				}
				out = append(out, strings.Join(words, " "))
			}
			for _, d := range s.Draining {
				out = append(out, "kept "+d.Port.Port+"→"+backendsText(d.Backends))
			}
		}
	}
	return out
}

func routeText(p ir.Pool, r ir.Route) string {
	text := r.From.String() + "→" + backendsText(p.Backends)
	if r.SNAT {
		text += "+snat"
	}
	return text
}

func backendsText(backends []ir.Backend) string {
	var all []string
	for _, b := range backends {
		all = append(all, strings.TrimSuffix(b.AddrPort.String(), ":8080"))
	}
	return strings.Join(all, ",")
}

// texts prints diagnostics, one per line, with their severity.
func texts(diags diag.List) []string {
	var out []string
	for _, d := range diags {
		out = append(out, fmt.Sprintf("%s: %s", d.Severity, d))
	}
	return out
}

// row is a test case: the result of compiling a few objects on node1.
type row struct {
	name    string
	mode    ir.Mode // "" for nftables
	objects []object
	want    []string // lines
	diags   []string // texts
}

func run(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if r.mode == "" {
				r.mode = ir.ModeNFTables
			}
			programs, diags := compileFor(t, newConfig(r.mode), r.objects...)
			if d := cmp.Diff(r.want, lines(programs)); d != "" {
				t.Errorf("frontends (-want +got):\n%s", d)
			}
			if d := cmp.Diff(r.diags, texts(diags)); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

// only returns the single Service of a Program.
func only(t *testing.T, p *ir.Program) ir.Service {
	t.Helper()
	if len(p.Services) != 1 {
		t.Fatalf("%s: got %d Services, want 1", p.Family, len(p.Services))
	}
	return p.Services[0]
}

// on sets the creation time to a day of January 2026.
func on(day int) change {
	return func(s *snapshot.Service) { s.Created = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC) }
}
