package nftables

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// No socket listens during a large commit, since the kernel would hold a notification for each of
// its elements. Later foreign changes are detected.
func TestLargeCommitIsMuted(t *testing.T) {
	n := newNode(t)
	plane, drift := n.listening(t)
	var during []string // listeners, at each batch
	plane.writer.conn.Request = func(b []conn.Message, do func() error) error {
		if b != nil {
			during = append(during, fmt.Sprint(listeners(t, n)))
		}
		return do()
	}
	commit := func(backends int) {
		t.Helper()
		p := nftest.Program(ir.IPv4)
		pool := &p.Services[0].Pools[0]
		for i := range backends {
			pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 80)})
		}
		if err := plane.Read(t.Context(), ir.Programs{}); err != nil {
			t.Fatal(err)
		}
		if _, err := plane.Commit(t.Context(), plane.Plan(ir.NewPrograms(p))); err != nil {
			t.Fatal(err)
		}
	}
	commit(1)
	commit(maxNotified + 1)
	if got, want := fmt.Sprint(during), "[1 0]"; got != want {
		t.Errorf("listeners during a small commit and a large one: %s, want %s", got, want)
	}
	if got := listeners(t, n); got != 1 {
		t.Errorf("afterwards %d listen, want 1", got)
	}
	select {
	case <-drift:
		t.Error("our own commits are reported")
	default:
	}
	n.nft(t, "delete element ip proxyc cluster-ips { 10.96.0.10 }", "-f", "-")
	<-drift
}

// listeners returns the number of sockets in a node that receive notifications of nf_tables.
func listeners(t *testing.T, n node) (count int) {
	t.Helper()
	var table []byte
	if err := n.Do(func() (err error) {
		table, err = os.ReadFile("/proc/thread-self/net/netlink")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) { // sk Eth Pid Groups ...
		f := strings.Fields(line)
		if len(f) > 3 && f[1] == "12" && f[3] == "00000040" {
			count++
		}
	}
	return count
}
