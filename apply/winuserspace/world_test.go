package winuserspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// TestMain waits for other runs of these tests, as from another checkout, since they use the same
// addresses and ports.
func TestMain(m *testing.M) {
	unlock, err := lockedfile.MutexAt(filepath.Join(os.TempDir(), "proxyc-winuserspace.lock")).Lock()
	if err != nil {
		panic(err)
	}
	code := m.Run()
	unlock()
	os.Exit(code)
}

// fakeHost is a node in memory. Its addresses are loopback addresses, which any process can listen
// on.
type fakeHost struct {
	mu        sync.Mutex
	addrs     map[netip.Addr]Address
	tentative int // number of results in which a new address is not ready
	asked     int // number of such results so far
	calls     []string
	missing   bool                 // no service interface
	refuses   map[netip.Addr]error // errors of Add and Remove
	duplicate netip.Addr           // an address of another machine
	down      error                // error of all calls
}

func newFakeHost(own ...string) *fakeHost {
	h := &fakeHost{addrs: map[netip.Addr]Address{}, refuses: map[netip.Addr]error{}}
	for _, a := range own {
		addr := netip.MustParseAddr(a)
		h.addrs[addr] = Address{Addr: addr}
	}
	return h
}

func (h *fakeHost) Addresses() ([]Address, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down != nil {
		return nil, h.down
	}
	var all []Address
	for _, a := range h.addrs {
		if a.State == Tentative {
			if h.asked++; h.asked > h.tentative {
				a.State, h.asked = Ready, 0
				h.addrs[a.Addr] = a
			}
		}
		all = append(all, a)
	}
	return all, nil
}

func (h *fakeHost) Add(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "add "+a.String())
	_, twice := h.addrs[a]
	switch {
	case h.missing:
		return &NoInterface{Name: DefaultInterface, Have: []string{"Ethernet"}}
	case h.refuses[a] != nil:
		return h.refuses[a]
	case twice:
		return fmt.Errorf("%s is there", a)
	}
	state := Tentative
	if a == h.duplicate {
		state = Duplicate
	}
	h.addrs[a] = Address{Addr: a, Service: true, FullPrefix: true, State: state}
	return nil
}

func (h *fakeHost) Remove(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "remove "+a.String())
	if err := h.refuses[a]; err != nil {
		return err
	}
	delete(h.addrs, a)
	return nil
}

// has returns the addresses on the service interface.
func (h *fakeHost) has() (list []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.addrs {
		if a.Service {
			list = append(list, a.Addr.String())
		}
	}
	slices.Sort(list)
	return list
}

func (h *fakeHost) took() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	return calls
}

// world is a Dataplane of a fake node.
type world struct {
	*testing.T
	host *fakeHost
	file string
	d    *Dataplane
}

func newWorld(t *testing.T, own ...string) *world {
	w := &world{T: t, host: newFakeHost(own...), file: filepath.Join(t.TempDir(), "proxyc", "addresses.json")}
	w.open()
	return w
}

// atOnce fires immediately.
func atOnce(time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	c <- time.Time{}
	return c
}

// soon fires immediately for short durations, and never for long ones.
func soon(d time.Duration) <-chan time.Time {
	if d >= readyTimeout {
		return nil
	}
	return atOnce(d)
}

// open starts a process, after the previous one if it exists.
func (w *world) open() {
	d := New(w.host, Options{AddressFile: w.file, Tick: soon})
	w.d = d
	w.Cleanup(func() { end(d) })
}

// end ends a process.
func end(d *Dataplane) {
	d.Close()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	d.Drain(ended)
}

// service returns a Service with one port, at addresses and ports: "10.96.0.10:80", "node:30080".
func service(name string, protocol ir.Protocol, at []string, backends ...netip.AddrPort) ir.Service {
	id := ir.Name{Namespace: "default", Name: name}
	port := ir.ServicePort{Service: id, Port: "p", Protocol: protocol}
	pool := ir.Pool{Port: port, Policy: ir.Cluster}
	for _, b := range backends {
		pool.Backends = append(pool.Backends, ir.Backend{AddrPort: b})
	}
	s := ir.Service{Name: id, Origin: ir.Origin{Object: "Service " + id.String()}, Pools: []ir.Pool{pool}}
	for _, text := range at {
		f := ir.Frontend{Kind: ir.ClusterIP, Port: port, Match: ir.Match{Protocol: protocol}, Fallback: ir.Reject}
		var n uint16
		if _, err := fmt.Sscanf(text, "node:%d", &n); err == nil {
			f.Kind, f.Match.Port = ir.NodePort, n
		} else {
			a := netip.MustParseAddrPort(text)
			f.Match.Addr, f.Match.Port = a.Addr(), a.Port()
		}
		s.Frontends = append(s.Frontends, f)
	}
	return s
}

func programs(services ...ir.Service) ir.Programs {
	slices.SortFunc(services, func(a, b ir.Service) int { return a.Name.Compare(b.Name) })
	return ir.Programs{IPv4: &ir.Program{Family: ir.IPv4, Services: services,
		Node: ir.Node{NodePorts: ir.NodePortAddrs{All: true}, Userspace: &ir.Userspace{UDPIdleTimeout: time.Minute}}}}
}

// apply reads, plans and commits, and returns the operations.
func (w *world) apply(services ...ir.Service) (done []string, r apply.Result) {
	w.Helper()
	if err := w.d.Read(w.Context(), ir.Programs{}); err != nil {
		w.Fatal(err)
	}
	return w.commit(w.d.Plan(programs(services...)))
}

func (w *world) commit(p apply.Plan) (done []string, r apply.Result) {
	w.Helper()
	for op := range p.Operations {
		done = append(done, op.Verb.String()+" "+op.Object)
	}
	if p.Empty() != (len(done) == 0) {
		w.Errorf("Empty is %v with operations %q", p.Empty(), done)
	}
	r, err := w.d.Commit(w.Context(), p)
	if err != nil {
		w.Fatal(err)
	}
	return done, r
}

// change plans and commits the change of one Service.
func (w *world) change(name string, to *ir.Service) (done []string) {
	w.Helper()
	changes := ir.Changes{IPv4: []ir.Change{{Name: ir.Name{Namespace: "default", Name: name}, New: to}}}
	done, r := w.commit(w.d.PlanChanges(w.d.Applied().From(changes)))
	if err := r.Error(); err != nil {
		w.Fatal(err)
	}
	return done
}

// backend serves TCP connections and datagrams, and replies with its name.
func backend(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	u, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				io.WriteString(c, name+"\n")
				io.Copy(c, c)
			})
		}
	})
	all.Go(func() {
		buffer := make([]byte, 64)
		for {
			_, from, err := u.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			u.WriteToUDPAddrPort([]byte(name), from)
		}
	})
	t.Cleanup(func() {
		l.Close()
		u.Close()
		all.Wait()
	})
	return at
}

// ask returns the name of the backend for an address and port; "refused" if the port is closed.
func ask(t *testing.T, protocol ir.Protocol, at string) string {
	t.Helper()
	c, err := net.Dial(protocol.String()+"4", at)
	if err != nil {
		return "refused"
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	if protocol == ir.UDP {
		if _, err := c.Write([]byte("?")); err != nil {
			return "refused"
		}
		buffer := make([]byte, 64)
		n, err := c.Read(buffer)
		if err != nil {
			return "refused"
		}
		return string(buffer[:n])
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "refused"
	}
	return line[:len(line)-1]
}

// freePort returns a free port.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}
