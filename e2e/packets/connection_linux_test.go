package packets

import (
	"encoding/binary"
	"flag"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
)

var connectionRules = flag.String("rules", "", "nft scripts for BenchmarkConnection, as name=file, separated by commas")

// BenchmarkConnection measures the cost of the first packet of a connection on a node that
// forwards it from a pod. It sends 64 bytes over UDP to 10.96.0.10:53 under each script of
// -rules. As lower bounds it sends to a backend without rules, with connection tracking only, and
// with a translation by one rule. All alternate, with new connections in each round. ns/op is the
// median time per packet of a round. ns-rules is the part that exceeds tracking and translation
// in the same round.
func BenchmarkConnection(b *testing.B) {
	applytest.RequireRoot(b)
	const turn = 16
	service, backend := netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("10.244.2.10:5353")
	type variant struct {
		name, script string
		to           netip.AddrPort
		way          *sender
		took         []time.Duration
	}
	variants := []*variant{
		{name: "no rules", to: backend},
		{name: "tracked", to: backend, script: "table ip t { chain c { type filter hook forward priority 0; ct state invalid; }; }"},
		{name: "translated", to: service, script: "table ip t { chain c { type nat hook prerouting priority -100; ip daddr 10.96.0.10 meta l4proto udp dnat to 10.244.2.10:5353; }; }"},
	}
	for one := range strings.SplitSeq(*connectionRules, ",") {
		if name, file, ok := strings.Cut(one, "="); ok {
			text, err := os.ReadFile(file)
			check(b, err)
			variants = append(variants, &variant{name: name, to: service, script: string(text)})
		}
	}
	for _, v := range variants {
		v.way = newSender(b, v.to)
		if v.script != "" {
			nft := v.way.node.Command(b.Context(), "nft", "-f", "-")
			nft.Stdin = strings.NewReader(v.script)
			if out, err := v.way.node.Run(nft); err != nil {
				b.Fatalf("%s: %v\n%s", v.name, err, out)
			}
		}
	}
	for b.Loop() {
		for _, v := range variants {
			v.took = append(v.took, v.way.send(b, turn))
		}
	}
	floor := median(slices.Clone(variants[2].took))
	for _, v := range variants {
		ns := median(v.took)
		name := strings.ReplaceAll(v.name, " ", "-")
		b.ReportMetric(ns/turn, name+"-ns")
		if v.script != "" && v.to == service {
			b.ReportMetric((ns-floor)/turn, name+"-rules-ns")
		}
		b.Logf("%-24s %7.0f ns", v.name, ns/turn)
	}
	b.ReportMetric(0, "ns/op")
}

// A sender sends first packets of connections from a pod through a node to hosts that ignore them.
type sender struct {
	node   *applytest.Namespace
	fd     int
	packet []byte
	to     unix.Sockaddr
	sent   int
}

func newSender(b *testing.B, to netip.AddrPort) *sender {
	b.Helper()
	made := map[string]*applytest.Namespace{}
	for _, name := range []string{"pods", "node", "host"} {
		ns, err := applytest.NewNamespace(name)
		check(b, err)
		b.Cleanup(func() { ns.Close() })
		made[name] = ns
	}
	pods, node, host := made["pods"], made["node"], made["host"]
	check(b, node.Connect("pod", pods, "eth0"))
	check(b, node.Connect("eth0", host, "eth0"))
	check(b, node.AddAddr("pod", netip.MustParsePrefix("10.244.1.1/24"), false))
	check(b, node.AddAddr("eth0", netip.MustParsePrefix("10.244.2.1/24"), false))
	check(b, pods.AddAddr("eth0", netip.MustParsePrefix("10.244.1.2/24"), false))
	check(b, pods.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), "eth0", netip.MustParseAddr("10.244.1.1")))
	check(b, node.Sysctl("ipv4/ip_forward=1"))
	for link, there := range map[string]*applytest.Namespace{"pod": pods, "eth0": host} {
		here, err := node.Netlink().LinkByName(link)
		check(b, err)
		peer, err := there.Netlink().LinkByName("eth0")
		check(b, err)
		for _, a := range []string{"10.244.1.2", "10.244.1.10", "10.244.1.11", "10.244.2.10"} {
			if (link == "pod") != strings.HasPrefix(a, "10.244.1.") {
				continue
			}
			check(b, node.Netlink().NeighSet(&netlink.Neigh{LinkIndex: here.Attrs().Index, State: unix.NUD_PERMANENT,
				IP: netip.MustParseAddr(a).AsSlice(), HardwareAddr: peer.Attrs().HardwareAddr}))
		}
	}
	s := &sender{node: node, to: inet4(to), packet: firstPacket(netip.MustParseAddr("10.244.1.2"), to)}
	check(b, pods.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	b.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// firstPacket returns a UDP datagram without source port and checksum.
func firstPacket(from netip.Addr, to netip.AddrPort) []byte {
	p := make([]byte, 64)
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[22:], to.Port())
	binary.BigEndian.PutUint16(p[24:], uint16(len(p)-20))
	return p
}

// send sends n packets from distinct source ports. When a send returns, its packet has passed the
// node.
func (s *sender) send(b *testing.B, n int) time.Duration {
	start := time.Now()
	for range n {
		s.sent++
		binary.BigEndian.PutUint16(s.packet[20:], uint16(1024+s.sent%(1<<16-1024)))
		if err := unix.Sendto(s.fd, s.packet, 0, s.to); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}
