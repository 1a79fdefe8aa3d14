package winuserspace

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

// Cases of kube-proxy's tests of this proxier (pkg/proxy/winuserspace, 1.25, proxier_test.go). Each
// has the Services of consecutive steps, and the expected backend of each address and port. Those
// of its balancer are in package userspace.
var old = []struct {
	name  string
	steps []map[string]string // backend by address and port; the first letter identifies the Service
	want  map[string]string   // "refused" if the port is closed
}{
	{"TCPProxy, UDPProxy", []map[string]string{{"e 127.97.0.1:20081": "a"}}, map[string]string{"127.97.0.1:20081": "a"}},
	{"MultiPortProxy", []map[string]string{{"e 127.97.0.1:20081": "a", "x 127.97.0.2:20081": "b"}},
		map[string]string{"127.97.0.1:20081": "a", "127.97.0.2:20081": "b"}},
	{"MultiPortOnServiceAdd", []map[string]string{{"e 127.97.0.1:20081": "a", "e 127.97.0.1:20082": "a"}},
		map[string]string{"127.97.0.1:20081": "a", "127.97.0.1:20082": "a", "127.97.0.1:20083": "refused"}},
	{"ProxyStop", []map[string]string{{"e 127.97.0.1:20081": "a"}, {}}, map[string]string{"127.97.0.1:20081": "refused"}},
	{"ProxyUpdateDelete", []map[string]string{{"e 127.97.0.1:20081": "a", "k 127.97.0.3:20081": "b"}, {"k 127.97.0.3:20081": "b"}},
		map[string]string{"127.97.0.1:20081": "refused", "127.97.0.3:20081": "b"}},
	{"ProxyUpdateDeleteUpdate", []map[string]string{{"e 127.97.0.1:20081": "a"}, {}, {"e 127.97.0.1:20081": "a"}},
		map[string]string{"127.97.0.1:20081": "a"}},
	{"ProxyUpdatePort", []map[string]string{{"e 127.97.0.1:20081": "a"}, {"e 127.97.0.1:20099": "a"}},
		map[string]string{"127.97.0.1:20081": "refused", "127.97.0.1:20099": "a"}},
	{"ProxyUpdatePublicIPs", []map[string]string{{"e 127.97.0.1:20081": "a"}, {"e 127.97.0.1:20081": "a", "e 127.97.0.4:20081": "a", "e 127.97.0.5:20081": "a"}},
		map[string]string{"127.97.0.1:20081": "a", "127.97.0.4:20081": "a", "127.97.0.5:20081": "a"}},
	{"ProxyUpdatePublicIPs, and back", []map[string]string{{"e 127.97.0.1:20081": "a", "e 127.97.0.4:20081": "a"}, {"e 127.97.0.1:20081": "a"}},
		map[string]string{"127.97.0.1:20081": "a", "127.97.0.4:20081": "refused"}},
	{"ProxyUpdatePortal: no ClusterIP", []map[string]string{{"e 127.97.0.1:20081": "a"}, {"e -": "a"}},
		map[string]string{"127.97.0.1:20081": "refused"}},
	{"ProxyUpdatePortal: back", []map[string]string{{"e 127.97.0.1:20081": "a"}, {"e -": "a"}, {"e 127.97.0.1:20081": "a"}},
		map[string]string{"127.97.0.1:20081": "a"}},
	{"a Service takes another's address", []map[string]string{{"e 127.97.0.1:20081": "a"}, {"x 127.97.0.1:20081": "b"}},
		map[string]string{"127.97.0.1:20081": "b"}},
	{"one address of two Services", []map[string]string{{"e 127.97.0.1:20081": "a", "x 127.97.0.1:20082": "b"}, {"x 127.97.0.1:20082": "b"}},
		map[string]string{"127.97.0.1:20081": "refused", "127.97.0.1:20082": "b"}},
}

