package applytest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/apply/ipvs"
	"github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// BenchmarkPacket sends a UDP query from a new source port through a node with 10,000 Services of
// five backends, and waits for the reply. It alternates between the first and the last Service.
// Every other query goes directly to a backend through a node without rules, as a lower bound.
// ns/op is the median of the queries to the Service; x-no-rules is its ratio to the median of the
// others.
func BenchmarkPacket(b *testing.B) {
	RequireRoot(b)
	p := manyServices(10_000)
	ends := [...]ir.Service{p.Services[0], p.Services[len(p.Services)-1]}
	for _, plane := range planes {
		b.Run(plane.String(), func(b *testing.B) {
			direct, through := newBenchPath(b), newBenchPath(b)
			plane.load(b, through.node, p)
			for i, name := range []string{"first", "last"} {
				b.Run(name, func(b *testing.B) {
					m := ends[i].Frontends[0].Match
					var limit, took []time.Duration
					for b.Loop() {
						limit = append(limit, direct.query(b, liveBackends()[0]))
						took = append(took, through.query(b, netip.AddrPortFrom(m.Addr, m.Port)))
					}
					b.ReportMetric(median(took), "ns/op")
					b.ReportMetric(median(took)/median(limit), "x-no-rules")
				})
			}
		})
	}
}

// median returns the median in nanoseconds.
func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds())
}

// liveBackends returns the backends that reply. The first and the last of manyServices have them.
func liveBackends() (all []netip.AddrPort) {
	for i := range byte(5) {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, 10 + i}), 8080))
	}
	return all
}

// manyServices returns Services with a ClusterIP and five backends each. Their names sort by
// number.
func manyServices(n int) *ir.Program {
	p := &ir.Program{Family: ir.IPv4, Node: nftest.Node(ir.IPv4)}
	for i := range n {
		s := ir.Service{Name: ir.Name{Namespace: "default", Name: fmt.Sprintf("s%05d", i)}}
		port := ir.ServicePort{Service: s.Name, Protocol: ir.UDP}
		pool := ir.Pool{Port: port}
		for j := range byte(5) {
			addr := netip.AddrFrom4([4]byte{10, 128 + j, byte(i >> 8), byte(i)})
			pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(addr, 8080)})
		}
		if i == 0 || i == n-1 {
			for j, live := range liveBackends() {
				pool.Backends[j].AddrPort = live
			}
		}
		vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		s.Pools = []ir.Pool{pool}
		s.Frontends = []ir.Frontend{{Match: ir.Match{Addr: vip, Protocol: ir.UDP, Port: 53}, Port: port,
			Routes: []ir.Route{{From: ir.Pods}, {From: ir.Any, SNAT: true}}}}
		p.Services = append(p.Services, s)
	}
	return p
}

// load applies the rules of an IPv4 Program to an empty node.
func (pl plane) load(b *testing.B, node *Namespace, p *ir.Program) {
	b.Setenv("XTABLES_LOCKFILE", filepath.Join(b.TempDir(), "lock"))
	six := &ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)}
	err := node.Do(func() error {
		four := *p
		four.Node.Mode, six.Node.Mode = ir.Mode(pl.mode), ir.Mode(pl.mode)
		programs := ir.NewPrograms(&four, six)
		d, err := apply.Dataplane(nil), error(nil)
		switch pl.mode {
		case "nftables":
			d, err = nftables.Open(b.Context(), apply.Options{})
		case "ipvs":
			d, err = ipvs.Open(b.Context(), apply.Options{IPTables: "nft"})
		default:
			d, err = iptables.Open(b.Context(), apply.Options{IPTables: pl.variant})
		}
		if err != nil {
			return err
		}
		defer d.Close()
		_, _, err = apply.Once(b.Context(), d, programs, func(apply.Plan) bool { return true })
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

// A benchPath is a path from a pod through a node to a host with the live backends.
type benchPath struct {
	client, node *Namespace
	queries      int
}

func newBenchPath(b *testing.B) *benchPath {
	b.Helper()
	made := map[string]*Namespace{}
	for _, name := range []string{"client", "node", "host"} {
		ns, err := NewNamespace(name)
		check(b, err)
		b.Cleanup(func() { ns.Close() })
		made[name] = ns
	}
	client, node, host := made["client"], made["node"], made["host"]
	all := netip.MustParsePrefix("0.0.0.0/0")
	toPod := netip.MustParsePrefix("10.244.1.1/24")
	toHost := netip.MustParsePrefix("10.244.2.1/24")
	check(b, node.Connect("pod", client, "eth0"))
	check(b, node.Connect("eth0", host, "eth0"))
	check(b, node.AddAddr("pod", toPod, false))
	check(b, node.AddAddr("eth0", toHost, false))
	for _, s := range sources() {
		check(b, client.AddAddr("eth0", netip.PrefixFrom(s, 24), false))
	}
	check(b, client.AddRoute(all, "eth0", toPod.Addr()))
	check(b, node.Sysctl("ipv4/ip_forward=1"))
	for _, backend := range liveBackends() {
		check(b, host.AddAddr("eth0", netip.PrefixFrom(backend.Addr(), 24), false))
		check(b, host.Do(func() error { return answerUDP(b, backend) }))
	}
	check(b, host.AddRoute(all, "eth0", toHost.Addr()))
	return &benchPath{client: client, node: node}
}

// answerUDP echoes datagrams until the benchmark ends.
func answerUDP(b *testing.B, at netip.AddrPort) error {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	b.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	return nil
}

// sources returns source addresses with enough ports for about 250,000 flows.
func sources() (all []netip.Addr) {
	for i := range byte(4) {
		all = append(all, netip.AddrFrom4([4]byte{10, 244, 1, 2 + i}))
	}
	return all
}

// query sends a query from an unused source, so that it is a new flow for the node, and returns the
// time until the reply.
func (w *benchPath) query(b *testing.B, to netip.AddrPort) (took time.Duration) {
	const lowest, ports = 1024, 1<<16 - 1024
	addrs := sources()
	from := netip.AddrPortFrom(addrs[w.queries/ports%len(addrs)], uint16(lowest+w.queries%ports))
	w.queries++
	check(b, w.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		timeout := unix.NsecToTimeval(ReplyTimeout.Nanoseconds())
		err = errors.Join(
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			unix.Bind(fd, inet4(from)),
			unix.Connect(fd, inet4(to)))
		if err != nil {
			return err
		}
		start := time.Now()
		err = exchange(fd)
		took = time.Since(start)
		return wrap(err, "question from %s to %s", from, to)
	}))
	return took
}

// exchange sends a datagram and receives one.
func exchange(fd int) error {
	buf := []byte("?")
	if _, err := unix.Write(fd, buf); err != nil {
		return err
	}
	for {
		if _, err := unix.Read(fd, buf); err != unix.EINTR {
			return err
		}
	}
}

func inet4(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
