package winuserspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
)

func at(list ...string) []string { return list }

// Addresses of Services are added before their listeners, and removed after their last Service.
// Ports of an address are added and removed independently.
func TestAddressesFollow(t *testing.T) {
	w := newWorld(t)
	w.host.tentative = 3
	a := backend(t, "a")
	dns := service("dns", ir.UDP, at("127.96.0.10:20053"), a)
	web := service("web", ir.TCP, at("127.96.0.10:20080", "127.96.0.11:20080"), a)
	done, r := w.apply(dns, web)
	if err := r.Error(); err != nil {
		t.Fatal(err)
	}
	want := []string{"add address 127.96.0.10", "add address 127.96.0.11",
		"add listener 127.96.0.10:20053/udp", "add listener 127.96.0.10:20080/tcp", "add listener 127.96.0.11:20080/tcp"}
	if diff := cmp.Diff(want, done); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	for _, one := range []struct {
		protocol ir.Protocol
		at       string
	}{{ir.UDP, "127.96.0.10:20053"}, {ir.TCP, "127.96.0.10:20080"}, {ir.TCP, "127.96.0.11:20080"}} {
		if got := ask(t, one.protocol, one.at); got != "a" {
			t.Errorf("%s/%s: %s", one.at, one.protocol, got)
		}
	}
	if done, _ := w.apply(dns, web); len(done) != 0 {
		t.Errorf("all is as it should be, and is to be changed: %q", done)
	}

	done = w.change("web", nil)
	want = []string{"remove listener 127.96.0.10:20080/tcp", "remove listener 127.96.0.11:20080/tcp", "remove address 127.96.0.11"}
	if diff := cmp.Diff(want, done); diff != "" {
		t.Errorf("a Service goes (-want +got):\n%s", diff)
	}
	if got := ask(t, ir.UDP, "127.96.0.10:20053"); got != "a" {
		t.Errorf("the address went with another Service of it: %s", got)
	}
	if diff := cmp.Diff(at("127.96.0.10"), w.host.has()); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	w.change("dns", nil)
	if got := w.host.has(); len(got) != 0 {
		t.Errorf("addresses stay: %q", got)
	}
	if _, err := os.Stat(w.file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the note stays: %v", err)
	}
}

// The calls for a change do not depend on other Services.
func TestChangeCostsItself(t *testing.T) {
	w := newWorld(t)
	a, b := backend(t, "a"), backend(t, "b")
	var all []ir.Service
	for i := range 50 {
		all = append(all, service(fmt.Sprintf("s%02d", i), ir.TCP, at(fmt.Sprintf("127.96.1.%d:20080", i+1)), a))
	}
	w.apply(all...)
	w.host.took()
	s := service("s07", ir.TCP, at("127.96.1.8:20080"), b)
	if diff := cmp.Diff([]string{"change listener 127.96.1.8:20080/tcp"}, w.change("s07", &s)); diff != "" {
		t.Errorf("backends change (-want +got):\n%s", diff)
	}
	if calls := w.host.took(); len(calls) != 0 {
		t.Errorf("backends changed, and so do addresses: %q", calls)
	}
	if got := ask(t, ir.TCP, "127.96.1.8:20080"); got != "b" {
		t.Errorf("served by %s", got)
	}
	moved := service("s07", ir.TCP, at("127.96.1.99:20080"), b)
	w.change("s07", &moved)
	if diff := cmp.Diff([]string{"add 127.96.1.99", "remove 127.96.1.8"}, w.host.took()); diff != "" {
		t.Errorf("an address changes (-want +got):\n%s", diff)
	}
}

