package conntrack

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	vnetlink "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
)

// kernel returns a new namespace, its table, and a handle that creates entries.
func kernel(t testing.TB) (*applytest.Namespace, *table, *vnetlink.Handle) {
	t.Helper()
	ns := applytest.RequireNamespace(t)
	table, err := open(ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.close() })
	handle, err := vnetlink.NewHandleAt(netns.NsHandle(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(handle.Close)
	return ns, table, handle
}

// create creates an entry in the kernel.
func create(t testing.TB, h *vnetlink.Handle, e Entry) {
	t.Helper()
	ip := func(a netip.AddrPort) net.IP { return a.Addr().AsSlice() }
	family := vnetlink.InetFamily(vnetlink.FAMILY_V4)
	if e.To.Addr().Is6() {
		family = vnetlink.FAMILY_V6
	}
	flow := &vnetlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: 600,
		Forward: vnetlink.IPTuple{Protocol: uint8(e.Protocol), SrcIP: ip(e.Client), SrcPort: e.Client.Port(), DstIP: ip(e.To), DstPort: e.To.Port()},
		Reverse: vnetlink.IPTuple{Protocol: uint8(e.Protocol), SrcIP: ip(e.From), SrcPort: e.From.Port(), DstIP: ip(e.Client), DstPort: e.Client.Port()},
	}
	if e.Protocol == ir.TCP {
		flow.ProtoInfo = &vnetlink.ProtoInfoTCP{State: 3}
	}
	if err := h.ConntrackCreate(vnetlink.ConntrackTable, family, flow); err != nil {
		t.Fatalf("%s: %v", e, err)
	}
}

