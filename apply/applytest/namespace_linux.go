package applytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// RequireRoot skips the test where the process may not make network namespaces, unless the environment
// variable PROXYC_REQUIRE names "netns" (or "all"): then it fails, so that CI cannot skip it unseen.
func RequireRoot(t testing.TB) {
	t.Helper()
	if err := HaveRoot(t); err != nil {
		t.Skipf("needs root: %v", err)
	}
}

// RequireNamespace returns a network namespace that ends with the test. It takes a test without root as
// [RequireRoot] does.
func RequireNamespace(t testing.TB) *Namespace {
	t.Helper()
	ns := requireNamespace(t)
	t.Cleanup(func() { ns.Close() })
	return ns
}

func requireNamespace(t testing.TB) *Namespace {
	t.Helper()
	RequireRoot(t)
	ns, err := NewNamespace(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// InNamespace runs f in a network namespace of its own, which ends with it. It takes a test without root
// as [RequireRoot] does. A test that f starts with t.Run is outside: it has a goroutine of its own.
func InNamespace(t testing.TB, f func()) {
	t.Helper()
	ns := requireNamespace(t)
	defer ns.Close()
	if err := ns.Do(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// HaveRoot says why the process may not make network namespaces, for a test of which only a part needs
// one. It fails the test where RequireRoot would.
func HaveRoot(t testing.TB) error {
	t.Helper()
	ns, err := NewNamespace("probe")
	if err == nil {
		return ns.Close()
	}
	for name := range strings.SplitSeq(os.Getenv("PROXYC_REQUIRE"), ",") {
		if name == "netns" || name == "all" {
			t.Fatalf("PROXYC_REQUIRE names %s: %v", name, err)
		}
	}
	return err
}

// HaveIPVS reports whether the kernel has mode ipvs now: no test loads modules. Where PROXYC_REQUIRE names
// "ipvs", a kernel without fails the test.
func HaveIPVS(t testing.TB) bool {
	t.Helper()
	err := haveIPVS()
	if err != nil && slices.Contains(strings.Split(os.Getenv("PROXYC_REQUIRE"), ","), "ipvs") {
		t.Fatalf("PROXYC_REQUIRE names ipvs: %v", err)
	}
	return err == nil
}

func haveIPVS() error {
	_, err := os.Stat("/proc/net/ip_vs")
	return err
}

// A Namespace is a network namespace that exists as long as this process holds it. Its name is for
// messages only; the kernel does not know it.
type Namespace struct {
	Name string

	fd netns.NsHandle
	nl *netlink.Handle

	sctpPorts atomic.Uint32 // the last source port that was handed out, less 32768
}

// NewNamespace makes a namespace with its loopback interface up. It needs CAP_SYS_ADMIN.
func NewNamespace(name string) (*Namespace, error) {
	ns := &Namespace{Name: name}
	// Two processes, one after the other, seldom use the same ports: for some seconds conntrack
	// leads an INIT from a port that was used to where the last one went.
	ns.sctpPorts.Store(rand.Uint32N(28000))
	err := onOwnThread(func() (err error) {
		ns.fd, err = netns.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	if ns.nl, err = netlink.NewHandleAt(ns.fd); err != nil {
		ns.fd.Close()
		return nil, fmt.Errorf("namespace %s: netlink: %w", name, err)
	}
	lo, err := ns.nl.LinkByName("lo")
	if err == nil {
		err = ns.nl.LinkSetUp(lo)
	}
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("namespace %s: lo: %w", name, err)
	}
	return ns, nil
}

// Close lets go of the namespace. The kernel removes it, with all that is in it, once its sockets are
// closed and its processes gone.
func (ns *Namespace) Close() error {
	ns.nl.Close()
	return ns.fd.Close()
}

// Netlink is a route-netlink handle that works inside the namespace from any goroutine.
func (ns *Namespace) Netlink() *netlink.Handle { return ns.nl }

// Fd is the open file that holds the namespace, for libraries that want to enter it themselves.
func (ns *Namespace) Fd() int { return int(ns.fd) }

// Do runs f on a thread inside the namespace. Sockets that f opens stay there; goroutines that f starts
// do not.
func (ns *Namespace) Do(f func() error) error {
	return onOwnThread(func() error {
		if err := netns.Set(ns.fd); err != nil {
			return fmt.Errorf("enter namespace %s: %w", ns.Name, err)
		}
		return f()
	})
}

// onOwnThread runs f on a locked thread and brings the thread back to the namespace it came from. A
// thread that cannot go back stays locked, and dies with its goroutine instead of serving another.
func onOwnThread(f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		home.Close()
	}()
	return f()
}

// Command prepares a command that runs inside the namespace once it is given to [Namespace.Run] or
// [Namespace.Start].
func (ns *Namespace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Run runs the command inside the namespace and returns what it wrote to its standard output. The error
// of a command that failed carries all of its output.
func (ns *Namespace) Run(cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	wait, err := ns.Start(cmd)
	if err == nil {
		err = wait()
	}
	if err != nil {
		err = fmt.Errorf("%s in %s: %w\n%s%s", strings.Join(cmd.Args, " "), ns.Name, err, stderr.Bytes(), stdout.Bytes())
	}
	return stdout.Bytes(), err
}

// Start starts the command inside the namespace; wait returns how it ended, each time it is called.
// The command is killed when this process ends: its parent thread is kept for as long as it runs,
// because the kernel sends the parent death signal when that thread, not the process, dies.
func (ns *Namespace) Start(cmd *exec.Cmd) (wait func() error, err error) {
	started := make(chan error)
	done := make(chan struct{})
	var ended error
	go func() {
		defer close(done)
		err := ns.Do(func() error {
			err := cmd.Start()
			started <- err
			if err == nil {
				ended = cmd.Wait()
			}
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return func() error { <-done; return ended }, nil
}

// Sysctl writes settings under /proc/sys/net of the namespace, each given as "ipv4/ip_forward=1".
func (ns *Namespace) Sysctl(settings ...string) error {
	return ns.Do(func() error {
		for _, s := range settings {
			name, value, _ := strings.Cut(s, "=")
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil {
				return fmt.Errorf("sysctl in %s: %w", ns.Name, err)
			}
		}
		return nil
	})
}

// Connect lays a cable: interface link in ns, interface peerLink in peer, both up.
func (ns *Namespace) Connect(link string, peer *Namespace, peerLink string) error {
	err := ns.nl.LinkAdd(&netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: link},
		PeerName:      peerLink,
		PeerNamespace: netlink.NsFd(peer.Fd()),
	})
	return errors.Join(wrap(err, "veth %s/%s - %s/%s", ns.Name, link, peer.Name, peerLink), ns.up(link), peer.up(peerLink))
}

// AddBridge makes a bridge that is up.
func (ns *Namespace) AddBridge(name string) error {
	snooping := false // nobody here answers multicast queries, and neighbour discovery must not wait for them
	err := ns.nl.LinkAdd(&netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name},
		MulticastSnooping: &snooping,
	})
	return errors.Join(wrap(err, "bridge %s/%s", ns.Name, name), ns.up(name))
}

// AddPort makes an interface a port of a bridge, with hairpin on: a frame may leave where it came in.
func (ns *Namespace) AddPort(bridge, port string) error {
	master, err := ns.nl.LinkByName(bridge)
	if err != nil {
		return wrap(err, "bridge %s/%s", ns.Name, bridge)
	}
	link, err := ns.nl.LinkByName(port)
	if err != nil {
		return wrap(err, "port %s/%s", ns.Name, port)
	}
	if err := ns.nl.LinkSetMaster(link, master); err != nil {
		return wrap(err, "port %s/%s", ns.Name, port)
	}
	return wrap(ns.nl.LinkSetHairpin(link, true), "hairpin on %s/%s", ns.Name, port)
}

func (ns *Namespace) up(name string) error {
	link, err := ns.nl.LinkByName(name)
	if err == nil {
		err = ns.nl.LinkSetUp(link)
	}
	return wrap(err, "link %s/%s", ns.Name, name)
}

// AddAddr adds to an interface an address that is usable at once, without duplicate address detection.
// An extra address is never chosen as a source by the kernel (IPv6: it is deprecated).
func (ns *Namespace) AddAddr(link string, p netip.Prefix, extra bool) error {
	l, err := ns.nl.LinkByName(link)
	if err != nil {
		return wrap(err, "address %s on %s/%s", p, ns.Name, link)
	}
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = syscall.IFA_F_NODAD
		if extra {
			addr.ValidLft = 1<<32 - 1 // for ever; the preferred lifetime stays 0
		}
	}
	return wrap(ns.nl.AddrAdd(l, addr), "address %s on %s/%s", p, ns.Name, link)
}

// AddRoute routes a prefix through an interface, by way of a gateway where one is given.
func (ns *Namespace) AddRoute(dst netip.Prefix, link string, gateway netip.Addr) error {
	l, err := ns.nl.LinkByName(link)
	if err != nil {
		return wrap(err, "route %s via %s/%s", dst, ns.Name, link)
	}
	route := &netlink.Route{Dst: ipNet(dst), LinkIndex: l.Attrs().Index}
	if gateway.IsValid() {
		route.Gw = gateway.AsSlice()
	} else {
		route.Scope = netlink.SCOPE_LINK
	}
	return wrap(ns.nl.RouteAdd(route), "route %s via %s/%s", dst, ns.Name, link)
}
