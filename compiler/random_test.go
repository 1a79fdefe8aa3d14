package compiler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// choices turns bytes into decisions. After the last byte, every decision is the
// first option.
type choices struct{ data []byte }

func (c *choices) n(n int) int {
	if len(c.data) == 0 {
		return 0
	}
	b := c.data[0]
	c.data = c.data[1:]
	return int(b) % n
}

func (c *choices) yes() bool { return c.n(2) == 1 }

func choose[T any](c *choices, of ...T) T { return of[c.n(len(of))] }

func several[T any](c *choices, of ...T) []T {
	var out []T
	for range c.n(4) {
		out = append(out, choose(c, of...))
	}
	return out
}

// Words for random objects: few, so that objects collide, and some of them
// invalid.
var (
	someNames  = []string{"a", "b", "c", "d"}
	someVIPs   = []string{"10.96.0.1", "10.96.0.2", "fd00:10:96::1", "010.96.0.3", "None", "", "x", "::ffff:10.96.0.4"}
	someIPs    = []string{"198.18.0.1", "192.0.2.11", "203.0.113.1", "2001:db8::1", "10.96.0.2", "y", "fe80::1%eth0", ""}
	somePods   = []string{"10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.10", "fd00:10:1::1", "fd00:10:2::1", "z", "", "::ffff:10.1.0.3"}
	someNodes  = []string{"node1", "node2", "", "node3"}
	someZones  = []string{"zone-a", "zone-b", ""}
	somePorts  = []int32{80, 8080, 0, 1, 65535, 65536, -1, 30080, 30081}
	protocols  = []string{"TCP", "UDP", "SCTP", "", "ICMP"}
	portNames  = []string{"", "p", "q"}
	someCIDRs  = []string{"192.0.2.0/24", "0.0.0.0/0", "10.0.0.0/8", "2001:db8::/32", "::/0", "bad", " 198.51.100.0/24", "127.0.0.0/8", "::ffff:10.0.0.0/104"}
	families_  = []string{"IPv4", "IPv6", "FQDN", ""}
	someTables = []string{"", "maglev", "maglev-65537", "maglev-1"}
)

func (c *choices) service() *snapshot.Service {
	name := ns(choose(c, someNames...))
	s := &snapshot.Service{
		Name: name, Object: "Service " + name.String(), Created: time.Unix(int64(c.n(3)), 0),
		Type:       choose(c, "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", ""),
		ClusterIPs: several(c, someVIPs...), IPFamilies: several(c, families_...),
		ExternalIPs: several(c, someIPs...), SourceRanges: several(c, someCIDRs...),
		AffinityIP: c.yes(), AffinitySecs: choose[int32](c, 0, 60, -1, 86401),
		InternalLocal: c.yes(), ExternalLocal: c.yes(), HealthPort: choose(c, somePorts...),
		PreserveDIP: c.yes(), ProxyName: c.n(8) == 1, Balance: choose(c, someTables...),
	}
	if len(s.ClusterIPs) == 0 {
		s.ClusterIPs = []string{choose(c, someVIPs...)}
	}
	s.ClusterIP = s.ClusterIPs[0]
	for range c.n(4) {
		s.Ports = append(s.Ports, snapshot.ServicePort{Name: choose(c, portNames...), Protocol: choose(c, protocols...),
			Port: choose(c, somePorts...), NodePort: choose[int32](c, 0, 0, 30080, 30081, -1)})
	}
	for _, ip := range several(c, someIPs...) {
		s.LoadBalancer = append(s.LoadBalancer, snapshot.Ingress{IP: ip, IPMode: choose(c, "", "VIP", "Proxy")})
	}
	return s
}

// tabled returns a Service that may request Maglev tables, so large that two or
// three use all slots of a node.
func (c *choices) tabled() *snapshot.Service {
	s := c.service()
	s.Type, s.ProxyName, s.AffinityIP, s.ExternalLocal = "LoadBalancer", false, false, false
	s.ClusterIPs, s.IPFamilies = []string{"10.96.0.1", "fd00:10:96::1"}, []string{"IPv4", "IPv6"}
	s.ClusterIP = s.ClusterIPs[0]
	s.Ports = []snapshot.ServicePort{{Port: 80, NodePort: choose[int32](c, 0, 30080)}, {Name: "p", Port: 8080}}[:1+c.n(2)]
	s.ExternalIPs = several(c, "198.18.0.1", "203.0.113.1", "2001:db8::1", "2001:db8::2")
	s.Balance = choose(c, "maglev-65537", "maglev-16381")
	return s
}

