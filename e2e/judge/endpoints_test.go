package judge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// A pool contains the endpoints of a service port in kube-proxy's state, and those that it would
// use under each traffic policy.
type pool struct {
	Port           string // ns/name:port/TCP
	Endpoints      []endpoint
	Cluster, Local []string
}

type endpoint struct {
	Endpoint string

	Local, Ready, Serving, Terminating bool
	ZoneHints, NodeHints               []string
}

// TestEndpoints checks that histories of EndpointSlices end in the same endpoints for each
// service port: those for traffic policies Cluster and Local, those that serve (for UDP), and the
// number of ready ones on this node.
func TestEndpoints(t *testing.T) {
	const table = "proxy"
	diffs := loadDifferences(t, table)
	pools, ready := 0, 0
	for _, test := range load(t, table) {
		w := newWorld(t, ir.ModeNFTables)
		n := 0
		for _, f := range test.Facts {
			if w.take(f) {
				continue
			}
			switch f.Kind {
			case "pools", "somePools", "changedPools":
				n++
				pools++
				var want struct {
					Of    []string // the Services in the fact; empty for all
					Pools []pool
				}
				if f.Kind == "changedPools" {
					decodeInto(t, f.Is, &want)
				} else {
					decodeInto(t, f.Is, &want.Pools)
				}
				p := w.serve(want.Pools)
				where := fmt.Sprintf("%s %s: endpoints %d", table, test.Test, n)
				diffs.compare(t, where, kubeProxyPools(want.Pools), proxycPools(p, want.Of))
			case "localReady":
				ready++
				where := fmt.Sprintf("%s %s: ready here %d", table, test.Test, n)
				want := decode[map[string]int](t, f.Is)
				got := map[string]int{}
				for _, s := range w.program().Services {
					if s.Health != nil && s.Health.Local > 0 {
						got[s.Name.String()] = s.Health.Local
					}
				}
				diffs.compare(t, where, text(want), text(got))
			}
		}
	}
	if pools < 70 || ready < 40 {
		t.Errorf("only %d pools and %d counts", pools, ready)
	}
}

// TestHealthChecks checks that the same number of endpoints is ready for the health checks of the
// Services in the tests of whole proxiers.
func TestHealthChecks(t *testing.T) {
	for _, mode := range []struct {
		table string
		mode  ir.Mode
	}{{"proxy-iptables", ir.ModeIPTables}, {"proxy-nftables", ir.ModeNFTables}} {
		checks := 0
		for _, test := range load(t, mode.table) {
			w := newWorld(t, mode.mode)
			for i, f := range test.Facts {
				if w.take(f) || f.Kind != "localReady" {
					continue
				}
				want := decode[map[string]int](t, f.Is)
				for _, s := range w.program().Services {
					if s.Health == nil {
						continue
					}
					checks++
					if n := want[s.Name.String()]; n != s.Health.Local {
						t.Errorf("%s %s: after fact %d: %s has %d ready endpoints here, in kube-proxy %d", mode.table, test.Test, i, s.Name, s.Health.Local, n)
					}
				}
			}
		}
		if checks < 4 {
			t.Errorf("%s: only %d health checks", mode.table, checks)
		}
	}
}

// serve adds a Service for each one that has slices, in which all effects of its endpoints are
// visible: both policies use them, and load balancers get their number.
func (w *world) serve(pools []pool) *ir.Program {
	ports := map[ir.Name]map[snapshot.ServicePort]bool{}
	add := func(service ir.Name, port snapshot.ServicePort) {
		if ports[service] == nil {
			ports[service] = map[snapshot.ServicePort]bool{}
		}
		ports[service][port] = true
	}
	for _, s := range w.snap.Services() {
		for _, p := range s.Ports {
			add(s.Name, snapshot.ServicePort{Name: p.Name, Protocol: p.Protocol})
		}
	}
	for _, p := range pools {
		port, protocol, _ := cutLast(p.Port, "/")
		service, portName, _ := strings.Cut(port, ":")
		add(name(service), snapshot.ServicePort{Name: portName, Protocol: protocol})
	}
	i := int32(0)
	for _, service := range slices.SortedFunc(keys(ports), ir.Name.Compare) {
		s := &snapshot.Service{Name: service, Object: "Service " + service.String(), Type: "LoadBalancer",
			ClusterIP: fmt.Sprintf("10.96.0.%d", i+1), ExternalLocal: true, HealthPort: 20000 + i}
		if w.family == ir.IPv6 {
			s.ClusterIP = fmt.Sprintf("fd00:10:96::%x", i+1)
		}
		s.ClusterIPs = []string{s.ClusterIP}
		for p := range ports[service] {
			i++
			p.Port, p.NodePort = i, 30000+i
			s.Ports = append(s.Ports, p)
		}
		w.snap.SetService(s)
		w.dirty = append(w.dirty, service)
	}
	return w.program()
}

func kubeProxyPools(pools []pool) string {
	var out []string
	for _, p := range pools {
		var here, serving []string
		for _, e := range p.Endpoints {
			if e.Local {
				here = append(here, e.Endpoint)
			}
			if e.Serving && strings.HasSuffix(p.Port, "/UDP") {
				serving = append(serving, e.Endpoint)
			}
		}
		if s := poolText(p.Port, p.Cluster, p.Local, serving, here); s != "" {
			out = append(out, s)
		}
	}
	return lines(out)
}

