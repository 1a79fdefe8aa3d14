package ipvs

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	moby "github.com/moby/ipvs"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// withIPVS runs f in a network namespace of a kernel that has ip_vs. Where there
// is none the test is skipped, unless PROXYC_REQUIRE names ipvs: make test-vm has
// such a moby.
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

// A mode that cannot run is refused with everything that lacks, each with what
// mends it, and nothing is touched.
func TestOpenNamesWhatLacks(t *testing.T) {
	applytest.InNamespace(t, func() {
		before := sh(t, "ip link; ipset list -n; iptables-nft-save")
		d, err := Open(t.Context(), apply.Options{IPTables: "nft", IPVS: apply.IPVS{Scheduler: "none-such"}})
		if err == nil {
			d.Close()
			t.Fatal("a scheduler that no kernel has was taken")
		}
		want := []string{`ipvs.scheduler: the kernel has none that is called "none-such": modprobe ip_vs_none-such`}
		if _, noIPVS := dialIPVS(t.Context()); noIPVS != nil {
			want = []string{"mode ipvs: the kernel has no ip_vs: modprobe ip_vs"}
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

// What is written is what another reader of ip_vs finds.
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
			if have := s.servers[v.Key]; have == nil || !have.Same(&v) || !have.whole || !have.dests[to.AddrPort].plain {
				t.Errorf("%s: read as %+v", v.Key, have)
			}
		}
	})
}

// The kernel finds schedulers and refuses what they are asked with: no virtual
// server is made of the question.
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

// A UDP client that keeps its port is served again when the mode is left: what
// connection tracking knows of its flow goes with the virtual server.
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