func (c *choices) slice() *snapshot.EndpointSlice {
	owner := choose(c, someNames...)
	name := ns(fmt.Sprintf("%s-%d", owner, c.n(3)))
	e := &snapshot.EndpointSlice{Name: name, Object: "EndpointSlice " + name.String(), Service: ns(owner),
		AddressType: choose(c, families_...), Headless: c.n(8) == 1}
	if c.n(8) == 1 {
		e.Service = ns(choose(c, someNames...)) // a slice may change its Service
	}
	for range c.n(3) {
		e.Ports = append(e.Ports, snapshot.EndpointPort{Name: choose(c, portNames...), Protocol: choose(c, protocols...),
			Port: choose(c, somePorts...), HasName: c.n(8) != 1, HasPort: c.n(8) != 1})
	}
	for range c.n(6) {
		p := snapshot.Endpoint{Address: choose(c, somePods...), NodeName: choose(c, someNodes...),
			Hints: &snapshot.Hints{Zones: several(c, someZones...), Nodes: several(c, someNodes...)},
			Ready: c.n(3) != 1, Serving: c.n(3) != 1, Terminating: c.n(3) == 1}
		p.Addr, _ = netip.ParseAddr(p.Address)
		e.Endpoints = append(e.Endpoints, p)
	}
	return e
}

// step changes one object of a snapshot and returns the affected Services.
func (c *choices) step(s *snapshot.Snapshot) []ir.Name {
	switch c.n(10) {
	case 0:
		name := ns(choose(c, someNames...))
		s.DeleteService(name)
		return []ir.Name{name}
	case 1:
		return s.DeleteSlice(ns(fmt.Sprintf("%s-%d", choose(c, someNames...), c.n(3))))
	case 2, 3, 4:
		svc := c.service()
		s.SetService(svc)
		return []ir.Name{svc.Name}
	case 5, 6:
		svc := c.tabled()
		s.SetService(svc)
		return []ir.Name{svc.Name}
	}
	return s.SetSlice(c.slice())
}

func (c *choices) config() *config.Config {
	cfg := newConfig(choose(c, ir.Modes()...))
	cfg.ClusterCIDR = choose(c, "10.0.0.0/12,fd00:10::/32", "", "10.0.0.0/12")
	cfg.DetectLocalMode = choose(c, config.DetectClusterCIDR, config.DetectNodeCIDR, config.DetectInterfaceNamePrefix)
	cfg.DetectLocal.InterfaceNamePrefix = "veth"
	cfg.NodePortAddresses = several(c, append(slices.Clone(someCIDRs), "primary", "localhost", "all")...)
	cfg.IPTables.MasqueradeAll, cfg.NFTables.MasqueradeAll = c.yes(), c.yes()
	cfg.BindAddress = choose(c, "0.0.0.0", "192.0.2.11", "::", "2001:db8::11", "bad")
	cfg.IPVS.ExcludeCIDRs = several(c, someCIDRs...)
	cfg.Winkernel.SourceVip = choose(c, "", "10.1.0.9", "bad")
	return cfg
}

// random returns the choices of a seed.
func random(seed uint64) *choices {
	r := rand.New(rand.NewPCG(seed, 0))
	c := &choices{data: make([]byte, 20_000)}
	for i := range c.data {
		c.data[i] = byte(r.Uint32())
	}
	return c
}

// differ is cmp.Diff with a fast path for equal values.
func differ(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, netipValues)
}

func checkValid(t *testing.T, programs ir.Programs) {
	t.Helper()
	for _, p := range ir.Present(programs) {
		for _, err := range p.Validate() {
			t.Errorf("%s: %v", p.Family, err)
		}
	}
}

