package conntrack

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/ir"
)

const (
	msgNew      = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK) << 8
	attrTimeout = 7
)

// fill creates n entries in the kernel.
func fill(ns *applytest.Namespace, n int, of func(int) Entry) error {
	tab, err := open(ns.Fd())
	if err != nil {
		return err
	}
	defer tab.close()
	for i := 0; i < n; {
		var msgs []netlink.Message
		for ; i < n && len(msgs) < batch; i++ {
			e := of(i)
			msgs = append(msgs, message(msgNew, netlink.Create|netlink.Excl, ir.FamilyOf(e.To.Addr()), func(b *codec.Builder) {
				describe(b, e)
				b.Uint32(attrTimeout, 3600)
			}))
		}
		msgs[len(msgs)-1].Header.Flags |= netlink.Acknowledge
		err := tab.writing.Do(context.Background(), func(c *socket.Conn) error {
			if _, err := c.SendMessages(msgs); err != nil {
				return err
			}
			for _, err := range c.Answers() {
				return err
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	return nil
}

// describe adds all attributes of an entry.
func describe(b *codec.Builder, e Entry) {
	identify(b, e)
	b.Nest(attrTupleReply, func(b *codec.Builder) { direction(b, e.Protocol, e.From, e.Client) })
	b.Bytes(attrZone, port(e.Zone))
}

// from returns the i-th of many clients.
func from(i int) netip.AddrPort {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 0xc6120000+uint32(i)) // from 198.18.0.0/15 on
	return netip.AddrPortFrom(netip.AddrFrom4(a), 5000)
}

// most returns how many entries the kernel allows in a namespace. The limit cannot be changed
// inside it.
func most(t testing.TB) int {
	t.Helper()
	data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Skip(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// liveHeap returns the memory in use, in bytes.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A pass over a million entries, or as many as a namespace may have, holds few of them in memory at
// a time, whether they are stale or not.
func TestLargeTableTakesNoMemory(t *testing.T) {
	ns, tab, _ := kernel(t)
	n := min(1_000_000, most(t)-1000)
	foreign, stale := addrPort("8.8.8.8:53"), addrPort("10.244.9.9:53")
	err := fill(ns, n, func(i int) Entry {
		e := Entry{Protocol: ir.UDP, Client: from(i), To: foreign, From: foreign}
		if i%2 == 0 {
			e.To, e.From = addrPort("10.96.0.10:53"), stale
		}
		return e
	})
	if err != nil {
		t.Fatal(err)
	}
	// Use so many ports that the dump cannot be filtered.
	frontends := map[string][]int{"10.96.0.10:53/udp": {0}}
	for i := range 2 * maxFilters {
		frontends[fmt.Sprintf("10.96.0.11:%d/udp", i+1000)] = nil
	}
	sel := NewSelector(program(t, ir.IPv4, nil, frontends, []string{"10.244.1.5:53"}), nil)
	atFirst, peak, ways := liveHeap(), int64(0), 0
	began := time.Now()
	deleted, err := tab.clean(sel, func(s []Stale) ([]Stale, error) {
		if len(s) > batch {
			t.Errorf("%d entries at a time", len(s))
		}
		if ways++; ways%100 == 0 {
			peak = max(peak, liveHeap()-atFirst)
		}
		return s, nil
	})
	if err != nil || deleted != n/2 {
		t.Fatalf("deleted %d, %v, want %d", deleted, err, n/2)
	}
	t.Logf("%d entries, %d of them stale: %s, %d KiB", n, n/2, time.Since(began), peak>>10)
	if ways < 500 {
		t.Errorf("only %d times was anything measured", ways/100)
	}
	if peak > 1<<20 {
		t.Errorf("%d bytes more than at first, want at most 1 MiB", peak)
	}
	if left := all(t, tab, ir.IPv4); len(left) != n-n/2 {
		t.Errorf("%d entries left, want %d", len(left), n-n/2)
	}
}

// The kernel dumps only entries that may be stale.
func TestKernelFilters(t *testing.T) {
	ns, tab, handle := kernel(t)
	entries := map[ir.Family][]Entry{
		ir.IPv4: {
			entry(ir.UDP, "192.0.2.1:5000", "10.96.0.10:53", "10.244.9.9:53"),
			entry(ir.UDP, "192.0.2.2:5000", "10.96.0.11:53", "10.244.9.9:53"),
			entry(ir.UDP, "192.0.2.3:5000", "10.96.0.10:54", "10.244.9.9:54"),
			entry(ir.TCP, "192.0.2.4:5000", "10.96.0.10:53", "10.244.9.9:53"),
		},
		ir.IPv6: {
			entry(ir.UDP, "[2001:db8::1]:5000", "[fd00::10]:53", "[fd00:244::9]:53"),
			entry(ir.UDP, "[2001:db8::2]:5000", "[fd00::11]:53", "[fd00:244::9]:53"),
			entry(ir.UDP, "[2001:db8::3]:5000", "[fd00::10]:54", "[fd00:244::9]:54"),
		},
	}
	for _, of := range entries {
		for _, e := range of {
			create(t, handle, e)
		}
	}
	// Linux excludes other zones from 6.9 on; Stale does so on older kernels.
	zoned := entry(ir.UDP, "192.0.2.5:5000", "10.96.0.10:53", "10.244.9.9:53")
	zoned.Zone = 7
	if err := fill(ns, 1, func(int) Entry { return zoned }); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[ir.Family][]Entry{ir.IPv4: entries[ir.IPv4][:1], ir.IPv6: entries[ir.IPv6][:2]} {
		vip := map[ir.Family]string{ir.IPv4: "10.96.0.10:53/udp", ir.IPv6: "[fd00::10]:53/udp"}[f]
		sel := NewSelector(program(t, f, nil, map[string][]int{vip: nil}), nil)
		var got []Entry
		for _, one := range sel.filters() {
			filtered, err := tab.dump(one, func(e Entry) error {
				if e.Zone == 0 || filtersZones(t) {
					got = append(got, e)
				}
				return nil
			})
			if err != nil || !filtered {
				t.Errorf("%s: filtered %v, %v", f, filtered, err)
			}
		}
		if g, w := fmt.Sprint(texts(got)), fmt.Sprint(texts(want)); g != w {
			t.Errorf("%s: the kernel sends %s, want %s", f, g, w)
		}
		if s := sweep(t, tab, sel); len(s) != 1 {
			t.Errorf("%s: stale %v, want 1", f, s)
		}
	}
}

// filtersZones reports whether this kernel filters by zone.
func filtersZones(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 9
}

// answering is a kernel that replies to each request with entries.
type answering func(netlink.Message) ([]Entry, error)

func (a answering) Ask(_ context.Context, m netlink.Message, each func([]byte) error) (interrupted bool, err error) {
	entries, err := a(m)
	for _, e := range entries {
		if err := each(message(msgNew, 0, ir.IPv4, func(b *codec.Builder) { describe(b, e) }).Data); err != nil {
			return false, err
		}
	}
	return false, err
}

// Kernels that ignore or reject filters dump everything once.
func TestKernelsWithoutFilters(t *testing.T) {
	stale := []Entry{
		entry(ir.UDP, "192.0.2.1:5000", "10.96.0.10:53", "10.244.9.9:53"),
		entry(ir.UDP, "192.0.2.2:5000", "10.96.0.10:54", "10.244.9.9:54"),
	}
	entries := append([]Entry{entry(ir.TCP, "192.0.2.3:5000", "10.96.0.10:53", "10.244.9.9:53"), entry(ir.UDP, "192.0.2.4:5000", "8.8.8.8:53", "8.8.8.8:53")}, stale...)
	cases := []struct {
		name  string
		errno unix.Errno
		dumps int
		want  []Entry
		fails bool
	}{
		{"ignores them", 0, 1, stale, false},
		{"invalid", unix.EINVAL, 2, stale, false},
		{"not supported", unix.EOPNOTSUPP, 2, stale, false},
		{"not allowed", unix.EPERM, 1, nil, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dumps := 0
			tab := &table{reading: answering(func(m netlink.Message) ([]Entry, error) {
				dumps++
				attrs, err := netlink.UnmarshalAttributes(m.Data[4:])
				if err != nil {
					t.Error(err)
				}
				if len(attrs) > 0 && c.errno != 0 {
					return nil, c.errno
				}
				return entries, nil
			})}
			sel := NewSelector(program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:53/udp": {0}, "10.96.0.10:54/udp": {1}}, []string{"10.244.1.5:53"}, []string{"10.244.1.5:54"}), nil)
			var got []Entry
			err := tab.sweep(sel, func(s []Stale) error {
				for _, one := range s {
					got = append(got, one.Entry)
				}
				return nil
			})
			if (err != nil) != c.fails {
				t.Fatal(err)
			}
			if g, w := fmt.Sprint(texts(got)), fmt.Sprint(texts(c.want)); g != w || dumps != c.dumps {
				t.Errorf("got %s in %d dumps, want %s in %d", g, dumps, w, c.dumps)
			}
		})
	}
}

// With a full connection tracking table, the table can still be read and stale flows deleted.
func TestFullTable(t *testing.T) {
	ns, tab, _ := kernel(t)
	n := most(t)
	var stale []Entry
	err := fill(ns, n+n/10, func(i int) Entry {
		e := Entry{Protocol: ir.UDP, Client: from(i), To: addrPort("8.8.8.8:53"), From: addrPort("8.8.8.8:53")}
		if i%1000 == 0 {
			e.To, e.From = addrPort("10.96.0.10:53"), addrPort("10.244.9.9:53")
			stale = append(stale, e)
		}
		return e
	})
	if err == nil {
		t.Fatalf("the kernel tracks more than %d flows", n)
	}
	t.Log(err)
	sel := NewSelector(program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:53/udp": {0}}, []string{"10.244.1.5:53"}), nil)
	deleted, err := tab.clean(sel, func(s []Stale) ([]Stale, error) { return s, nil })
	if err != nil || deleted == 0 || deleted > len(stale) {
		t.Fatalf("deleted %d, %v, want some of %d", deleted, err, len(stale))
	}
	if s := sweep(t, tab, sel); len(s) != 0 {
		t.Errorf("%d are left", len(s))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(message(msgNew, 0, ir.IPv6, func(b *codec.Builder) {
		describe(b, entry(ir.UDP, "[2001:db8::1]:5000", "[fd00::10]:53", "[fd00:244::9]:53"))
	}).Data)
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		decode(data)
		if !bytes.Equal(before, data) {
			t.Error("the message was changed")
		}
	})
}
