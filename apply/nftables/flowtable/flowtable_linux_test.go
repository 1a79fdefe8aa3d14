package flowtable

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/sysctl"
)

// A kernel that makes no flowtable is reported once, and none is tried for interfaces that
// come; where it makes one, that is reported once.
func TestFastpathLogsOnce(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	var reported bytes.Buffer
	f := New(ns.Fd(), apply.Fastpath{Interfaces: []string{"*"}, Packets: 20}, slog.New(slog.NewTextHandler(&reported, nil)))
	for range 3 {
		f.ensure()
	}
	out, err := ns.Run(ns.Command(t.Context(), "nft", "list", "tables"))
	if err != nil {
		t.Fatal(err)
	}
	tables := string(out)
	if strings.Count(reported.String(), "\n") != 1 || strings.Contains(tables, Table) == (f.failed != "") || strings.Contains(reported.String(), "WARN") != (f.failed != "") {
		t.Errorf("tables %q, %s", tables, reported.String())
	}
}

// What br_netfilter keeps from the fast path is reported once of each bridge, when that begins and when it ends.
func TestFastpathLogsBridges(t *testing.T) {
	var reported bytes.Buffer
	f := New(0, apply.Fastpath{Interfaces: []string{"*"}}, slog.New(slog.NewTextHandler(&reported, nil)))
	f.root = sysctl.Root(t.TempDir())
	f.devices = map[int]netlink.Link{2: &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}, 3: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}}
	setting := filepath.Join(string(f.root), "proc/sys/net/bridge/bridge-nf-call-iptables")
	if err := os.MkdirAll(filepath.Dir(setting), 0o755); err != nil {
		t.Fatal(err)
	}
	const on, off = "level=WARN", "level=INFO"
	for _, c := range []struct{ value, level string }{{"0", ""}, {"1", on}, {"1", ""}, {"0", off}, {"0", ""}, {"1", on}} {
		if err := os.WriteFile(setting, []byte(c.value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		reported.Reset()
		f.checkBridges()
		is := reported.String()
		if (is == "") != (c.level == "") || strings.Count(is, "\n") > 1 || !strings.Contains(is, c.level) || is != "" && !strings.Contains(is, "interface=cni0") ||
			strings.Contains(is, `settings="net.bridge.bridge-nf-call-iptables = 1"`) != (c.level == on) {
			t.Errorf("%s: want %q: %s", c.value, c.level, is)
		}
	}
}