// Updates after any history of changes yield the same Programs as compiling the
// last state. The changes that Update returns transform each Program into the
// next.
func TestUpdatesFoldToCompile(t *testing.T) {
	noRoom := 0 // Services whose tables did not fit, and did later
	for seed := range uint64(300) {
		facts := Facts{NodeName: "node1", Files: seed%4 == 0}
		c := random(seed)
		cfg, snap := c.config(), snapshotOf()
		incremental := New(cfg, snap, facts)
		before, findings := incremental.Programs(), incremental.Findings()
		for step := range 25 {
			var dirty []ir.Name
			for range 1 + c.n(3) {
				dirty = append(dirty, c.step(snap)...)
			}
			full := map[*entry]bool{}
			for _, e := range incremental.order {
				full[e] = e.noRoom
			}
			changes, said := incremental.Update(dirty)
			for _, e := range incremental.order {
				count(&noRoom, full[e] && e.tables != nil && !e.noRoom && !slices.Contains(dirty, e.name))
			}
			maps.Copy(findings, said)
			maps.DeleteFunc(findings, func(_ ir.Name, list diag.List) bool { return len(list) == 0 })
			got := incremental.Programs()
			want, wantDiags := Compile(cfg, snap, facts)
			if d := differ(want, got); d != "" {
				t.Fatalf("seed %d, step %d (-compiled +updated):\n%s", seed, step, d)
			}
			if d := differ(wantDiags, incremental.Diagnostics()); d != "" {
				t.Fatalf("seed %d, step %d: diagnostics (-compiled +updated):\n%s", seed, step, d)
			}
			if d := differ(wantDiags, findings.List()); d != "" {
				t.Fatalf("seed %d, step %d: what Updates said (-compiled +updated):\n%s", seed, step, d)
			}
			for _, f := range ir.Families() {
				if d := differ(ir.Diff(before.Of(f), got.Of(f)), changes.Of(f)); d != "" {
					t.Fatalf("seed %d, step %d: changes of %s (-want +got):\n%s", seed, step, f, d)
				}
			}
			before = got
		}
		checkValid(t, before)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if noRoom < 10 {
		t.Errorf("%d times a Service found room as another one changed: too few to tell anything", noRoom)
	}
}

// A Compiler does not retain deleted Services.
func TestUpdateForgets(t *testing.T) {
	snap := snapshotOf(newService("a"), newService("b"), webSlice)
	c := New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"})
	snap.DeleteService(ns("a"))
	c.Update([]ir.Name{ns("a"), ns("never")})
	if len(c.order) != 1 || len(c.claims.IPv4.only) != 1 || len(c.claims.IPv4.shared) != 0 {
		t.Errorf("got %d Services, %d claims and %d conflicts, want 1, 1 and 0", len(c.order), len(c.claims.IPv4.only), len(c.claims.IPv4.shared))
	}
}

// The order in which objects are added does not matter.
func TestOrderOfObjects(t *testing.T) {
	for seed := range uint64(200) {
		c := random(seed)
		cfg := c.config()
		objects := map[string]object{} // one object per name, because the last one wins
		for range 10 {
			svc, slice := c.service(), c.slice()
			objects[svc.Object] = func(s *snapshot.Snapshot) { s.SetService(svc) }
			objects[slice.Object] = func(s *snapshot.Snapshot) { s.SetSlice(slice) }
		}
		var list []object
		for _, name := range slices.Sorted(maps.Keys(objects)) {
			list = append(list, objects[name])
		}
		want, wantDiags := Compile(cfg, snapshotOf(list...), Facts{NodeName: "node1"})
		slices.Reverse(list)
		got, gotDiags := Compile(cfg, snapshotOf(list...), Facts{NodeName: "node1"})
		if d := differ(want, got) + differ(wantDiags, gotDiags); d != "" {
			t.Fatalf("seed %d (-forth +back):\n%s", seed, d)
		}
	}
}

// CompileNodes yields the same as Compile for each node.
func TestCompileNodes(t *testing.T) {
	for seed := range uint64(50) {
		c := random(seed)
		cfg, snap := c.config(), snapshotOf()
		for range 20 {
			c.step(snap)
		}
		nodes := []Facts{{NodeName: "node1"}, {NodeName: "node2"}, {NodeName: "unknown"}}
		next := 0
		CompileNodes(cfg, snap, nodes, func(i int, got ir.Programs, gotDiags diag.List) bool {
			if i != next {
				t.Fatalf("got node %d, want %d", i, next)
			}
			want, wantDiags := Compile(cfg, snap, nodes[i])
			if d := differ(want, got) + differ(wantDiags, gotDiags); d != "" {
				t.Fatalf("seed %d, node %s (-alone +with others):\n%s", seed, nodes[i].NodeName, d)
			}
			next++
			return i < 1 // stop before the last
		})
		if next != 2 {
			t.Fatalf("got %d nodes, want 2: yield returned false", next)
		}
	}
}

// Compiling any snapshot does not panic, and returns valid Programs.
func FuzzCompile(f *testing.F) {
	f.Add([]byte("1"))
	f.Add(random(1).data[:150])
	f.Add(random(2).data[:300])
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &choices{data}
		cfg, snap := c.config(), snapshotOf()
		for len(c.data) > 0 {
			c.step(snap)
		}
		programs, _ := Compile(cfg, snap, Facts{NodeName: choose(c, someNodes...)})
		checkValid(t, programs)
	})
}
