package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/ir"
)

// A daemon that leaves mode ipvs reports what old connections keep, and so does a daemon that
// starts meanwhile. The connections continue, and what they need is removed after they end.
func TestWatchLeavesIPVS(t *testing.T) {
	t.Parallel()
	applytest.RequireRoot(t)
	if !applytest.HaveIPVS(t) {
		t.Skip("the kernel has no ip_vs: run by make test-vm")
	}
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { topo.Close() })
	w := newWatched(t, "ipvs")
	w.NS = topo.Namespace("node1")
	w.Sync(nodetest.NodePort)
	kept := dialKept(t, topo, "pod1b", "10.96.0.10:80")

	began := time.Now()
	w.Write("config", fmt.Sprintf(nodetest.Config, "nftables"))
	keeps := func(st status.Status) bool { return st.Mode == "nftables" && nodetest.Synced(st) && st.Easing != nil }
	st := w.Until("what connections keep is reported", keeps)
	e := st.Easing
	if e.Since.Before(began) || e.Since.After(st.Now) || e.Until.Sub(e.Since) != apply.DrainDeadline {
		t.Errorf("since %s until %s, began %s, now %s", e.Since, e.Until, began, st.Now)
	}
	if len(e.Kept) != 3 || !strings.HasPrefix(e.Kept[0].Object, "virtual server 10.96.0.10:80/tcp") || e.Kept[0].Connections != 1 {
		t.Errorf("kept: %+v", e.Kept)
	}
	out, err := w.NS.Run(w.NS.Command(t.Context(), "proxyc", "status"))
	if err != nil || !strings.Contains(string(out), "kept         virtual server 10.96.0.10:80/tcp") {
		t.Errorf("status: %v\n%s", err, out)
	}
	alive := func(when string) {
		t.Helper()
		if a, err := applytest.Query(kept, applytest.ReplyTimeout); err != nil {
			t.Errorf("%s: the connection that there was: %v", when, err)
		} else if name := topo.Name(a.Server.Addr()); name != "pod1a" {
			t.Errorf("%s: %s answers, want pod1a", when, name)
		}
		if _, err := topo.Try("pod1b", "tcp", 0, netip.MustParseAddrPort("10.96.0.10:80"), applytest.ReplyTimeout); err != nil {
			t.Errorf("%s: a new connection: %v", when, err)
		}
	}
	alive("after the change")

	w.Stop(syscall.SIGKILL)
	w.Start("proxyc", "watch")
	w.Until("another process tells it, too", keeps)
	alive("after a restart")

	kept.(*net.TCPConn).SetLinger(0) // ip_vs forgets in ten seconds what was reset
	kept.Close()
	applytest.Until(w.T, time.Minute, "all ends", func() bool {
		st, ok := w.Status()
		return ok && st.Easing == nil && nodetest.Synced(st)
	})
	if _, err := w.NS.Netlink().LinkByName(ir.IPVSDevice); err == nil {
		t.Errorf("%s is there", ir.IPVSDevice)
	}
	if out, err := w.NS.Run(w.NS.Command(t.Context(), "sh", "-c", "ipvsadm -Sn; ipset list -n")); err != nil || len(out) > 0 {
		t.Errorf("still there: %v\n%s", err, out)
	}
}

// dialKept makes a connection that stays open, and uses it.
func dialKept(t *testing.T, topo *applytest.Topology, from, to string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), applytest.ScaledTimeout(5*time.Second))
	defer cancel()
	conn, err := topo.Namespace(from).Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := applytest.Query(conn, applytest.ReplyTimeout); err != nil {
		t.Fatal(err)
	}
	return conn
}