// all returns the UDP entries of a family.
func all(t testing.TB, tab *table, family ir.Family) (out []Entry) {
	t.Helper()
	filtered, err := tab.dump(filter{family: family, protocol: ir.UDP}, func(e Entry) error {
		out = append(out, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !filtered {
		t.Error("the kernel does not filter")
	}
	return out
}

// sweep returns the stale entries.
func sweep(t testing.TB, tab *table, sel *Selector) (out []Entry) {
	t.Helper()
	err := tab.sweep(sel, func(stale []Stale) error {
		for _, s := range stale {
			out = append(out, s.Entry)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTable(t *testing.T) {
	ns, table, handle := kernel(t)
	stale := []Entry{
		entry(ir.UDP, "192.0.2.1:5000", "10.96.0.10:53", "10.244.9.9:53"),
		entry(ir.UDP, "192.0.2.2:5000", "10.96.0.10:53", "10.96.0.10:53"),
		entry(ir.UDP, "192.0.2.3:5000", "192.0.2.11:30053", "10.244.9.9:53"),
	}
	stale6 := entry(ir.UDP, "[2001:db8::1]:5000", "[fd00::10]:53", "[fd00:244::9]:53")
	good := []Entry{
		entry(ir.UDP, "192.0.2.4:5000", "10.96.0.10:53", "10.244.1.5:53"),
		entry(ir.UDP, "192.0.2.5:5000", "8.8.8.8:53", "8.8.8.8:53"),
		entry(ir.UDP, "192.0.2.6:5000", "192.0.2.12:30053", "10.244.9.9:53"),
	}
	tcp := entry(ir.TCP, "192.0.2.7:5000", "10.96.0.10:53", "10.244.9.9:53")
	for _, e := range slices.Concat(stale, good, []Entry{stale6, tcp}) {
		create(t, handle, e)
	}
	frontends := map[string][]int{"10.96.0.10:53/udp": {0}, "node:30053/udp": {0}}
	programs := ir.NewPrograms(
		program(t, ir.IPv4, []string{"192.0.2.11"}, frontends, []string{"10.244.1.5:53"}),
		program(t, ir.IPv6, nil, map[string][]int{"[fd00::10]:53/udp": {0}}, []string{"[fd00:244::5]:53"}),
	)
	read := func(family ir.Family) []Entry {
		t.Helper()
		return all(t, table, family)
	}
	if diff := cmp.Diff(texts(slices.Concat(stale, good)), texts(read(ir.IPv4))); diff != "" {
		t.Fatalf("IPv4 UDP entries (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(texts([]Entry{stale6}), texts(read(ir.IPv6))); diff != "" {
		t.Fatalf("IPv6 UDP entries (-want +got)\n%s", diff)
	}
	var found []Entry
	for _, p := range ir.Present(programs) {
		found = append(found, sweep(t, table, NewSelector(p, nil))...)
	}
	if diff := cmp.Diff(texts(slices.Concat(stale, []Entry{stale6})), texts(found)); diff != "" {
		t.Fatalf("stale (-want +got)\n%s", diff)
	}
	if n, err := table.delete(found); err != nil || n != len(found) {
		t.Fatalf("Delete: %d, %v, want %d", n, err, len(found))
	}
	if diff := cmp.Diff(texts(good), texts(read(ir.IPv4))); diff != "" {
		t.Errorf("IPv4 UDP entries left (-want +got)\n%s", diff)
	}
	if got := read(ir.IPv6); len(got) != 0 {
		t.Errorf("IPv6 UDP entries left: %v", got)
	}
	out, err := ns.Run(ns.Command(context.Background(), "conntrack", "-L", "-p", "tcp"))
	if err != nil || !strings.Contains(string(out), "dst=10.96.0.10") {
		t.Errorf("TCP entry: got %q, %v", out, err)
	}
	if n, err := table.delete(found); err != nil || n != 0 {
		t.Errorf("Delete again: %d, %v, want 0", n, err)
	}
}

// delete does not delete a new entry that replaced a stale one.
func TestDeleteSparesTheSuccessor(t *testing.T) {
	_, table, handle := kernel(t)
	e := entry(ir.UDP, "192.0.2.1:5000", "10.96.0.10:53", "10.244.9.9:53")
	create(t, handle, e)
	old := all(t, table, ir.IPv4)
	if len(old) != 1 {
		t.Fatal(old)
	}
	old[0].ID++
	if n, err := table.delete(old); err != nil || n != 0 {
		t.Errorf("Delete: %d, %v, want 0", n, err)
	}
	if left := all(t, table, ir.IPv4); len(left) != 1 {
		t.Errorf("left %v, want the entry", left)
	}
}

// A connection of TCP that gets its first reply after the entry was read is kept.
func TestCleanSparesAnsweredConnections(t *testing.T) {
	ns, table, handle := kernel(t)
	slow, late := entry(ir.TCP, "192.0.2.1:5000", "10.96.0.10:80", "10.96.0.10:80"), entry(ir.TCP, "192.0.2.2:5000", "10.96.0.10:80", "10.96.0.10:80")
	create(t, handle, slow)
	create(t, handle, late)
	p := program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:80/tcp": {0}}, []string{"10.244.1.5:80"})
	p.Node.Mode = ir.ModeNFTables
	picked := 0
	n, err := table.clean(NewSelector(p, nil), func(stale []Stale) ([]Stale, error) {
		picked += len(stale)
		_, err := ns.Run(ns.Command(t.Context(), "conntrack", "-U", "-p", "tcp", "-s", "192.0.2.2", "--status", "SEEN_REPLY"))
		return stale, err
	})
	if err != nil || picked != 2 || n != 1 {
		t.Errorf("%d stale, %d deleted, %v; want 2 and 1", picked, n, err)
	}
	out, err := ns.Run(ns.Command(t.Context(), "conntrack", "-L", "-p", "tcp"))
	if err != nil || strings.Contains(string(out), "src=192.0.2.1 ") || !strings.Contains(string(out), "src=192.0.2.2 ") {
		t.Errorf("got %s, %v, want the entry of 192.0.2.2", out, err)
	}
}

func TestManyEntries(t *testing.T) {
	_, table, handle := kernel(t)
	const n = 3000
	for i := range n {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0xc0000200+uint32(i))
		e := entry(ir.UDP, "192.0.2.1:5000", "10.96.0.10:53", "10.244.9.9:53")
		e.Client = netip.AddrPortFrom(netip.AddrFrom4(a), 5000)
		create(t, handle, e)
	}
	entries := all(t, table, ir.IPv4)
	if len(entries) != n {
		t.Fatalf("%d entries, want %d", len(entries), n)
	}
	for some := range slices.Chunk(entries, batch) {
		if deleted, err := table.delete(some); err != nil || deleted != len(some) {
			t.Errorf("Delete: %d, %v, want %d", deleted, err, len(some))
		}
	}
}

func TestDecodeIsRobust(t *testing.T) {
	for _, data := range [][]byte{nil, {1}, {2, 0, 0, 0}, {2, 0, 0, 0, 1}, {2, 0, 0, 0, 8, 0, 1, 0x80, 4, 0, 1, 0x80}} {
		if e, err := decode(data); err == nil && e != (Entry{}) {
			t.Errorf("%v: got %v", data, e)
		}
	}
}

// This is why IPv6 entries are not filtered by address: the kernel dumps those of all other
// addresses. If this test is skipped, the kernel is fixed, and filters can use addresses.
func TestKernelInvertsIPv6Addresses(t *testing.T) {
	_, tab, h := kernel(t)
	for _, f := range []struct {
		family                 ir.Family
		vip, other, pod, reply string
		want                   []string // whose entries are dumped for vip
	}{
		{ir.IPv4, "10.96.0.10", "10.96.0.11", "10.244.1.5", "10.244.1.9", []string{"10.96.0.10"}},
		{ir.IPv6, "fd00::10", "fd00::11", "fd00:244::5", "fd00:244::9", []string{"fd00::11"}},
	} {
		at := func(addr string, port uint16) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
		}
		for i, to := range []string{f.vip, f.other} {
			create(t, h, Entry{Protocol: ir.UDP, Client: at(f.pod, uint16(4000+i)), To: at(to, 53), From: at(f.reply, 53)})
		}
		var got []string
		filtered := true
		if _, err := tab.dumpOnce(filter{f.family, ir.UDP, netip.MustParseAddr(f.vip), 53}, &filtered, func(e Entry) error {
			got = append(got, e.To.Addr().String())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if f.family == ir.IPv6 && slices.Equal(got, []string{f.vip}) {
			t.Skip("this kernel filters by IPv6 addresses")
		}
		if diff := cmp.Diff(f.want, got); diff != "" {
			t.Errorf("%s: entries for %s (-want +got):\n%s", f.family, f.vip, diff)
		}
	}
}
