package nftables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// When a backend goes, its clients, and only those, are sent elsewhere; and
// clients stay where they are while other things change.
func TestAffinityForgetsBackendsThatGo(t *testing.T) {
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
		for _, way := range []string{"read and compared", "by State"} {
			t.Run(f.String()+" "+way, func(t *testing.T) {
				n.nft(t, "", "flush", "ruleset")
				p := nftest.Sticky(f, ir.TCP)
				if _, err := once(t, n, rules.NewTables(rules.Lower(p))); err != nil {
					t.Fatal(err)
				}
				state := NewState(f)
				state.Update(&p.Node, ir.Change{Name: p.Services[0].Name, New: &p.Services[0]})

				met := visitAll(t, topo, f)
				goes := met["pod1c.100"]
				smaller := without(nftest.Sticky(f, ir.TCP), goes)
				switch way {
				case "by State":
					_, err = n.Commit(t.Context(), planOf(state.Update(&p.Node,
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

// visitAll has fifteen clients visit the ClusterIP, each once.
func visitAll(t *testing.T, topo *applytest.Topology, f ir.Family) map[string]netip.AddrPort {
	t.Helper()
	met := map[string]netip.AddrPort{}
	clients := []string{"ext", "ext.201", "ext.202", "node1", "pod1b"}
	for i := range 10 {
		clients = append(clients, fmt.Sprintf("pod1c.10%d", i))
	}
	for _, client := range clients {
		a, err := topo.Try(client, "tcp", 0, nftest.AddrPort(f, "10.96.0.10:80"), 3*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", client, err)
		}
		met[client] = a.Server
	}
	return met
}

// without takes a backend out of all pools.
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

// The kernel makes room for as many clients as a map's declared size, 2 MB for 65535, when it is added. So none
// is declared, and the kernel limits the map by itself.
func TestAffinityMapsGrowAsNeeded(t *testing.T) {
	for _, f := range ir.Families() {
		n := newNode(t)
		r := rules.Lower(nftest.Sticky(f, ir.TCP))
		for i := range r.Sets {
			s := &r.Sets[i]
			if s.Timeout == 0 {
				continue
			}
			sent, err := parse(encodeSet(s, f, 1))
			if err != nil {
				t.Fatal(err)
			}
			if sent[unix.NFTA_SET_DESC] != nil {
				t.Errorf("%s: a size is declared", s.Name)
			}
		}
		if _, err := once(t, n, rules.NewTables(r)); err != nil {
			t.Fatal(err)
		}
		if got := n.nft(t, "", "list", "ruleset"); !strings.Contains(got, "size 65535") {
			t.Errorf("the kernel does not limit the map:\n%s", got)
		}
	}
}