// An existing address of the node is used, and never removed.
func TestOthersAddressesStay(t *testing.T) {
	w := newWorld(t, "127.96.0.20")
	byHand := netip.MustParseAddr("127.96.0.21")
	w.host.addrs[byHand] = Address{Addr: byHand, Service: true, FullPrefix: true}
	s := service("web", ir.TCP, at("127.96.0.20:20080", "127.96.0.21:20080", "127.96.0.22:20080"), backend(t, "a"))
	w.apply(s)
	for _, a := range s.Frontends {
		if got := ask(t, ir.TCP, netip.AddrPortFrom(a.Match.Addr, 20080).String()); got != "a" {
			t.Errorf("%s: %s", a.Match.Addr, got)
		}
	}
	w.change("web", nil)
	if diff := cmp.Diff([]string{"add 127.96.0.22", "remove 127.96.0.22"}, w.host.took()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Addresses outlive their process. The next one adopts them, and removes those that are not
// required.
func TestNextProcess(t *testing.T) {
	w := newWorld(t)
	a := backend(t, "a")
	web, old := service("web", ir.TCP, at("127.96.0.10:20080"), a), service("old", ir.TCP, at("127.96.0.12:20080"), a)
	w.apply(web, old)
	end(w.d)
	if got := ask(t, ir.TCP, "127.96.0.10:20080"); got != "refused" {
		t.Errorf("after the end: %s", got)
	}
	w.host.took()
	w.open()
	done, _ := w.apply(web)
	want := []string{"add listener 127.96.0.10:20080/tcp", "remove address 127.96.0.12"}
	if diff := cmp.Diff(want, done); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"remove 127.96.0.12"}, w.host.took()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := ask(t, ir.TCP, "127.96.0.10:20080"); got != "a" {
		t.Errorf("served by %s", got)
	}
}

// A process that is killed between recording and adding an address, or after adding it, leaves
// nothing unrecorded.
func TestKilledAnywhere(t *testing.T) {
	web := func(t *testing.T) ir.Service {
		return service("web", ir.TCP, at("127.96.0.10:20080", "127.96.0.11:20080"), backend(t, "a"))
	}
	for n := range 2 {
		t.Run(fmt.Sprintf("at address %d", n+1), func(t *testing.T) {
			w := newWorld(t)
			left := n + 1
			killed := killedHost{w.host, &left}
			d := New(killed, Options{AddressFile: w.file, Tick: soon})
			if err := d.Read(t.Context(), ir.Programs{}); err != nil {
				t.Fatal(err)
			}
			func() {
				defer func() { recover() }()
				d.Commit(t.Context(), d.Plan(programs(web(t))))
			}()
			end(d)
			found, err := Leftovers(w.host, w.file)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range found {
				if err := l.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.host.has(); len(got) != 0 {
				t.Errorf("left after cleanup: %q", got)
			}
		})
	}
}

// killedHost ends the process in its n-th call of Add.
type killedHost struct {
	*fakeHost
	n *int
}

func (h killedHost) Add(a netip.Addr) error {
	err := h.fakeHost.Add(a)
	if *h.n--; *h.n == 0 {
		panic("killed")
	}
	return err
}

// Cleanup removes added addresses, and makes no calls without any.
func TestLeftovers(t *testing.T) {
	w := newWorld(t)
	w.host.down = errors.New("not to be asked")
	if left, err := Leftovers(w.host, w.file); err != nil || len(left) != 0 {
		t.Errorf("nothing was added: %v, %v", left, err)
	}
	w.host.down = nil
	foreign := netip.MustParseAddr("127.96.0.30")
	w.host.addrs[foreign] = Address{Addr: foreign, Service: true}
	w.apply(service("web", ir.TCP, at("127.96.0.10:20080", "127.96.0.30:20080"), backend(t, "a")))
	end(w.d)
	left, err := Leftovers(w.host, w.file)
	if err != nil || len(left) != 1 || left[0].Object != "1 addresses of Services on the service interface" {
		t.Fatalf("%v, %v", left, err)
	}
	if err := left[0].Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(at("127.96.0.30"), w.host.has()); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if left, err := Leftovers(w.host, w.file); err != nil || len(left) != 0 {
		t.Errorf("twice: %v, %v", left, err)
	}
}

// Without a service interface no address is added, and listeners without an address are served.
func TestNoInterface(t *testing.T) {
	w := newWorld(t, "127.96.0.20")
	w.host.missing = true
	known := service("known", ir.TCP, at("127.96.0.20:20080"), backend(t, "a"))
	if _, r := w.apply(known); r.Error() != nil {
		t.Errorf("nothing is to be added: %v", r.Error())
	}
	if err := w.d.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	_, err := w.d.Commit(t.Context(), w.d.Plan(programs(known, service("web", ir.TCP, at("127.96.0.10:20080")))))
	if err == nil || !strings.Contains(err.Error(), `interface "vEthernet (HNS Internal NIC)"`) || !strings.Contains(err.Error(), "set INTERFACE_TO_ADD_SERVICE_IP to one of Ethernet") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(w.file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an address that never came is noted: %v", err)
	}
	if got := ask(t, ir.TCP, "127.96.0.20:20080"); got != "a" {
		t.Errorf("what needs no address: %s", got)
	}
}

// A Service whose address or port is not available is rejected by name, and the others are served.
func TestRefusals(t *testing.T) {
	busy, err := net.Listen("tcp4", "127.96.0.40:20080")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	w := newWorld(t, "127.96.0.40")
	a := backend(t, "a")
	w.host.refuses[netip.MustParseAddr("127.96.0.41")] = errors.New("access is denied")
	w.host.duplicate = netip.MustParseAddr("127.96.0.42")
	all := []ir.Service{
		service("denied", ir.TCP, at("127.96.0.41:20080"), a),
		service("doubled", ir.TCP, at("127.96.0.42:20080"), a),
		service("good", ir.TCP, at("127.96.0.43:20080"), a),
		service("taken", ir.TCP, at("127.96.0.40:20080"), a),
	}
	_, r := w.apply(all...)
	var got []string
	for _, one := range r.Refused {
		got = append(got, one.Service.Name)
	}
	if diff := cmp.Diff(at("denied", "doubled", "taken"), got); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	for i, why := range at("address 127.96.0.41: access is denied", "address 127.96.0.42: another machine", "listener 127.96.0.40:20080/tcp: ") {
		if text := r.Refused[i].Reason.Error(); !strings.HasPrefix(text, why) {
			t.Errorf("%q does not begin with %q", text, why)
		}
	}
	if _, r := w.apply(all[2]); r.Error() != nil {
		t.Fatal(r.Error())
	}
	if got := ask(t, ir.TCP, "127.96.0.43:20080"); got != "a" {
		t.Errorf("the others: %s", got)
	}
	if diff := cmp.Diff(at("127.96.0.43"), w.host.has()); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

// A Service whose address never becomes ready is rejected.
func TestNeverReady(t *testing.T) {
	w := newWorld(t)
	w.d.o.Tick = func(d time.Duration) <-chan time.Time {
		if d < readyTimeout {
			return nil
		}
		return atOnce(d)
	}
	w.host.tentative = 1 << 30
	_, r := w.apply(service("web", ir.TCP, at("127.96.0.10:20080"), backend(t, "a")))
	if err := r.Error(); err == nil || !strings.Contains(err.Error(), "address 127.96.0.10: not usable 15s after it was added") {
		t.Errorf("error %v", err)
	}
}

// An address that another program removes is restored, and its listeners are reopened.
func TestDrift(t *testing.T) {
	w := newWorld(t)
	w.apply(service("web", ir.TCP, at("127.96.0.10:20080"), backend(t, "a")))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ticks := make(chan time.Time)
	w.d.o.Tick = func(time.Duration) <-chan time.Time { return ticks }
	drift, err := w.d.Drift(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ticks <- time.Time{}
	ticks <- time.Time{} // the previous check has ended
	select {
	case <-drift:
		t.Error("nothing was changed")
	default:
	}
	w.host.mu.Lock()
	delete(w.host.addrs, netip.MustParseAddr("127.96.0.10"))
	w.host.mu.Unlock()
	ticks <- time.Time{}
	<-drift
	cancel()
	_ = w.d.poll.Close()
	w.d.o.Tick = soon
	p, err := applytest.Compare(t.Context(), w.d)
	if err != nil {
		t.Fatal(err)
	}
	done, r := w.commit(p)
	if err := r.Error(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(at("add address 127.96.0.10", "change listener 127.96.0.10:20080/tcp"), done); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	if got := ask(t, ir.TCP, "127.96.0.10:20080"); got != "a" {
		t.Errorf("served by %s", got)
	}
}

// After an error the known state is discarded.
func TestReadAfterError(t *testing.T) {
	w := newWorld(t)
	if _, err := w.d.Commit(t.Context(), w.d.Plan(programs())); !errors.Is(err, errUnread) {
		t.Errorf("before anything was read: %v", err)
	}
	web := service("web", ir.TCP, at("127.96.0.10:20080"), backend(t, "a"))
	w.apply(web)
	w.host.down = errors.New("away")
	next := service("next", ir.TCP, at("127.96.0.11:20080"), backend(t, "b"))
	if _, err := w.d.Commit(t.Context(), w.d.PlanChanges(w.d.Applied().From(ir.Changes{IPv4: []ir.Change{{Name: next.Name, New: &next}}}))); err == nil {
		t.Fatal("a host that is away takes everything")
	}
	p := w.d.PlanChanges(w.d.Applied().From(ir.Changes{IPv4: []ir.Change{{Name: next.Name, New: &next}}}))
	if _, err := w.d.Commit(t.Context(), p); !errors.Is(err, errUnread) {
		t.Errorf("not read since: %v", err)
	}
	w.host.down = nil
	if _, r := w.apply(next, web); r.Error() != nil {
		t.Fatal(r.Error())
	}
	if got := ask(t, ir.TCP, "127.96.0.11:20080"); got != "b" {
		t.Errorf("served by %s", got)
	}
}

// An invalid file is reported, and no address is removed.
func TestBrokenNote(t *testing.T) {
	w := newWorld(t)
	w.apply(service("web", ir.TCP, at("127.96.0.10:20080"), backend(t, "a")))
	if err := os.WriteFile(w.file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.d.Read(t.Context(), ir.Programs{}); err == nil || !strings.Contains(err.Error(), w.file) {
		t.Errorf("error %v", err)
	}
}

// A read-only Dataplane changes nothing, and recognizes the daemon's listeners.
func TestLook(t *testing.T) {
	w := newWorld(t)
	web := service("web", ir.TCP, at("127.96.0.10:20080"), backend(t, "a"))
	look := New(w.host, Options{AddressFile: w.file, ReadOnly: true})
	see := func() (list []string) {
		if err := look.Read(t.Context(), ir.Programs{}); err != nil {
			t.Fatal(err)
		}
		for op := range look.Plan(programs(web)).Operations {
			list = append(list, op.Verb.String()+" "+op.Object)
		}
		return list
	}
	if diff := cmp.Diff(at("add address 127.96.0.10", "add listener 127.96.0.10:20080/tcp"), see()); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	w.apply(web)
	if got := see(); len(got) != 0 {
		t.Errorf("beside the daemon: %q", got)
	}
	look.Close()
	if got := ask(t, ir.TCP, "127.96.0.10:20080"); got != "a" {
		t.Errorf("served by %s", got)
	}
}
