package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
)

// service returns a Service with a cluster IP, and a node port unless n is 0.
func service(name, vip string, n uint16, backends ...string) ir.Service {
	s := ir.Service{Name: ir.Name{Namespace: "default", Name: name}, Origin: ir.Origin{Object: "Service default/" + name}}
	of := ir.ServicePort{Service: s.Name, Protocol: ir.TCP}
	frontend := func(k ir.Kind, m ir.Match) {
		f := ir.Frontend{Kind: k, Match: m, Port: of, Origin: s.Origin}
		if len(backends) > 0 {
			f.Routes = []ir.Route{{From: ir.Any, SNAT: true}}
		}
		s.Frontends = append(s.Frontends, f)
	}
	frontend(ir.ClusterIP, ir.Match{Addr: netip.MustParseAddr(vip), Protocol: ir.TCP, Port: 80})
	if n != 0 {
		frontend(ir.NodePort, ir.Match{Protocol: ir.TCP, Port: n})
	}
	if len(backends) > 0 {
		p := ir.Pool{Port: of, Origin: s.Origin}
		for _, b := range backends {
			p.Backends = append(p.Backends, ir.Backend{AddrPort: netip.MustParseAddrPort(b)})
		}
		s.Pools = []ir.Pool{p}
	}
	return s
}

func programs(u ir.Userspace, services ...ir.Service) ir.Programs {
	node := ir.Node{Mode: ir.ModeUserspace, IP: netip.MustParseAddr("192.0.2.11"), NodePorts: ir.NodePortAddrs{All: true}, Userspace: &u}
	slices.SortFunc(services, func(a, b ir.Service) int { return a.Name.Compare(b.Name) })
	return ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node, Services: services})
}

// world is a Dataplane in a network namespace.
type world struct {
	*testing.T
	d *Dataplane
}

// inNamespace runs play in a new network namespace. The Proxy's goroutines are outside, so it
// accepts no connections there.
func inNamespace(t *testing.T, play func(w *world)) {
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	applytest.InNamespace(t, func() {
		d, err := Open(t.Context(), apply.Options{IPTables: "nft"})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		play(&world{t, d})
	})
}

// apply applies Programs, and returns the operations.
func (w *world) apply(want ir.Programs) ([]string, apply.Result) {
	w.Helper()
	if err := w.d.Read(w.Context(), ir.Programs{}); err != nil {
		w.Fatal(err)
	}
	return w.commit(w.d.Plan(want))
}

func (w *world) commit(p apply.Plan) (done []string, r apply.Result) {
	w.Helper()
	for op := range p.Operations {
		done = append(done, op.Verb.String()+" "+op.Object)
	}
	planned := slices.Collect(p.Differences)
	r, err := w.d.Commit(w.Context(), p)
	if diff := cmp.Diff(planned, slices.Collect(p.Differences)); diff != "" {
		w.Errorf("Commit changed the Plan (-before +after):\n%s", diff)
	}
	if err != nil {
		w.Fatal(err)
	}
	return done, r
}

// nat lists the rules of Services: match and target.
func (w *world) nat() (list []string) {
	w.Helper()
	out, err := exec.Command("iptables-nft-save", "-t", "nat").Output()
	if err != nil {
		w.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "-A KUBE-PORTALS-CONTAINER") || strings.HasPrefix(line, "-A KUBE-NODEPORT-CONTAINER -p") {
			f := strings.Fields(line)
			list = append(list, f[slices.Index(f, "--comment")+1]+" "+f[slices.Index(f, "--dport")+1]+" "+f[len(f)-1])
		}
	}
	slices.Sort(list)
	return list
}

// at returns the port of a Service's listener.
func (w *world) at(name string) uint16 {
	at, _ := w.d.proxy.At(Key{Family: ir.IPv4, Port: ir.ServicePort{Service: ir.Name{Namespace: "default", Name: name}, Protocol: ir.TCP}})
	return at.Port()
}

func (w *world) leads(name string, port uint16) string {
	return fmt.Sprintf(`"default/%s" %d %d`, name, port, w.at(name))
}

