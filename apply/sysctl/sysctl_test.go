package sysctl

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

func ptr[T any](v T) *T { return &v }

func duration(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }

// texts returns "name=value field" for each setting.
func texts(settings []Setting) []string {
	out := []string{}
	for _, s := range settings {
		out = append(out, s.Name()+"="+s.Want+" "+s.Why.Field)
	}
	return out
}

func TestConntrack(t *testing.T) {
	const (
		maxName = "net.netfilter.nf_conntrack_max="
		hash    = "/sys/module/nf_conntrack/parameters/hashsize="
		field   = " conntrack.maxPerCore"
	)
	cases := []struct {
		name string
		conf config.Conntrack
		cpus int
		want []string
	}{
		{"nothing", config.Conntrack{}, 4, nil},
		{"zeros leave the kernel alone", config.Conntrack{MaxPerCore: ptr(int32(0)), Min: ptr(int32(131072)), TCPEstablishedTimeout: ptr(duration(0)), TCPCloseWaitTimeout: ptr(duration(0))}, 4, nil},
		{"by core", config.Conntrack{MaxPerCore: ptr(int32(32768)), Min: ptr(int32(131072))}, 8, []string{maxName + "262144" + field, hash + "65536" + field}},
		{"minimum", config.Conntrack{MaxPerCore: ptr(int32(32768)), Min: ptr(int32(131072))}, 2, []string{maxName + "131072" + field, hash + "32768" + field}},
		{"no minimum", config.Conntrack{MaxPerCore: ptr(int32(1000))}, 2, []string{maxName + "2000" + field, hash + "500" + field}},
		{"big machine", config.Conntrack{MaxPerCore: ptr(int32(32768)), Min: ptr(int32(131072))}, 128, []string{maxName + "1048576" + field, hash + "262144" + field}},
		{"big machine with a big minimum", config.Conntrack{MaxPerCore: ptr(int32(32768)), Min: ptr(int32(2000000))}, 128, []string{maxName + "2000000" + field, hash + "500000" + field}},
		{"product beyond 32 bits", config.Conntrack{MaxPerCore: ptr(int32(1 << 30))}, 64, []string{maxName + "1048576" + field, hash + "262144" + field}},
		{"the removed maximum has no effect", config.Conntrack{Max: ptr(int32(7))}, 4, nil},
		{"timeouts", config.Conntrack{
			TCPEstablishedTimeout: ptr(duration(24 * time.Hour)), TCPCloseWaitTimeout: ptr(duration(90*time.Second + 900*time.Millisecond)),
			UDPTimeout: duration(250 * time.Millisecond), UDPStreamTimeout: duration(3 * time.Minute), TCPBeLiberal: true,
		}, 4, []string{
			"net.netfilter.nf_conntrack_tcp_timeout_established=86400 conntrack.tcpEstablishedTimeout",
			"net.netfilter.nf_conntrack_tcp_timeout_close_wait=90 conntrack.tcpCloseWaitTimeout",
			"net.netfilter.nf_conntrack_tcp_be_liberal=1 conntrack.tcpBeLiberal",
			"net.netfilter.nf_conntrack_udp_timeout=1 conntrack.udpTimeout",
			"net.netfilter.nf_conntrack_udp_timeout_stream=180 conntrack.udpStreamTimeout",
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.want == nil {
				c.want = []string{}
			}
			if diff := cmp.Diff(c.want, texts(Conntrack(&c.conf, Host{CPUs: c.cpus}))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// The limit of connections and the hash table grow, each by itself, and never shrink.
func TestConntrackLimitOnlyGrows(t *testing.T) {
	for _, c := range []struct{ limit, buckets, want string }{
		{"65536", "16384", "net.netfilter.nf_conntrack_max = 131072 (was 65536); /" + hashsize + " = 32768 (was 16384)"},
		{"500000", "1024", "/" + hashsize + " = 32768 (was 1024)"},
		{"500000", "125000", ""},
	} {
		root := tree(t, map[string]string{"proc/sys/net/netfilter/nf_conntrack_max": c.limit + "\n", hashsize: c.buckets + "\n"})
		differing, err := Diff(root, Conntrack(&config.Conntrack{MaxPerCore: ptr(int32(32768))}, Host{CPUs: 4}))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range differing {
			got = append(got, s.String())
		}
		if got := strings.Join(got, "; "); got != c.want {
			t.Errorf("%s of %s: got %q, want %q", c.limit, c.buckets, got, c.want)
		}
	}
}

func TestDataplane(t *testing.T) {
	localnet := []string{"net.ipv4.conf.all.route_localnet=1 iptables.localhostNodePorts"}
	vs := func(more ...string) []string {
		out := append([]string{"net.ipv4.vs.conntrack=1 mode"}, more...)
		return append(out, "net.ipv4.vs.expire_nodest_conn=1 mode", "net.ipv4.vs.expire_quiescent_template=1 mode", "net.ipv4.ip_forward=1 mode")
	}
	reuse := "net.ipv4.vs.conn_reuse_mode=0 mode"
	prefixes := func(texts ...string) ir.NodePortAddrs {
		out := ir.NodePortAddrs{Loopback: true}
		for _, p := range texts {
			out.Prefixes = append(out.Prefixes, ir.NodePortPrefix{Prefix: netip.MustParsePrefix(p), Assigned: true})
		}
		return out
	}
	cases := []struct {
		name   string
		node   ir.Node
		kernel string
		want   []string
	}{
		{"nftables", ir.Node{Mode: ir.ModeNFTables, NodePorts: ir.NodePortAddrs{All: true, Loopback: true}}, "6.1.0", nil},
		{"iptables", ir.Node{Mode: ir.ModeIPTables, NodePorts: ir.NodePortAddrs{All: true, Loopback: true}}, "6.1.0", localnet},
		{"iptables without localhost node ports", ir.Node{Mode: ir.ModeIPTables, NodePorts: ir.NodePortAddrs{All: true}}, "6.1.0", nil},
		{"iptables, loopback among the addresses", ir.Node{Mode: ir.ModeIPTables, NodePorts: prefixes("192.0.2.0/24", "127.0.0.2/32")}, "6.1.0", localnet},
		{"iptables, loopback inside a range", ir.Node{Mode: ir.ModeIPTables, NodePorts: prefixes("0.0.0.0/0")}, "6.1.0", localnet},
		{"iptables, loopback not among the addresses", ir.Node{Mode: ir.ModeIPTables, NodePorts: prefixes("192.0.2.0/24")}, "6.1.0", nil},
		{"ipvs, new kernel", ir.Node{Mode: ir.ModeIPVS, IPVS: &ir.IPVS{}}, "6.1.0-amd64", vs()},
		{"ipvs, first kernel that needs nothing", ir.Node{Mode: ir.ModeIPVS, IPVS: &ir.IPVS{}}, "5.9.0", vs()},
		{"ipvs, last kernel that needs it", ir.Node{Mode: ir.ModeIPVS, IPVS: &ir.IPVS{}}, "5.8.18-generic", vs(reuse)},
		{"ipvs, first kernel that has it", ir.Node{Mode: ir.ModeIPVS, IPVS: &ir.IPVS{}}, "4.1", vs(reuse)},
		{"ipvs, kernel without it", ir.Node{Mode: ir.ModeIPVS, IPVS: &ir.IPVS{}}, "4.0.9", vs()},
		{"ipvs, strictARP", ir.Node{Mode: ir.ModeIPVS, IPVS: &ir.IPVS{StrictARP: true}}, "6.1.0",
			append(vs(), "net.ipv4.conf.all.arp_ignore=1 ipvs.strictARP", "net.ipv4.conf.all.arp_announce=2 ipvs.strictARP")},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.want == nil {
				c.want = []string{}
			}
			if diff := cmp.Diff(c.want, texts(Dataplane(&c.node, Host{Kernel: ParseVersion(c.kernel)}))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestOOMScore(t *testing.T) {
	if got := OOMScore(&config.Config{}); got != nil {
		t.Errorf("not set: got %v", got)
	}
	got := OOMScore(&config.Config{OOMScoreAdj: ptr(int32(-999))})
	want := []Setting{{Path: "proc/self/oom_score_adj", Want: "-999", Optional: true, Why: ir.Origin{Object: "config", Field: "oomScoreAdj"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// tree creates a root directory with files.
func tree(t *testing.T, files map[string]string) Root {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Root(root)
}

func TestDiffAndWrite(t *testing.T) {
	why := ir.Origin{Object: "config", Field: "f"}
	wanted := []Setting{
		{Path: "proc/sys/a/b", Want: "1", Why: why},
		{Path: "proc/sys/a/c", Want: "5", Why: why},
		{Path: hashsize, Want: "100", AtLeast: true, Why: why},
	}
	cases := []struct {
		name    string
		b, c, h string
		want    string
	}{
		{"all differ", "0\n", "7\n", "99\n", "a.b = 1 (was 0); a.c = 5 (was 7); /" + hashsize + " = 100 (was 99)"},
		{"all as wanted", "1\n", "5\n", "100\n", ""},
		{"greater is good where it says so", "2\n", "6\n", "101\n", "a.b = 1 (was 2); a.c = 5 (was 6)"},
		{"no number", "x\n", "5\n", "y\n", "a.b = 1 (was x); /" + hashsize + " = 100 (was y)"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, map[string]string{"proc/sys/a/b": c.b, "proc/sys/a/c": c.c, hashsize: c.h})
			diff, err := Diff(root, wanted)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range diff {
				got = append(got, s.String())
			}
			if got := strings.Join(got, "; "); got != c.want {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			if err := Write(root, diff); err != nil {
				t.Fatal(err)
			}
			if diff, err := Diff(root, wanted); err != nil || len(diff) > 0 {
				t.Errorf("after Write: %v, %v", diff, err)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	root := tree(t, map[string]string{"proc/sys/net/ipv4/ip_forward": "0\n"})
	wanted := append(Dataplane(&ir.Node{Mode: ir.ModeIPVS, IPVS: &ir.IPVS{}}, Host{Kernel: Version{6, 1}}),
		Conntrack(&config.Conntrack{UDPTimeout: duration(time.Second)}, Host{})...)
	diff, err := Diff(root, wanted)
	want := `/proc/sys/net/ipv4/vs/conntrack: must be 1 for config: mode (ipvs): no such file or directory (load kernel module ip_vs)
/proc/sys/net/ipv4/vs/expire_nodest_conn: must be 1 for config: mode (ipvs): no such file or directory (load kernel module ip_vs)
/proc/sys/net/ipv4/vs/expire_quiescent_template: must be 1 for config: mode (ipvs): no such file or directory (load kernel module ip_vs)
/proc/sys/net/netfilter/nf_conntrack_udp_timeout: must be 1 for config: conntrack.udpTimeout: no such file or directory (load kernel module nf_conntrack)`
	if err == nil || err.Error() != want {
		t.Errorf("Diff\n got %v\nwant %s", err, want)
	}
	if len(diff) != 1 || diff[0].Name() != "net.ipv4.ip_forward" {
		t.Errorf("the one that can be read: got %v", diff)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the cause is not in the error")
	}

	// A directory in place of the file cannot be written, even by root.
	root = tree(t, map[string]string{"proc/sys/net/netfilter/nf_conntrack_max/x": "", "proc/sys/net/ipv4/ip_forward": "0"})
	err = Write(root, []Setting{
		{Path: "proc/sys/net/netfilter/nf_conntrack_max", Want: "9", Have: "8", Why: ir.Origin{Object: "config", Field: "conntrack.maxPerCore"}},
		{Path: "proc/sys/net/ipv4/ip_forward", Want: "1"},
	})
	want = "/proc/sys/net/netfilter/nf_conntrack_max: must be 9 for config: conntrack.maxPerCore, is 8: is a directory " +
		"(run with --init-only where it can be written, or set conntrack.maxPerCore to 0 or false to leave the kernel's value)"
	if err == nil || err.Error() != want {
		t.Errorf("Write\n got %v\nwant %s", err, want)
	}
	if got, _ := root.Read("proc/sys/net/ipv4/ip_forward"); got != "1" {
		t.Errorf("the setting after the one that failed is %s, want 1", got)
	}
}

// Either setting passes a bridge's packets to iptables, unless the module is missing.
func TestCallsIPTables(t *testing.T) {
	const (
		node4, node6 = "proc/sys/net/bridge/bridge-nf-call-iptables", "proc/sys/net/bridge/bridge-nf-call-ip6tables"
		own4, own6   = "sys/class/net/cni0/bridge/nf_call_iptables", "sys/class/net/cni0/bridge/nf_call_ip6tables"
		both         = "net.bridge.bridge-nf-call-iptables = 1, net.bridge.bridge-nf-call-ip6tables = 1"
	)
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"both off", map[string]string{node4: "0\n", node6: "0\n", own4: "0\n", own6: "0\n"}, ""},
		{"the namespace's", map[string]string{node4: "1\n", node6: "1\n", own4: "0\n", own6: "0\n"}, both},
		{"the namespace's, /sys of another one", map[string]string{node4: "1\n", node6: "1\n"}, both},
		{"one family", map[string]string{node4: "0\n", node6: "1\n"}, "net.bridge.bridge-nf-call-ip6tables = 1"},
		{"the bridge's", map[string]string{node4: "0\n", node6: "0\n", own4: "1\n", own6: "0\n"}, "/sys/class/net/cni0/bridge/nf_call_iptables = 1"},
		{"another bridge's", map[string]string{node4: "0\n", node6: "0\n", "sys/class/net/br0/bridge/nf_call_iptables": "1\n"}, ""},
		{"no module", map[string]string{own4: "1\n", own6: "1\n"}, ""},
	} {
		if got := CallsIPTables(tree(t, c.files), "cni0"); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// Write changes existing files and creates none.
func TestWriteMakesNoFiles(t *testing.T) {
	root := tree(t, nil)
	if err := Write(root, []Setting{{Path: "x", Want: "1"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want that it does not exist", err)
	}
}

func TestReadHost(t *testing.T) {
	cases := []struct {
		online, release string
		want            Host
	}{
		{"0-3\n", "5.10.0-28-amd64\n", Host{4, Version{5, 10}}},
		{"0,2-3,8\n", "6.18\n", Host{4, Version{6, 18}}},
		{"0\n", "4.19+", Host{1, Version{4, 19}}},
		{"", "", Host{7, Version{}}},
		{"3-1", "x.y", Host{7, Version{}}},
		{"0-x", "5", Host{7, Version{5, 0}}},
	}
	for _, c := range cases {
		root := tree(t, map[string]string{"sys/devices/system/cpu/online": c.online, "proc/sys/kernel/osrelease": c.release})
		if diff := cmp.Diff(c.want, ReadHost(root, 7)); diff != "" {
			t.Errorf("%q, %q (-want +got)\n%s", c.online, c.release, diff)
		}
	}
	if got := ReadHost(tree(t, nil), 3); got != (Host{CPUs: 3}) {
		t.Errorf("without files: got %v", got)
	}
}