func TestAsTheOldOne(t *testing.T) {
	for _, protocol := range []ir.Protocol{ir.TCP, ir.UDP} {
		for _, way := range []string{"full", "changes"} {
			for _, one := range old {
				t.Run(protocol.String()+"/"+way+"/"+one.name, func(t *testing.T) {
					w := newWorld(t)
					w.apply()
					var before []ir.Service
					for _, step := range one.steps {
						services := w.services(protocol, step)
						if way == "full" {
							if _, r := w.apply(services...); r.Error() != nil {
								t.Fatal(r.Error())
							}
							continue
						}
						w.turn(before, services)
						before = services
					}
					got, needed := map[string]string{}, map[string]bool{}
					for at, want := range one.want {
						got[at] = ask(t, protocol, at)
						if host, _, _ := strings.Cut(at, ":"); want != "refused" {
							needed[host] = true
						}
					}
					if diff := cmp.Diff(one.want, got); diff != "" {
						t.Errorf("served by (-want +got):\n%s", diff)
					}
					if has := w.host.has(); len(has) != len(needed) {
						t.Errorf("addresses %q, needed are %d", has, len(needed))
					}
				})
			}
		}
	}
}

// services returns the Services of a step.
func (w *world) services(protocol ir.Protocol, step map[string]string) (all []ir.Service) {
	at, serves := map[string][]string{}, map[string]string{}
	for text, backend := range step {
		name, where, _ := strings.Cut(text, " ")
		if serves[name] = backend; where != "-" {
			at[name] = append(at[name], where)
		}
	}
	for name, backend1 := range serves {
		all = append(all, service(name, protocol, at[name], backend(w.T, backend1)))
	}
	return all
}

// turn applies the differences between two lists of Services.
func (w *world) turn(from, to []ir.Service) {
	w.Helper()
	changes := map[ir.Name]*ir.Service{}
	for i := range from {
		changes[from[i].Name] = nil
	}
	for i := range to {
		changes[to[i].Name] = &to[i]
	}
	var list []ir.Change
	for name, s := range changes {
		list = append(list, ir.Change{Name: name, New: s})
	}
	if _, r := w.commit(w.d.PlanChanges(w.d.Applied().From(ir.Changes{IPv4: list}))); r.Error() != nil {
		w.Fatal(r.Error())
	}
}

// A node port is served on all addresses of the node, including those of Services
// (getListenIPPortMap). All listeners of a service port share one round robin.
func TestNodePort(t *testing.T) {
	w := newWorld(t)
	n := freePort(t)
	node := "node:" + strconv.Itoa(int(n))
	a, b := backend(t, "a"), backend(t, "b")
	w.apply(service("web", ir.TCP, at(node, "127.97.0.1:20081"), a, b))
	first := ask(t, ir.TCP, "127.0.0.1:"+strconv.Itoa(int(n)))
	second := ask(t, ir.TCP, "127.97.0.1:20081")
	third := ask(t, ir.TCP, "127.0.0.1:"+strconv.Itoa(int(n)))
	if first == second || first != third || first == "refused" {
		t.Errorf("served by %s, %s, %s: not in turn", first, second, third)
	}
	if diff := cmp.Diff(at("127.97.0.1"), w.host.has()); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

// Clients keep their backend on every address of the Service.
func TestAffinity(t *testing.T) {
	w := newWorld(t)
	s := service("web", ir.TCP, at("127.97.0.1:20081", "127.97.0.2:20081"), backend(t, "a"), backend(t, "b"))
	s.Pools[0].Affinity = &ir.Affinity{Timeout: 1e12}
	w.apply(s)
	first := ask(t, ir.TCP, "127.97.0.1:20081")
	for range 4 {
		for _, at := range at("127.97.0.1:20081", "127.97.0.2:20081") {
			if got := ask(t, ir.TCP, at); got != first {
				t.Errorf("%s: %s, and %s before", at, got, first)
			}
		}
	}
}

// Without backends clients are rejected.
func TestNoEndpoints(t *testing.T) {
	w := newWorld(t)
	s := service("web", ir.TCP, at("127.97.0.1:20081"))
	w.apply(s)
	if got := ask(t, ir.TCP, "127.97.0.1:20081"); got != "refused" {
		t.Errorf("served by %s", got)
	}
	s = service("web", ir.TCP, at("127.97.0.1:20081"), backend(t, "a"))
	w.change("web", &s)
	if got := ask(t, ir.TCP, "127.97.0.1:20081"); got != "a" {
		t.Errorf("served by %s", got)
	}
}
