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

// RequireRoot skips the test if the process may not create network namespaces. If the environment
// variable PROXYC_REQUIRE contains "netns" or "all", the test fails instead, so that CI cannot skip
// it silently.
func RequireRoot(t testing.TB) {
	t.Helper()
	if err := HaveRoot(t); err != nil {
		t.Skipf("needs root: %v", err)
	}
}

// RequireNamespace returns a network namespace that is removed after the test. Without root it acts
// like [RequireRoot].
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

// InNamespace runs f in a new network namespace that is removed afterwards. Without root it acts
// like [RequireRoot]. A subtest that f starts with t.Run is outside, since it has its own
// goroutine.
func InNamespace(t testing.TB, f func()) {
	t.Helper()
	ns := requireNamespace(t)
	defer ns.Close()
	if err := ns.Do(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// HaveRoot returns why the process may not create network namespaces, for a test that only
// partially requires one. It fails the test if RequireRoot would.
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

// HaveIPVS reports whether the kernel currently supports mode ipvs; no test loads modules. If
// PROXYC_REQUIRE contains "ipvs", the test fails without support.
func HaveIPVS(t testing.TB) bool {
	t.Helper()
	err := haveIPVS()
	if err != nil && slices.Contains(strings.Split(os.Getenv("PROXYC_REQUIRE"), ","), "ipvs") {
		t.Fatalf("PROXYC_REQUIRE names ipvs: %v", err)
	}
	return err == nil
}

// RequireFlowtable skips the test if the kernel has no flowtables. If PROXYC_REQUIRE contains
// "flowtable", the test fails instead.
func RequireFlowtable(t testing.TB, ns *Namespace) {
	t.Helper()
	const script = `add table inet try; add flowtable inet try f { hook ingress priority 0; }; add chain inet try c { type filter hook forward priority 0; }
add rule inet try c flow add @f; delete table inet try`
	cmd := ns.Command(t.Context(), "nft", "-f", "/dev/stdin")
	cmd.Stdin = strings.NewReader(script)
	if _, err := ns.Run(cmd); err != nil {
		if slices.Contains(strings.Split(os.Getenv("PROXYC_REQUIRE"), ","), "flowtable") {
			t.Fatalf("PROXYC_REQUIRE names flowtable: %v", err)
		}
		t.Skipf("no flowtables: %v", err)
	}
}

func haveIPVS() error {
	_, err := os.Stat("/proc/net/ip_vs")
	return err
}

// A Namespace is a network namespace that exists while this process keeps it open. Its name is only
// for messages; the kernel does not have it.
type Namespace struct {
	Name string

	fd netns.NsHandle
	nl *netlink.Handle

	sctpPorts atomic.Uint32 // last used source port, minus 32768
}

// NewNamespace creates a namespace with its loopback interface up. It requires CAP_SYS_ADMIN.
func NewNamespace(name string) (*Namespace, error) {
	ns := &Namespace{Name: name}
	// Consecutive processes rarely use the same ports: for some seconds conntrack sends an INIT from a
	// used port to its previous target.
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

// Close closes the namespace. The kernel removes it with its content when its sockets are closed
// and its processes have exited.
func (ns *Namespace) Close() error {
	ns.nl.Close()
	return ns.fd.Close()
}

// Netlink returns a route netlink handle for the namespace, for use by any goroutine.
func (ns *Namespace) Netlink() *netlink.Handle { return ns.nl }

// Fd returns the open file of the namespace, for libraries that enter it themselves.
func (ns *Namespace) Fd() int { return int(ns.fd) }

// Do runs f on a thread inside the namespace. Sockets that f opens belong to it; goroutines that f
// starts do not.
func (ns *Namespace) Do(f func() error) error {
	return onOwnThread(func() error {
		if err := netns.Set(ns.fd); err != nil {
			return fmt.Errorf("enter namespace %s: %w", ns.Name, err)
		}
		return f()
	})
}

// onOwnThread runs f on a locked thread, and then returns the thread to its namespace. If that
// fails, the thread stays locked, and exits with its goroutine.
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

// Command returns a command that runs inside the namespace when passed to [Namespace.Run] or
// [Namespace.Start].
func (ns *Namespace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Run runs the command inside the namespace and returns its standard output. The error of a failed
// command contains all of its output.
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

// Start starts the command inside the namespace. wait returns its result, and may be called
// repeatedly. The command is killed when this process ends. Its parent thread is kept while it
// runs, since the kernel sends the parent death signal when that thread, not the process, exits.
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

// Sysctl writes settings under /proc/sys/net of the namespace, in the form "ipv4/ip_forward=1".
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

// Connect creates a veth pair: interface link in ns, interface peerLink in peer, both up.
func (ns *Namespace) Connect(link string, peer *Namespace, peerLink string) error {
	err := ns.nl.LinkAdd(&netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: link},
		PeerName:      peerLink,
		PeerNamespace: netlink.NsFd(peer.Fd()),
	})
	return errors.Join(wrap(err, "veth %s/%s - %s/%s", ns.Name, link, peer.Name, peerLink), ns.up(link), peer.up(peerLink))
}

// AddBridge creates a bridge that is up.
func (ns *Namespace) AddBridge(name string) error {
	snooping := false // no host here replies to multicast queries, and neighbor discovery must not wait for them
	err := ns.nl.LinkAdd(&netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name},
		MulticastSnooping: &snooping,
	})
	return errors.Join(wrap(err, "bridge %s/%s", ns.Name, name), ns.up(name))
}

// AddPort adds an interface to a bridge, with hairpin mode: a frame may leave through its incoming
// port.
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

// AddAddr adds an address to an interface, without duplicate address detection. The kernel never
// selects an extra address as a source (IPv6: it is deprecated).
func (ns *Namespace) AddAddr(link string, p netip.Prefix, extra bool) error {
	l, err := ns.nl.LinkByName(link)
	if err != nil {
		return wrap(err, "address %s on %s/%s", p, ns.Name, link)
	}
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = syscall.IFA_F_NODAD
		if extra {
			addr.ValidLft = 1<<32 - 1 // infinite; the preferred lifetime stays 0
		}
	}
	return wrap(ns.nl.AddrAdd(l, addr), "address %s on %s/%s", p, ns.Name, link)
}

// AddRoute adds a route to a prefix through an interface, with an optional gateway.
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
