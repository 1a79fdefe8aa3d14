package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
)

func TestInterfacesInNamespace(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	for _, args := range []string{
		"link add eth0 type bridge", "addr add 192.0.2.11/24 dev eth0", "addr add 192.0.2.12/24 dev eth0", "addr add 2001:db8::11/64 dev eth0 nodad",
		"link add tun0 type bridge", "addr add 198.51.100.1 peer 198.51.100.2/32 dev tun0",
		"link add kube-ipvs0 type bridge", "addr add 10.96.0.1/32 dev kube-ipvs0",
	} {
		if out, err := ns.Run(ns.Command(context.Background(), "ip", strings.Fields(args)...)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	var got []compiler.Interface
	if err := ns.Do(func() (err error) {
		got, err = Interfaces()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []compiler.Interface{
		{Name: "eth0", Addrs: prefixes("192.0.2.11/24", "192.0.2.12/24", "2001:db8::11/64")},
		{Name: "lo", Addrs: prefixes("127.0.0.1/8", "::1/128")},
		{Name: "tun0", Addrs: prefixes("198.51.100.1/32")},
	}
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// An address of the Node that no interface has, as behind NAT, matters only to node ports at that address, and rp_filter
// only where packets may arrive.
func TestDiscardsNothing(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	setup := `set -e; ip link set lo up; ip link add eth0 type veth peer peer0; ip link set peer0 up; ip addr add 192.0.2.11/24 dev eth0; ip link set eth0 up
		ip route add default via 192.0.2.1; sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=1
		ip link add down0 type veth peer peer1; ip addr add 172.30.0.1/24 dev down0`
	if out, err := ns.Run(ns.Command(t.Context(), "sh", "-c", setup)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	addr := netip.MustParseAddr
	p := &ir.Program{Family: ir.IPv4, Services: []ir.Service{{Pools: []ir.Pool{{Backends: []ir.Backend{{AddrPort: netip.MustParseAddrPort("192.0.2.20:80"), Local: true}}}}}}}
	p.Node.IP, p.Node.Addrs = addr("203.0.113.5"), []netip.Addr{addr("192.0.2.11")}
	for _, tt := range []struct {
		ports ir.NodePortAddrs
		want  int
	}{
		{ir.NodePortAddrs{All: true}, 0},
		{ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Assigned: true}}}, 0},
		{ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: netip.PrefixFrom(p.Node.IP, 32)}}}, 1},
	} {
		p.Node.NodePorts = tt.ports
		var found []string
		if err := ns.Do(func() (err error) {
			found, err = Discards(t.Context(), p, nil)
			return err
		}); err != nil || len(found) != tt.want {
			t.Errorf("%+v: %v, %q", tt.ports, err, found)
		}
	}
}

// Addresses that remain are returned while others are removed. The kernel interrupts such a dump,
// which then lacks addresses that existed all the time.
func TestInterfacesWhileAddressesGo(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	ip := func(script string) error {
		cmd := ns.Command(context.WithoutCancel(t.Context()), "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(script)
		out, err := ns.Run(cmd)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}
	const going, staying = 1500, 2000
	var add, remove strings.Builder
	add.WriteString("link add eth0 type bridge\n")
	for i := range going + staying {
		fmt.Fprintf(&add, "addr add 10.%d.%d.%d/32 dev eth0\n", i>>16, i>>8&255, i&255)
		if i < going { // first in the kernel's list, so that the others move up
			fmt.Fprintf(&remove, "addr del 10.%d.%d.%d/32 dev eth0\n", i>>16, i>>8&255, i&255)
		}
	}
	if err := ip(add.String()); err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- ip(remove.String()) }()
	for more := true; more; {
		select {
		case err := <-removed:
			if err != nil {
				t.Fatal(err)
			}
			more = false
		default:
		}
		var got []compiler.Interface
		err := ns.Do(func() (err error) {
			got, err = Interfaces()
			return err
		})
		if errors.Is(err, socket.ErrInterrupted) {
			continue // the caller keeps its previous list
		} else if err != nil {
			t.Fatal(err)
		}
		stay := 0
		for _, p := range got[0].Addrs {
			if a := p.Addr().As4(); int(a[1])<<16+int(a[2])<<8+int(a[3]) >= going {
				stay++
			}
		}
		if stay != staying {
			t.Errorf("%d of %d addresses are read that stay", stay, staying)
		}
	}
}

// Each added or removed address is reported.
func TestWatch(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	ip := func(args string) {
		t.Helper()
		if out, err := ns.Run(ns.Command(t.Context(), "ip", strings.Fields(args)...)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	ip("link add eth0 type bridge")
	reported := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- ns.Do(func() error {
			return Watch(ctx, func(error) {
				select {
				case reported <- struct{}{}:
				default:
				}
			})
		})
	}()
	wait := func(what string) {
		t.Helper()
		select {
		case <-reported:
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s: not reported", what)
		}
	}
	wait("the start")
	for _, change := range []string{
		"addr add 192.0.2.11/24 dev eth0", "addr add 2001:db8::11/64 dev eth0 nodad",
		"addr del 192.0.2.11/24 dev eth0", "link del eth0",
	} {
		ip(change)
		wait(change)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