func connects(to string) bool {
	c, err := net.Dial("tcp4", to)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// Rules redirect to listeners, follow Services, and are unchanged if only endpoints change.
func TestDataplane(t *testing.T) {
	inNamespace(t, func(w *world) {
		web := service("web", "10.96.0.10", 30080, "10.244.1.10:8080")
		w.apply(programs(ir.Userspace{}, web, service("idle", "10.96.0.11", 0)))
		want := []string{w.leads("idle", 80), w.leads("web", 30080), w.leads("web", 80)}
		if diff := cmp.Diff(want, w.nat()); diff != "" {
			t.Errorf("rules (-want +got):\n%s", diff)
		}
		before := w.at("web")
		if !connects(fmt.Sprintf("127.0.0.1:%d", before)) {
			t.Error("nobody listens for web")
		}
		if connects(fmt.Sprintf("127.0.0.1:%d", w.at("idle"))) {
			t.Error("without endpoints connections are accepted")
		}
		if l, err := net.Listen("tcp4", ":30080"); err == nil {
			l.Close()
			t.Error("another program got the node port")
		}

		// A new endpoint changes no rule.
		more := service("web", "10.96.0.10", 30080, "10.244.1.10:8080", "10.244.1.11:8080")
		done, _ := w.commit(w.d.PlanChanges(w.d.Applied().From(ir.Changes{IPv4: []ir.Change{{Name: more.Name, New: &more}}})))
		if want := []string{fmt.Sprintf("change listener 0.0.0.0:%d/tcp", before)}; !slices.Equal(done, want) {
			t.Errorf("an endpoint more: %q, want %q", done, want)
		}

		// One Service is removed, and one added.
		added := service("new", "10.96.0.12", 0, "10.244.1.10:8080")
		w.commit(w.d.PlanChanges(w.d.Applied().From(ir.Changes{IPv4: []ir.Change{{Name: more.Name}, {Name: added.Name, New: &added}}})))
		if diff := cmp.Diff([]string{w.leads("idle", 80), w.leads("new", 80)}, w.nat()); diff != "" {
			t.Errorf("rules after a change (-want +got):\n%s", diff)
		}
		if connects(fmt.Sprintf("127.0.0.1:%d", before)) {
			t.Error("somebody listens for a Service that is gone")
		}
		l, err := net.Listen("tcp4", ":30080")
		if err != nil {
			t.Errorf("its node port is held: %v", err)
		} else {
			l.Close()
		}

		// Afterwards neither Compare nor a Plan has changes.
		now := w.d.Applied().Programs()
		if p, err := applytest.Compare(t.Context(), w.d); err != nil || !p.Empty() {
			t.Errorf("compared: %v, %v", p, err)
		}
		if err := w.d.Read(t.Context(), ir.Programs{}); err != nil || !w.d.Plan(now).Empty() {
			t.Errorf("planned anew: there is to do, %v", err)
		}
		w.d.Commit(t.Context(), w.d.Plan(now))

		// Foreign changes are found and repaired.
		if out, err := exec.Command("iptables-nft", "-t", "nat", "-F", "KUBE-PORTALS-CONTAINER").CombinedOutput(); err != nil {
			t.Fatalf("%s", out)
		}
		p, err := applytest.Compare(t.Context(), w.d)
		if err != nil || p.Empty() {
			t.Fatalf("a chain that was flushed is not noticed: %v", err)
		}
		w.commit(p)
		if diff := cmp.Diff([]string{w.leads("idle", 80), w.leads("new", 80)}, w.nat()); diff != "" {
			t.Errorf("rules after the repair (-want +got):\n%s", diff)
		}
	})
}

// The port and the address of a Service change, the address is removed and restored. The rules
// follow, and the listener keeps its port while a rule redirects to it.
func TestAddressesFollow(t *testing.T) {
	inNamespace(t, func(w *world) {
		web := func(change func(*ir.Service)) ir.Programs {
			s := service("web", "10.96.0.10", 0, "10.244.1.10:8080")
			change(&s)
			return programs(ir.Userspace{}, s)
		}
		first := web(func(*ir.Service) {})
		w.apply(first)
		at := w.at("web")
		follows := func(what string, want ir.Programs, ports ...uint16) {
			t.Helper()
			w.apply(want)
			if now := w.at("web"); now != at {
				t.Errorf("%s: moved from %d to %d", what, at, now)
			}
			var rules []string
			for _, p := range ports {
				rules = append(rules, w.leads("web", p))
			}
			if diff := cmp.Diff(rules, w.nat()); diff != "" {
				t.Errorf("%s: rules (-want +got):\n%s", what, diff)
			}
		}
		follows("another port", web(func(s *ir.Service) { s.Frontends[0].Match.Port = 81 }), 81)
		follows("an external IP", web(func(s *ir.Service) {
			external := s.Frontends[0]
			external.Kind, external.Match.Addr = ir.LoadBalancer, netip.MustParseAddr("203.0.113.10")
			s.Frontends = append(s.Frontends, external)
		}), 80, 80)
		w.apply(web(func(s *ir.Service) { s.Frontends, s.Pools = nil, nil }))
		if list := w.nat(); len(list) > 0 || w.at("web") != 0 || connects(fmt.Sprintf("127.0.0.1:%d", at)) {
			t.Errorf("without an address there are rules, or a listener: %q", list)
		}
		follows("the first again", first, 80)
		if !connects(fmt.Sprintf("127.0.0.1:%d", at)) {
			t.Error("nobody listens")
		}
	})
}

// If another program has the proxy port, the rules redirect to another one, and changed Services
// keep theirs.
func TestTakenProxyPort(t *testing.T) {
	inNamespace(t, func(w *world) {
		web := service("web", "10.96.0.10", 0, "10.244.1.10:8080")
		if err := w.d.Read(t.Context(), ir.Programs{}); err != nil {
			t.Fatal(err)
		}
		p := w.d.Plan(programs(ir.Userspace{}, web)).(*Plan)
		wanted := p.families.IPv4.listeners[0].Listen.Port()
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", wanted))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		w.commit(p)
		got := w.at("web")
		if got == wanted || got == 0 {
			t.Errorf("listens at %d, where another program does", got)
		}
		if diff := cmp.Diff([]string{w.leads("web", 80)}, w.nat()); diff != "" {
			t.Errorf("rules (-want +got):\n%s", diff)
		}
		more := service("web", "10.96.0.10", 0, "10.244.1.10:8080", "10.244.1.11:8080")
		w.commit(w.d.PlanChanges(w.d.Applied().From(ir.Changes{IPv4: []ir.Change{{Name: more.Name, New: &more}}})))
		if now := w.at("web"); now != got {
			t.Errorf("moved from %d to %d", got, now)
		}
		if _, r := w.apply(w.d.Applied().Programs()); w.at("web") != got || len(r.Refused) > 0 {
			t.Errorf("moved from %d to %d when all was compared", got, w.at("web"))
		}

		// A later process uses the ports in the rules.
		for _, k := range w.d.proxy.Keys() {
			w.d.proxy.CloseListener(k)
		}
		next, err := Open(t.Context(), apply.Options{IPTables: "nft"})
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		w.d = next
		done, _ := w.apply(programs(ir.Userspace{}, more))
		if want := []string{fmt.Sprintf("add listener 0.0.0.0:%d/tcp", got)}; !slices.Equal(done, want) {
			t.Errorf("the next process: %q, want %q", done, want)
		}
	})
}

// Proxy ports are within the configured range. A Service without a free port is rejected, and the
// others are served.
func TestPortRange(t *testing.T) {
	inNamespace(t, func(w *world) {
		l, err := net.Listen("tcp4", ":20001")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		u := ir.Userspace{PortMin: 20000, PortMax: 20002}
		a, b, c := service("a", "10.96.0.1", 0, "10.244.1.1:1"), service("b", "10.96.0.2", 0, "10.244.1.1:1"), service("c", "10.96.0.3", 0, "10.244.1.1:1")
		want := programs(u, a, b, c)
		_, r := w.apply(want)
		if len(r.Refused) != 1 || !strings.Contains(r.Error().Error(), "20001") {
			t.Fatalf("refused %v", r.Error())
		}
		_, r = w.apply(apply.Without(want, r.Refused))
		if len(r.Refused) != 0 {
			t.Fatalf("refused %v", r.Error())
		}
		ports := map[uint16]bool{}
		for _, name := range []string{"a", "b", "c"} {
			ports[w.at(name)] = true
		}
		if diff := cmp.Diff(map[uint16]bool{0: true, 20000: true, 20002: true}, ports); diff != "" {
			t.Errorf("ports (-want +got):\n%s", diff)
		}
		if n := len(w.nat()); n != 2 {
			t.Errorf("%d rules: %q", n, w.nat())
		}
		// A rejected Service receives the port of a removed one.
		stays, waits := a, c
		for _, s := range []ir.Service{a, b, c} {
			if w.at(s.Name.Name) == 0 {
				waits = s
			} else {
				stays = s
			}
		}
		before := w.at(stays.Name.Name)
		w.apply(programs(u, stays))
		_, r = w.apply(programs(u, stays, waits))
		got := w.at(waits.Name.Name)
		if len(r.Refused) != 0 || w.at(stays.Name.Name) != before || got != 20000 && got != 20002 || got == before {
			t.Errorf("a port became free: %s at %d, %s at %d, refused %v", stays.Name, w.at(stays.Name.Name), waits.Name, got, r.Error())
		}

		// After a restart with another range, all listeners move.
		u = ir.Userspace{PortMin: 21000, PortMax: 21010}
		if err := w.d.Close(); err != nil {
			t.Fatal(err)
		}
		if w.d, err = Open(t.Context(), apply.Options{IPTables: "nft"}); err != nil {
			t.Fatal(err)
		}
		w.apply(programs(u, a, b, c))
		if diff := cmp.Diff([]string{w.leads("a", 80), w.leads("b", 80), w.leads("c", 80)}, w.nat()); diff != "" {
			t.Errorf("rules (-want +got):\n%s", diff)
		}
		if w.at("a") < 21000 || w.at("b") < 21000 || connects("127.0.0.1:20000") || connects("127.0.0.1:20002") {
			t.Error("not all have moved")
		}
	})
}

// Close leaves neither rules that redirect nor listeners.
func TestClose(t *testing.T) {
	inNamespace(t, func(w *world) {
		w.apply(programs(ir.Userspace{}, service("web", "10.96.0.10", 30080, "10.244.1.10:8080")))
		at := w.at("web")
		if err := w.d.Close(); err != nil {
			t.Fatal(err)
		}
		if list := w.nat(); len(list) > 0 {
			t.Errorf("rules are left: %q", list)
		}
		if connects(fmt.Sprintf("127.0.0.1:%d", at)) {
			t.Error("somebody listens")
		}
	})
}

// A read-only Dataplane finds no differences while another process has the listeners.
func TestLook(t *testing.T) {
	inNamespace(t, func(w *world) {
		want := programs(ir.Userspace{}, service("web", "10.96.0.10", 30080, "10.244.1.10:8080"))
		look := func() (done []string) {
			d, err := Open(t.Context(), apply.Options{IPTables: "nft", ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := d.Read(t.Context(), ir.Programs{}); err != nil {
				t.Fatal(err)
			}
			for op := range d.Plan(want).Operations {
				done = append(done, op.Object)
			}
			return done
		}
		if done := look(); len(done) == 0 {
			t.Error("nothing to do where nothing is")
		}
		w.apply(want)
		if done := look(); len(done) > 0 {
			t.Errorf("beside the process: %q", done)
		}
		w.d.proxy.CloseListener(w.d.proxy.Keys()[0])
		if done := look(); len(done) != 1 || !strings.HasPrefix(done[0], "listener ") {
			t.Errorf("without its listener: %q", done)
		}
	})
}

// A Service that exceeds the limit of listener sockets is rejected by name, and releases its
// sockets. Others are served.
func TestListenerLimit(t *testing.T) {
	inNamespace(t, func(w *world) {
		big := service("big", "10.96.0.20", 0, "10.244.1.20:8080")
		for n := range uint16(5) {
			f := big.Frontends[0]
			f.Port.Port = fmt.Sprint("p", n)
			f.Match.Port += n + 1
			big.Frontends = append(big.Frontends, f)
			pool := big.Pools[0]
			pool.Port = f.Port
			big.Frontends[n+1].Routes = []ir.Route{{From: ir.Any, SNAT: true, Pool: len(big.Pools)}}
			big.Pools = append(big.Pools, pool)
		}
		want := programs(ir.Userspace{}, service("a", "10.96.0.9", 30079, "10.244.1.9:8080"), big, service("web", "10.96.0.10", 0, "10.244.1.10:8080"))
		w.d.proxy.sockets.limit = 4
		_, r := w.apply(want)
		if len(r.Refused) != 1 || r.Refused[0].Service.Name != "big" || !strings.Contains(r.Refused[0].Reason.Error(), "its listener: the process has reached its limit of 4 listener sockets") {
			t.Errorf("refused: %v", r.Refused)
		}
		w.apply(apply.Without(want, r.Refused))
		if diff := cmp.Diff([]string{w.leads("a", 30079), w.leads("a", 80), w.leads("web", 80)}, w.nat()); diff != "" {
			t.Errorf("rules (-want +got):\n%s", diff)
		}
		// With the held node port these are three sockets: one more is available.
		rest := programs(ir.Userspace{}, service("a", "10.96.0.9", 30079, "10.244.1.9:8080"), service("web", "10.96.0.10", 0, "10.244.1.10:8080"),
			service("x", "10.96.0.11", 0, "10.244.1.11:8080"), service("y", "10.96.0.12", 0, "10.244.1.12:8080"))
		if _, r := w.apply(programs(ir.Userspace{}, rest.IPv4.Services[:3]...)); len(r.Refused) > 0 {
			t.Errorf("refused: %v", r.Refused)
		}
		if _, r := w.apply(rest); len(r.Refused) != 1 || r.Refused[0].Service.Name != "y" {
			t.Errorf("refused: %v, want y", r.Refused)
		}
		// Sockets are released when no rule redirects to them any more.
		w.apply(programs(ir.Userspace{}, rest.IPv4.Services[1:3]...))
		if _, r := w.apply(programs(ir.Userspace{}, rest.IPv4.Services[1:]...)); len(r.Refused) > 0 {
			t.Errorf("refused: %v", r.Refused)
		}
	})
}
