package ipvs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	moby "github.com/moby/ipvs"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// withIPVS runs f in a network namespace of a kernel with ip_vs. Without ip_vs the test is skipped,
// unless PROXYC_REQUIRE contains ipvs. make test-vm runs it in a kernel with ip_vs.
func withIPVS(t *testing.T, f func(n *node)) {
	t.Helper()
	applytest.InNamespace(t, func() {
		n, lacks, err := dialNode(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer n.close()
		if len(lacks) > 0 {
			if slices.Contains(strings.Split(os.Getenv("PROXYC_REQUIRE"), ","), "ipvs") {
				t.Fatalf("PROXYC_REQUIRE names ipvs: %v", lacks)
			}
			t.Skip(lacks)
		}
		f(n)
	})
}

// If a mode is not supported, Open returns all missing features with their fixes, and changes
// nothing.
func TestOpenNamesWhatLacks(t *testing.T) {
	applytest.InNamespace(t, func() {
		before := sh(t, "ip link; ipset list -n; iptables-nft-save")
		d, err := Open(t.Context(), apply.Options{IPTables: "nft", IPVS: apply.IPVS{Scheduler: "none-such"}})
		if err == nil {
			d.Close()
			t.Fatal("a scheduler that no kernel has was taken")
		}
		want := []string{`ipvs.scheduler: the kernel has no scheduler "none-such": modprobe ip_vs_none-such`}
		if _, noIPVS := dialIPVS(t.Context()); noIPVS != nil {
			want = []string{"the kernel has no ip_vs: modprobe ip_vs"}
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("got %v, want %s", err, w)
			}
		}
		for line := range strings.Lines(err.Error()) {
			if !strings.Contains(line, ": modprobe ") {
				t.Errorf("no command mends: %s", line)
			}
			if strings.Contains(line, "answer") {
				t.Errorf("the kernel was not understood: %s", line)
			}
		}
		if diff := cmp.Diff(before, sh(t, "ip link; ipset list -n; iptables-nft-save")); diff != "" {
			t.Errorf("touched:\n%s", diff)
		}
	})
}

// Another reader of ip_vs finds the same state.
func TestAnotherReaderAgrees(t *testing.T) {
	withIPVS(t, func(n *node) {
		for _, v := range []rules.VirtualServer{
			{Key: ir.Match{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: ir.TCP, Port: 443}, Scheduler: "rr"},
			{Key: ir.Match{Addr: netip.MustParseAddr("fd00::1"), Protocol: ir.UDP, Port: 53}, Scheduler: "rr", Flags: rules.Persistent, Timeout: 10800e9},
			{Key: ir.Match{Addr: netip.MustParseAddr("10.96.0.2"), Protocol: ir.SCTP, Port: 9}, Scheduler: "mh", Flags: rules.Fallback | rules.SourceHash},
		} {
			to := rules.RealServer{AddrPort: netip.AddrPortFrom(v.Key.Addr.Next().Next(), 8080), Weight: 1}
			failures, err := n.do(t.Context(), []request{{op: addServer, server: &v}, {op: addDest, server: &v, dest: &to}})
			if err != nil || len(failures) > 0 {
				t.Fatalf("%s: %v %v", v.Key, failures, err)
			}
			h, err := moby.New("")
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			all, err := h.GetServices()
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(all, func(s *moby.Service) bool {
				a, _ := netip.AddrFromSlice(s.Address)
				return a.Unmap() == v.Key.Addr && s.Port == v.Key.Port && s.Protocol == uint16(v.Key.Protocol)
			})
			if i < 0 {
				t.Fatalf("%s: is not there", v.Key)
			}
			if got := all[i]; got.SchedName != v.Scheduler || rules.Flags(got.Flags)&^flagHashed != v.Flags || v.Timeout > 0 && got.Timeout != uint32(v.Timeout.Seconds()) {
				t.Errorf("%s: got %+v", v.Key, got)
			}
			dests, err := h.GetDestinations(all[i])
			if err != nil || len(dests) != 1 || dests[0].Port != 8080 || dests[0].Weight != 1 || dests[0].ConnectionFlags&moby.ConnectionFlagFwdMask != moby.ConnectionFlagMasq {
				t.Errorf("%s: real servers %+v, %v", v.Key, dests, err)
			}
			s, err := n.read(t.Context(), ir.FamilyOf(v.Key.Addr))
			if err != nil {
				t.Fatal(err)
			}
			if have := s.servers[v.Key]; have == nil || !have.Same(&v) || !have.singleAddress || !have.dests[to.AddrPort].standard {
				t.Errorf("%s: read as %+v", v.Key, have)
			}
		}
	})
}

