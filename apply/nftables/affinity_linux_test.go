package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// If a backend is removed, its clients are sent to other backends. All other clients keep theirs,
// whatever changes.
func TestAffinityForgetsRemovedBackends(t *testing.T) {
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	defer topo.Close()
	ns := topo.Namespace("node1")
	target, err := OpenIn(ns.Fd(), apply.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	n := node{ns, target}
	for _, f := range ir.Families() {
		for _, way := range []string{"read and compared", "by changes", "by changes, of a shared pool", "by changes, of a pool that is shared no more"} {
			t.Run(f.String()+" "+way, func(t *testing.T) {
				n.nft(t, "", "flush", "ruleset")
				p, smaller := nftest.Sticky(f, ir.TCP), nftest.Sticky(f, ir.TCP)
				if strings.Contains(way, "shared") {
					nftest.Crowd(f, &p.Services[0], 1, 150)
					if !strings.Contains(way, "no more") {
						smaller.Services[0].Frontends = p.Services[0].Frontends
					}
				}
				if _, err := once(t, n, rules.NewTables(rules.Lower(p))); err != nil {
					t.Fatal(err)
				}
				state := rules.NewLowerer(f)
				update(state, &p.Node, ir.Change{Name: p.Services[0].Name, New: &p.Services[0]})

				met := visitAll(t, topo, f)
				goes := met["pod1c.100"]
				smaller = without(smaller, goes)
				switch {
				case strings.HasPrefix(way, "by changes"):
					_, err = n.Commit(t.Context(), planOf(update(state, &p.Node,
						ir.Change{Name: p.Services[0].Name, Old: &p.Services[0], New: &smaller.Services[0]})))
				default:
					_, err = once(t, n, rules.NewTables(rules.Lower(smaller)))
				}
				if err != nil {
					t.Fatal(err)
				}
				now := visitAll(t, topo, f)
				for client, server := range met {
					switch {
					case now[client] == goes:
						t.Errorf("%s still meets %s", client, goes)
					case server != goes && now[client] != server:
						t.Errorf("%s met %s, and now %s", client, server, now[client])
					}
				}
				// It comes back: nobody moves.
				if _, err := once(t, n, rules.NewTables(rules.Lower(p))); err != nil {
					t.Fatal(err)
				}
				for client, server := range visitAll(t, topo, f) {
					if now[client] != server {
						t.Errorf("%s met %s, and %s when another backend came back", client, now[client], server)
					}
				}
			})
		}
	}
}

// visitAll makes one request from each of fifteen clients to the ClusterIP.
func visitAll(t *testing.T, topo *applytest.Topology, f ir.Family) map[string]netip.AddrPort {
	t.Helper()
	met := map[string]netip.AddrPort{}
	clients := []string{"ext", "ext.201", "ext.202", "node1", "pod1b"}
	for i := range 10 {
		clients = append(clients, fmt.Sprintf("pod1c.10%d", i))
	}
	for _, client := range clients {
		a, err := topo.Try(client, "tcp", 0, nftest.AddrPort(f, "10.96.0.10:80"), time.Minute)
		if err != nil {
			t.Fatalf("%s: %v", client, err)
		}
		met[client] = a.Server
	}
	return met
}

// without removes a backend from all pools.
func without(p *ir.Program, b netip.AddrPort) *ir.Program {
	for i := range p.Services[0].Pools {
		pool := &p.Services[0].Pools[i]
		for j := len(pool.Backends) - 1; j >= 0; j-- {
			if pool.Backends[j].AddrPort == b {
				pool.Backends = append(pool.Backends[:j:j], pool.Backends[j+1:]...)
			}
		}
	}
	return p
}

// clients returns the elements of a map with n clients, starting at an address.
func clients(n int, first byte, f ir.Family) string {
	var b strings.Builder
	for i := range n {
		addr := netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
		if f == ir.IPv6 {
			addr = netip.AddrFrom16([16]byte{0: 0xfd, 12: first, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
		}
		fmt.Fprintf(&b, "%s : %s,", addr, nftest.AddrPort(f, "10.244.1.10:8080").Addr())
	}
	return b.String()
}

// A map has room for as many clients per backend as one of kube-proxy. It is declared without a
// size, for which the kernel would allocate memory immediately: 2 MB for 65535. Maps of earlier
// versions grow as well, and keep their elements.
func TestAffinityMapsGrowAsNeeded(t *testing.T) {
	for _, f := range ir.Families() {
		for _, way := range []string{"new", "of an older version", "by changes"} {
			t.Run(f.String()+" "+way, func(t *testing.T) {
				if f == ir.IPv6 {
					applytest.Long(t)
				}
				n := newNode(t)
				p := nftest.Sticky(f, ir.TCP)
				r := rules.Lower(p)
				var big *rules.Set // for the two backends with port 8080
				for i := range r.Sets {
					s := &r.Sets[i]
					if s.Size > rules.MaxClients {
						big = s
					}
					sent, err := codec.Parse(codec.EncodeSet(s, f, 1))
					if err != nil {
						t.Fatal(err)
					}
					if s.Timeout > 0 && sent[unix.NFTA_SET_DESC] != nil {
						t.Errorf("%s: declared with a size", s.Name)
					}
				}
				if big == nil || big.Size != 2*rules.MaxClients {
					t.Fatalf("no map for two backends: %+v", big)
				}
				fill := func(clients string) {
					n.nft(t, "add element "+f.NFT()+" proxyc "+big.Name+" { "+clients+" }", "-f", "-")
				}
				known := 0
				switch way {
				case "of an older version":
					old := rules.Lower(p)
					for i := range old.Sets {
						old.Sets[i].Size = min(old.Sets[i].Size, rules.MaxClients)
					}
					if _, err := once(t, n, rules.NewTables(old)); err != nil {
						t.Fatal(err)
					}
					known = 1000
					fill(clients(known, 10, f))
				case "by changes":
					smaller := without(nftest.Sticky(f, ir.TCP), nftest.AddrPort(f, "10.244.2.10:8080"))
					if _, err := once(t, n, rules.NewTables(rules.Lower(smaller))); err != nil {
						t.Fatal(err)
					}
					state := rules.NewLowerer(f)
					update(state, &p.Node, ir.Change{Name: p.Services[0].Name, New: &smaller.Services[0]})
					plan := planOf(update(state, &p.Node, ir.Change{Name: p.Services[0].Name, Old: &smaller.Services[0], New: &p.Services[0]}))
					if _, err := n.Commit(t.Context(), plan); err != nil {
						t.Fatal(err)
					}
				}
				plan, err := once(t, n, rules.NewTables(r))
				if err != nil {
					t.Fatal(err)
				}
				if way != "new" && len(slices.Collect(plan.Operations)) != map[string]int{"of an older version": 1, "by changes": 0}[way] {
					t.Errorf("operations: %v", slices.Collect(plan.Operations))
				}
				if known > 0 || applytest.All { // the kernel has the same map in each way, and filling it takes seconds
					fill(clients(2*rules.MaxClients-known, 11, f))
					known = 2 * rules.MaxClients
				}
				listed := n.nft(t, "", "list", "map", f.NFT(), "proxyc", big.Name)
				if !strings.Contains(listed, "size 131070") {
					t.Errorf("%.300s", listed)
				}
				if got := strings.Count(listed, " expires "); got != known {
					t.Errorf("%d clients", got)
				}
			})
		}
	}
}

// Elements of affinity maps with an address that is not a backend of the pool are removed and
// reported. Those of connections are kept.
func TestForeignAffinityEntries(t *testing.T) {
	for _, f := range ir.Families() {
		t.Run(f.String(), func(t *testing.T) {
			n := newNode(t)
			p := nftest.Sticky(f, ir.TCP)
			want := rules.NewTables(rules.Lower(p))
			if _, err := once(t, n, want); err != nil {
				t.Fatal(err)
			}
			var name string
			for _, s := range want.Of(f).Sets {
				if s.Timeout > 0 && s.Size > rules.MaxClients {
					name = s.Name
				}
			}
			elements := func(client, server string) {
				n.nft(t, fmt.Sprintf("add element %s proxyc %s { %s : %s }\n", f.NFT(), name,
					nftest.AddrPort(f, client+":0").Addr(), nftest.AddrPort(f, server+":0").Addr()), "-f", "-")
			}
			elements("198.51.100.1", "10.244.1.10") // a backend
			holds(t, "what connections left", n, want)
			elements("198.51.100.2", "203.0.113.66")
			elements("198.51.100.3", "203.0.113.66")
			elements("198.51.100.4", "203.0.113.67")
			have, err := n.Tables(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			plan := newPlan(have, want)
			var reported []string
			for op := range plan.Differences {
				reported = append(reported, fmt.Sprintf("%s %s %s", op.Verb, op.Object, strings.Join(op.Have, ", ")))
			}
			wanted := fmt.Sprintf("change %s proxyc set %s clients of %s, clients of %s", f.NFT(), name,
				nftest.AddrPort(f, "203.0.113.66:0").Addr(), nftest.AddrPort(f, "203.0.113.67:0").Addr())
			if len(reported) != 1 || reported[0] != wanted || plan.Empty() {
				t.Errorf("reported %q, want %q", reported, wanted)
			}
			if _, err := n.Commit(t.Context(), plan); err != nil {
				t.Fatal(err)
			}
			holds(t, "after the repair", n, want)
			listed := n.nft(t, "", "list", "map", f.NFT(), "proxyc", name)
			if strings.Count(listed, " expires ") != 1 || !strings.Contains(listed, nftest.AddrPort(f, "198.51.100.1:0").Addr().String()) {
				t.Error(listed)
			}
		})
	}
}
