package packets

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/proxyc/proxyc/apply/applytest"
)

// fastpathCluster is a Service with one pod.
const fastpathCluster = `apiVersion: v1
kind: Service
metadata: {name: a, namespace: ns}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [applytest.IPv4], ports: [{name: t, port: 80}, {name: s, port: 81}, {name: u, port: 80, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-1, namespace: ns, labels: {kubernetes.io/service-name: a}}
addressType: applytest.IPv4
endpoints: [{addresses: [10.244.1.2]}]
ports: [{port: 80, name: t}, {port: 81, name: s}, {port: 80, name: u, protocol: UDP}]
`

// BenchmarkFastpath compares connections in the fast path with others, between a client and a pod
// through a node under proxyc watch. It measures the total cost of an exchange, or of 64 KB of a
// stream, on all three. `make vm VM=-counted` has a clock that counts instructions.
func BenchmarkFastpath(b *testing.B) {
	applytest.RequireRoot(b)
	ns := map[string]*applytest.Namespace{}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, name := range []string{"client", "node", "pod"} {
		ns[name] = applytest.RequireNamespace(b)
	}
	node := ns["node"]
	must(node.Connect("eth0", ns["client"], "eth0"))
	must(node.Connect("veth0", ns["pod"], "eth0"))
	must(node.Sysctl("ipv4/ip_forward=1"))
	for _, a := range []struct{ ns, link, addr, gateway string }{
		{"client", "eth0", "192.0.2.200/24", "192.0.2.11"}, {"node", "eth0", "192.0.2.11/24", ""},
		{"pod", "eth0", "10.244.1.2/24", "10.244.1.1"}, {"node", "veth0", "10.244.1.1/24", ""},
	} {
		must(ns[a.ns].AddAddr(a.link, netip.MustParsePrefix(a.addr), false))
		if a.gateway != "" {
			must(ns[a.ns].AddRoute(netip.MustParsePrefix("0.0.0.0/0"), a.link, netip.MustParseAddr(a.gateway)))
		}
	}
	servePlainly(b, ns["pod"])
	m := newMachine(b, node)
	applytest.RequireFlowtable(b, m.Namespace)
	config, _ := takeoverFiles()
	file := m.file("snapshot.json", fastpathCluster)

	for _, way := range []string{"usual", "fast"} {
		var args []string
		if way == "fast" {
			args = []string{"--nftables-fastpath=eth0,veth*"}
		}
		d, err := applytest.ProxycWatch(m.binary, args...)(b.Context(), node, config, file, "nftables")
		must(err)
		if way == "fast" {
			m.untilFastpath([]string{"veth0"})
		}
		dial := func(b *testing.B, network, to string) net.Conn {
			conn, err := ns["client"].Dial(context.Background(), network, netip.AddrPort{}, netip.MustParseAddrPort(to))
			must(err)
			b.Cleanup(func() { conn.Close() })
			return conn
		}
		exchange := func(b *testing.B, network string) {
			conn, one := dial(b, network, "10.96.0.10:80"), make([]byte, 1)
			turn := func() {
				must(conn.SetDeadline(time.Now().Add(time.Minute)))
				_, err := conn.Write(one)
				must(err)
				_, err = conn.Read(one)
				must(err)
			}
			for range 40 {
				turn()
			}
			for b.Loop() {
				turn()
			}
		}
		stream := func(b *testing.B, segments int) {
			must(ns["client"].Do(func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkSetGSOMaxSegs(link, segments)
			}))
			conn, much := dial(b, "tcp", "10.96.0.10:81"), make([]byte, 1<<16)
			for range 40 {
				_, err := conn.Write(much)
				must(err)
			}
			b.SetBytes(int64(len(much)))
			for b.Loop() {
				_, err := conn.Write(much)
				must(err)
			}
		}
		b.Run("exchange-tcp/"+way, func(b *testing.B) { exchange(b, "tcp") })
		b.Run("exchange-udp/"+way, func(b *testing.B) { exchange(b, "udp") })
		b.Run("stream/"+way, func(b *testing.B) { stream(b, mostSegments) })
		b.Run("stream-of-single-segments/"+way, func(b *testing.B) { stream(b, 1) })
		must(d.Stop())
		must(func() error { _, err := m.Run(m.prepare(m.binary, "cleanup")); return err }())
	}
}

// mostSegments is the maximum number of segments that the kernel sends as one.
const mostSegments = 65535

// servePlainly echoes on port 80, and discards on port 81.
func servePlainly(b *testing.B, ns *applytest.Namespace) {
	b.Helper()
	err := ns.Do(func() error {
		for _, port := range []string{":80", ":81"} {
			l, err := net.Listen("tcp4", port)
			if err != nil {
				return err
			}
			b.Cleanup(func() { l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					to := io.Writer(conn)
					if port == ":81" {
						to = io.Discard
					}
					go func() {
						defer conn.Close()
						io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{conn}, make([]byte, 1<<16))
					}()
				}
			}()
		}
		udp, err := net.ListenPacket("udp4", ":80")
		if err != nil {
			return err
		}
		b.Cleanup(func() { udp.Close() })
		go func() {
			for buf := make([]byte, 2048); ; {
				n, from, err := udp.ReadFrom(buf)
				if err != nil {
					return
				}
				udp.WriteTo(buf[:n], from)
			}
		}()
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}