// A connection is counted for its virtual server, as another reader counts it.
func TestConnectionsAreCounted(t *testing.T) {
	withIPVS(t, func(n *node) {
		sh(t, "ip link set lo up; ip addr add 10.96.0.9/32 dev lo; ip addr add 10.96.0.11/32 dev lo")
		v := rules.VirtualServer{Key: ir.Match{Addr: netip.MustParseAddr("10.96.0.9"), Protocol: ir.UDP, Port: 53}, Scheduler: "rr"}
		to := rules.RealServer{AddrPort: netip.MustParseAddrPort("10.96.0.11:8080"), Weight: 1}
		if failures, err := n.do(t.Context(), []request{{op: addServer, server: &v}, {op: addDest, server: &v, dest: &to}}); err != nil || len(failures) > 0 {
			t.Fatal(failures, err)
		}
		for range 3 {
			c, err := net.Dial("udp", "10.96.0.9:53")
			if err == nil {
				_, err = c.Write([]byte("?"))
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		h, err := moby.New("")
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		applytest.Until(t, time.Minute, "another reader sees 3 connections", func() bool { // ip_vs adds them up every two seconds
			all, err := h.GetServices()
			return err == nil && len(all) == 1 && all[0].Stats.Connections == 3
		})
		if got, err := n.counted(t.Context(), ir.IPv4); err != nil || len(got) != 1 || got[0].ID != v.Key || got[0].Count != 3 {
			t.Error(got, err)
		}
	})
}

// The scheduler check creates no virtual server.
func TestSchedulers(t *testing.T) {
	withIPVS(t, func(n *node) {
		for _, name := range []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "fo", "ovf", "mh"} {
			if err := n.ipvs.scheduler(t.Context(), name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := n.ipvs.scheduler(t.Context(), "none-such"); err == nil {
			t.Error("a scheduler that no kernel has is there")
		}
		for _, f := range ir.Families() {
			if s, err := n.read(t.Context(), f); err != nil || len(s.servers) > 0 {
				t.Errorf("%s: virtual servers %v, %v", f, s, err)
			}
		}
	})
}

// A UDP client that keeps its port is served again after the mode is left: its connection tracking
// entry is deleted with the virtual server.
func TestLeavingForgetsFlows(t *testing.T) {
	withIPVS(t, func(n *node) {
		v := rules.VirtualServer{Key: ir.Match{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: ir.UDP, Port: 53}, Scheduler: "rr"}
		other := v
		other.Key.Addr = netip.MustParseAddr("203.0.113.99") // another program's
		if failures, err := n.do(t.Context(), []request{{op: makeDevice, family: ir.IPv4}, {op: addServer, server: &v}, {op: addServer, server: &other},
			{op: addAddress, family: ir.IPv4, element: &rules.Element{ElementKey: rules.ElementKey{Set: rules.IPVSIPs, Addr: v.Key.Addr}}}}); err != nil || len(failures) > 0 {
			t.Fatal(failures, err)
		}
		for to, backend := range map[string]string{"10.96.0.10": "10.244.1.5", "203.0.113.99": "10.244.1.6"} {
			sh(t, "conntrack -I -p udp -s 192.0.2.1 -d "+to+" --sport 5000 --dport 53 -r "+backend+" -q 192.0.2.1 --reply-port-src 53 --reply-port-dst 5000 -t 100")
		}
		for _, l := range leftovers(t) {
			if err := l.Remove(t.Context()); err != nil {
				t.Fatalf("%s: %v", l.Object, err)
			}
		}
		got := sh(t, "conntrack -L 2>/dev/null | grep -o 'dst=[0-9.]* sport=5000'")
		if got != "dst=203.0.113.99 sport=5000" {
			t.Errorf("flows that stay: %s", got)
		}
		if left, err := n.ipvs.servers(t.Context(), ir.IPv4); err != nil || len(left) != 1 || left[0].Key != other.Key {
			t.Errorf("virtual servers that stay: %v, %v", left, err)
		}
	})
}

// class returns the class of an error for a commit.
func class(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errExists):
		return "exists"
	case errors.Is(err, errMissing):
		return "missing"
	case errors.Is(err, errEnvironment):
		return "environment"
	}
	return "refused"
}

// randomRequest is about one of few objects, so many exist already or no longer.
func randomRequest(random *rand.Rand) request {
	addr := netip.MustParseAddr("10.96.0.1")
	f := ir.IPv4
	if random.IntN(2) == 0 {
		f, addr = ir.IPv6, netip.MustParseAddr("fd00::1")
	}
	for range random.IntN(2) {
		addr = addr.Next()
	}
	server := &rules.VirtualServer{Key: ir.Match{Addr: addr, Protocol: []ir.Protocol{ir.TCP, ir.UDP}[random.IntN(2)], Port: 80}, Scheduler: []string{"rr", "mh", "none-such"}[random.IntN(3)]}
	if random.IntN(2) == 0 {
		server.Flags, server.Timeout = rules.Persistent, 60e9
	}
	to := &rules.RealServer{AddrPort: netip.AddrPortFrom(addr, uint16(8080+random.IntN(2))), Weight: uint32(random.IntN(2))}
	all := []rules.Set{rules.LoopBack, rules.ClusterIP, rules.LoadBalancerSourceCIDR, rules.NodePortTCP, rules.IPVSIPs}
	set := all[random.IntN(len(all))]
	element := &rules.Element{ElementKey: rules.ElementKey{Set: set, Addr: addr, Protocol: ir.TCP, Number: uint16(80 + random.IntN(3)), Source: netip.PrefixFrom(addr, addr.BitLen())}}
	switch t := set.Type(); t {
	case rules.HashIP:
		element.Number, element.Protocol, element.Source = 0, 0, netip.Prefix{}
	case rules.BitmapPort:
		element.Addr, element.Protocol, element.Source = netip.Addr{}, 0, netip.Prefix{}
	case rules.HashIPPort:
		element.Source = netip.Prefix{}
	case rules.HashIPPortNet:
		element.Source = netip.PrefixFrom(addr, random.IntN(3)*f.Bits()/4).Masked()
	}
	r := request{op: operation(random.IntN(int(removeElement) + 1)), family: f, times: timeouts{600e9, 60e9, 120e9}}
	switch r.op {
	case makeSet, growSet:
		r.set, r.max = set, 1+random.IntN(2)
	case addElement, removeElement:
		r.element = element
	case addAddress, removeAddress:
		r.element = &rules.Element{ElementKey: rules.ElementKey{Set: rules.IPVSIPs, Addr: addr}}
	case addServer, setServer, removeServer:
		r.server = server
	case addDest, setDest, removeDest:
		r.server, r.dest = server, to
	}
	return r
}

// The fake rejects the same requests as the kernel for the same reasons, and ends in the same
// state.
func TestFakeIsTheKernel(t *testing.T) {
	seed := applytest.Seed(t)
	withIPVS(t, func(n *node) {
		random := rand.New(rand.NewPCG(uint64(seed), 3))
		fake := newFakeKernel()
		start, err := n.read(t.Context(), ir.IPv4)
		if err != nil {
			t.Fatal(err)
		}
		fake.families.IPv4.times, fake.families.IPv6.times = start.times, start.times
		for range 40 {
			for range 25 {
				r := randomRequest(random)
				if r.op == growSet { // it replaces a smaller set, never a larger one
					of := fake.families.Of(r.family).sets[r.set]
					if of == nil || of.max == 0 || of.max >= r.max {
						continue
					}
				}
				// One at a time, since the result may depend on the previous one.
				want, _ := fake.do(t.Context(), []request{r})
				got, err := n.do(t.Context(), []request{r})
				if err != nil {
					t.Fatalf("%s: %v", r.object(), err)
				}
				one := func(f []failure) error {
					if len(f) == 0 {
						return nil
					}
					return f[0].err
				}
				if w, g := class(one(want)), class(one(got)); w != g {
					t.Fatalf("operation %d on %s: the fake says %q (%v), the kernel %q (%v)", r.op, r.object(), w, one(want), g, one(got))
				}
			}
			for _, f := range ir.Families() {
				got, err := n.read(t.Context(), f)
				if err != nil {
					t.Fatal(err)
				}
				want := fake.families.Of(f)
				if !reflect.DeepEqual(want.bound, got.bound) || want.times != got.times || want.device != got.device {
					t.Fatalf("addresses %v, want %v; timeouts %s, want %s; device %t, want %t", got.bound, want.bound, got.times, want.times, got.device, want.device)
				}
				if !reflect.DeepEqual(want.sets, got.sets) {
					t.Fatalf("%s: sets %+v, want %+v", f, describeSets(got), describeSets(want))
				}
				if len(want.servers) != len(got.servers) {
					t.Fatalf("%d virtual servers, want %d", len(got.servers), len(want.servers))
				}
				for key, w := range want.servers {
					g := got.servers[key]
					if g == nil || !g.Same(&w.VirtualServer) || g.singleAddress != w.singleAddress || !reflect.DeepEqual(g.dests, w.dests) {
						t.Fatalf("%s: %+v, want %+v", key, g, w)
					}
				}
			}
		}
	})
}

func describeSets(s *state) (all []string) {
	for name, of := range s.sets {
		for k := range of.elements {
			all = append(all, name.String()+" "+k.String())
		}
		all = append(all, fmt.Sprint(name, " of ", of.max))
	}
	slices.Sort(all)
	return all
}

// Histories end in the same state in the kernel and the fake.
func TestHistoriesOnTheKernel(t *testing.T) {
	withIPVS(t, func(n *node) {
		if err := n.device.send(t.Context(), newLink("eth0", nil)); err != nil {
			t.Fatal(err)
		}
		b := &bench{t: t, tables: &fakeTables{}, now: time.Unix(1e9, 0)}
		all := program()
		for _, a := range all.Node.Addrs {
			sh(t, "ip addr add "+a.String()+"/24 dev eth0")
		}
		families := ir.Families()
		b.Dataplane = newDataplane(n, b.tables, families[:], apply.Options{})
		random := rand.New(rand.NewPCG(5, 5))
		now := *all
		now.Services = nil
		step := func(changes []ir.Change, full bool) {
			if full {
				if _, _, err := apply.Once(t.Context(), b.Dataplane, ir.NewPrograms(&now), func(apply.Plan) bool { return true }); err != nil {
					t.Fatal(err)
				}
			} else {
				b.change(changes...)
			}
			var as fakeKernel
			for _, f := range families {
				s, err := n.read(t.Context(), f)
				if err != nil {
					t.Fatal(err)
				}
				*as.families.At(f) = s
			}
			if why := as.difference(ir.NewPrograms(&now), b.tables); why != "" {
				t.Fatal(why)
			}
		}
		step(nil, true)
		for i := range 25 {
			var changes []ir.Change
			now.Services = slices.Clone(now.Services)
			for j := range all.Services {
				if random.IntN(3) > 0 {
					continue
				}
				name := all.Services[j].Name
				now.Services = slices.DeleteFunc(now.Services, func(s ir.Service) bool { return s.Name == name })
				c := ir.Change{Name: name}
				if random.IntN(3) > 0 {
					s := all.Services[j]
					if len(s.Pools) > 0 && random.IntN(2) == 0 {
						s = *withBackends(&s, s.Pools[0].Backends[:len(s.Pools[0].Backends)/2]...)
					}
					c.New = &s
					now.Services = append(now.Services, s)
				}
				changes = append(changes, c)
			}
			step(changes, i%5 == 4)
		}
	})
}