func proxycPools(p *ir.Program, of []string) string {
	var out []string
	for _, s := range p.Services {
		if of != nil && !slices.Contains(of, s.Name.String()) {
			continue
		}
		ports := map[ir.ServicePort]bool{}
		for _, f := range s.Frontends {
			ports[f.Port] = true
		}
		for _, port := range slices.SortedFunc(keys(ports), ir.ServicePort.Compare) {
			of := func(policy ir.Policy) []ir.Backend {
				for _, p := range s.Pools {
					if p.Port == port && p.Policy == policy {
						return p.Backends
					}
				}
				return nil
			}
			cluster, local := of(ir.Cluster), of(ir.Local)
			serving := slices.Concat(cluster, local)
			for _, k := range s.Draining {
				if k.Port == port {
					serving = append(serving, k.Backends...)
				}
			}
			var here []ir.Backend
			for _, b := range serving {
				if b.Local {
					here = append(here, b)
				}
			}
			if port.Protocol != ir.UDP {
				serving = nil
			}
			if s := poolText(port.String()+"/"+strings.ToUpper(port.Protocol.String()), names(cluster), names(local), names(serving), names(here)); s != "" {
				out = append(out, s)
			}
		}
	}
	return lines(out)
}

// poolText returns a pool as one line; "" if it is empty. It shows only those local endpoints
// that another list contains, since proxyc does not keep unused ones.
func poolText(port string, cluster, local, serving, here []string) string {
	used := slices.Concat(cluster, local, serving)
	here = slices.DeleteFunc(here, func(e string) bool { return !slices.Contains(used, e) })
	if len(used) == 0 {
		return ""
	}
	s := port + " cluster" + list(cluster) + " local" + list(local) + " here" + list(here)
	if serving != nil {
		s += " serving" + list(serving)
	}
	return s
}

func list(names []string) string {
	names = slices.Clone(names)
	slices.Sort(names)
	return "[" + strings.Join(slices.Compact(names), " ") + "]"
}

func names(backends []ir.Backend) []string {
	var out []string
	for _, b := range backends {
		out = append(out, b.AddrPort.String())
	}
	return out
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// A category is one call of CategorizeEndpoints, with its result.
type category struct {
	Node                         string
	Labels                       map[string]string
	PreferSameNode               bool
	InternalLocal, ExternalLocal bool
	NodePort                     int32
	Endpoints                    []endpoint
	UsesCluster, UsesLocal       bool
	Cluster, Local               []string
	Any                          bool
}

// TestCategorizeEndpoints checks that readiness, traffic policies and hints select the same
// endpoints for a Service port, and that clients are refused or dropped alike if there are none.
func TestCategorizeEndpoints(t *testing.T) {
	const table = "proxy"
	diffs := loadDifferences(t, "categorize")
	n := 0
	for _, test := range load(t, table) {
		for _, f := range test.Facts {
			if f.Kind != "categorize" {
				continue
			}
			n++
			c := decode[category](t, f.Is)
			want := "cluster" + list(c.Cluster) + " local" + list(c.Local)
			if len(c.Cluster)+len(c.Local) == 0 {
				if c.Any {
					want += " drop"
				} else {
					want += " reject"
				}
			}
			diffs.compare(t, "categorize "+test.Test, want, c.proxyc(t))
		}
	}
	if n < 30 {
		t.Errorf("only %d cases", n)
	}
}

// proxyc compiles the Service, EndpointSlices and Node that correspond to kube-proxy's arguments.
func (c category) proxyc(t *testing.T) string {
	w := newWorld(t, ir.ModeNFTables)
	w.node = c.Node
	w.settings.Labels = c.Labels
	name := ir.Name{Namespace: "ns", Name: "svc"}
	s := &snapshot.Service{Name: name, Object: "Service ns/svc", ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
		InternalLocal: c.InternalLocal, ExternalLocal: c.ExternalLocal,
		Ports: []snapshot.ServicePort{{Name: "p", Port: 80, NodePort: c.NodePort}}}
	if c.NodePort != 0 {
		s.Type = "NodePort"
	}
	w.snap.SetService(s)
	slice := &snapshot.EndpointSlice{Name: ir.Name{Namespace: "ns", Name: "svc-1"}, Object: "EndpointSlice ns/svc-1", Service: name, AddressType: "IPv4"}
	for _, e := range c.Endpoints {
		ap := netip.MustParseAddrPort(e.Endpoint)
		slice.Ports = []snapshot.EndpointPort{{Name: "p", HasName: true, Port: int32(ap.Port()), HasPort: true}} // all have one
		in := snapshot.Endpoint{Address: ap.Addr().String(), Addr: ap.Addr(), NodeName: "elsewhere",
			Hints: &snapshot.Hints{Zones: e.ZoneHints, Nodes: e.NodeHints}, Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating}
		if e.Local {
			in.NodeName = w.nodeName()
		}
		slice.Endpoints = append(slice.Endpoints, in)
	}
	w.snap.SetSlice(slice)

	svc := w.program().Services[0]
	picked := map[ir.Policy][]string{}
	for _, p := range svc.Pools {
		picked[p.Policy] = names(p.Backends)
	}
	out := "cluster" + list(picked[ir.Cluster]) + " local" + list(picked[ir.Local])
	if len(svc.Pools) == 0 {
		out += " " + svc.Frontends[0].Fallback.String()
	}
	return out
}

func lines(out []string) string {
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "; ")
}
