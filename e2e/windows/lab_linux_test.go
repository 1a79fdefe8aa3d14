package windows

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/hns/hnstest"
	"github.com/proxyc/proxyc/e2e/kube"
)

const (
	wine64     = "/usr/lib/wine/wine64"
	wineserver = "/usr/lib/wine/wineserver64"
	compiler   = "x86_64-w64-mingw32-gcc"
)

var (
	proxycFlag = flag.String("proxyc", "", "proxyc.exe to use; built from the module above when empty")
	peerFlag   = flag.String("kube-proxy", "", "kube-proxy.exe to use; built from its module when empty")
)

// lab is shared by all tests: a node, wine on it, an API server, and the programs.
type lab struct {
	dir     string
	prefix  string   // wine's directory
	inUse   *os.File // its lock, if held
	node    *applytest.Namespace
	hostMAC string
	cluster *kube.Cluster
	gate    *kube.Gate
	proxyc  string
	marks   int // number of moves of the mark
}

var theLab *lab // nil if it cannot be made, and tests are skipped

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := withLab(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// required reports whether the environment forbids skipping these tests.
func required() bool {
	for name := range strings.SplitSeq(os.Getenv("PROXYC_REQUIRE"), ",") {
		if name == "wine" || name == "all" {
			return true
		}
	}
	return false
}

func withLab(run func() int) (code int, err error) {
	for _, tool := range []string{wine64, wineserver, compiler} {
		if _, err := exec.LookPath(tool); err != nil {
			if required() {
				return 1, fmt.Errorf("%s is needed (make setup-windows): %w", tool, err)
			}
			return run(), nil
		}
	}
	dir, err := os.MkdirTemp("", "proxyc-windows-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // the tools may have to be built
	defer cancel()
	l := &lab{dir: dir}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.open(ctx); err != nil {
		return 1, err
	}
	theLab = l
	return run(), nil
}

// inLab returns the lab, or skips the test.
func inLab(t *testing.T) *lab {
	t.Helper()
	if theLab == nil {
		t.Skip("needs wine64 and a compiler for Windows: make setup-windows")
	}
	return theLab
}

func (l *lab) open(ctx context.Context) (err error) {
	if l.node, err = applytest.NewNamespace("windows-node"); err != nil {
		return err
	}
	if err := l.addInterface(); err != nil {
		return err
	}
	if err := l.openWine(ctx); err != nil {
		return err
	}
	if l.proxyc = *proxycFlag; l.proxyc == "" {
		root, err := kube.Root(ctx)
		if err != nil {
			return err
		}
		l.proxyc = filepath.Join(l.dir, "proxyc.exe")
		if err := buildForWindows(ctx, root, l.proxyc, "./cmd/proxyc"); err != nil {
			return err
		}
	}
	if l.cluster, err = kube.Start(ctx, l.dir); err != nil {
		return err
	}
	rbac, err := kube.Manifests("../../docs/deploy/rbac.yaml")
	if err != nil {
		return err
	}
	if err := l.cluster.Apply(ctx, rbac...); err != nil {
		return err
	}
	l.gate, err = l.cluster.Gate(l.node)
	return err
}

func (l *lab) close() (err error) {
	if l.prefix != "" {
		err = l.wine(context.Background(), wineserver, "-k").Run()
		err = nil // it may have ended by itself
	}
	if l.inUse != nil {
		err = errors.Join(err, l.inUse.Close())
	}
	if l.gate != nil {
		err = errors.Join(err, l.gate.Close())
	}
	if l.cluster != nil {
		err = errors.Join(err, l.cluster.Close())
	}
	if l.node != nil {
		err = errors.Join(err, l.node.Close())
	}
	return err
}

// addInterface gives the node its address.
func (l *lab) addInterface() error {
	nl := l.node.Netlink()
	if err := nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "lan"}); err != nil {
		return err
	}
	lan, err := nl.LinkByName("lan")
	if err != nil {
		return err
	}
	found, err := nl.LinkByName("eth0")
	if err != nil {
		return err
	}
	l.hostMAC = found.Attrs().HardwareAddr.String()
	addr, err := netlink.ParseAddr("192.0.2.11/24")
	if err != nil {
		return err
	}
	return errors.Join(nl.AddrAdd(found, addr), nl.LinkSetUp(lan), nl.LinkSetUp(found))
}

// openWine creates wine's directory, which takes half a minute, or reuses that of an earlier run.
// It always rebuilds the libraries.
func (l *lab) openWine(ctx context.Context) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	version, err := exec.CommandContext(ctx, wine64, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s: %w", wine64, err)
	}
	l.prefix = filepath.Join(cache, fmt.Sprintf("proxyc-wine-%x", sha256.Sum256(version))[:24])
	if err := os.MkdirAll(l.prefix, 0o700); err != nil {
		return err
	}
	if l.inUse, err = lockFile(filepath.Join(l.prefix, "in-use")); err != nil {
		return err
	}
	_ = l.wine(ctx, wineserver, "-k").Run() // one of another namespace
	system := filepath.Join(l.prefix, "drive_c/windows/system32")
	if _, err := os.Stat(filepath.Join(l.prefix, "made")); err != nil {
		if out, err := l.node.Run(l.wine(ctx, wine64, "wineboot", "-i")); err != nil {
			return fmt.Errorf("wineboot: %w: %s", err, out)
		}
		if err := os.WriteFile(filepath.Join(l.prefix, "made"), nil, 0o600); err != nil {
			return err
		}
	}
	for _, dll := range []struct{ name, source, libraries string }{
		{"bcryptprimitives", "bcryptprimitives", "-ladvapi32"},
		{"computenetwork", "computenetwork", "-lole32 -lws2_32"},
		{"vmcompute", "computenetwork", "-lole32 -lws2_32"},
	} {
		args := append([]string{"-Wall", "-Werror", "-O1", "-shared", "-o", filepath.Join(system, dll.name+".dll"), "dll/" + dll.source + ".c"},
			strings.Fields(dll.libraries)...)
		if out, err := exec.CommandContext(ctx, compiler, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s.dll: %w: %s", dll.name, err, out)
		}
	}
	return nil
}

// lockFile waits until it has locked a file. The lock lasts as long as the file is open: two
// tests cannot share one wine.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// wine returns a command that runs a program of wine, or under it.
func (l *lab) wine(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := l.node.Command(ctx, program, args...)
	cmd.Env = append(os.Environ(), "WINEPREFIX="+l.prefix, "WINEDEBUG=-all")
	return cmd
}

// proxycExe returns a command that runs proxyc.exe on a host.
func (l *lab) proxycExe(ctx context.Context, h *host, args ...string) *exec.Cmd {
	cmd := l.wine(ctx, wine64, append([]string{l.proxyc}, args...)...)
	cmd.Env = append(cmd.Env, h.env()...)
	return cmd
}

// start starts a program against a host.
func (l *lab) start(h *host, dir, name, program string, args ...string) (*kube.Proxy, error) {
	env := append([]string{"WINEPREFIX=" + l.prefix, "WINEDEBUG=-all"}, h.env()...)
	return kube.StartProxy(l.node, dir, name, "env", append(append(env, wine64, program), args...)...)
}

func buildForWindows(ctx context.Context, dir, to, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, pkg)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s for Windows: %w", pkg, err)
	}
	return nil
}

// windowsPath returns the path by which programs under wine open a file of this machine.
func windowsPath(path string) string { return `Z:` + strings.ReplaceAll(path, "/", `\`) }

// host is a Windows host as in the records.
type host struct {
	*hnstest.Service
	lab       *lab
	listener  net.Listener
	balancers sync.Map // last change by address
	more      []string // additional environment
}

// kinds of hosts, by the network of the cluster.
const (
	l2bridge = "L2Bridge"
	overlay  = "Overlay"
)

// newHost starts a host with the pods of node1.
func (l *lab) newHost(t *testing.T, w world) *host {
	t.Helper()
	s := hnstest.New(w.version)
	n := hnstest.Network{Name: "l2", Type: w.kind, Ipams: hnstest.Subnets("10.244.1.0/24", "fd00:10:244:1::/64")}
	if w.kind == overlay {
		n.Policies = []hnstest.Policy{hnstest.RemoteSubnet("10.244.2.0/24", "192.0.2.12")}
	}
	network := s.AddNetwork(n)
	four, six := applytest.HNSPods(applytest.IPv4), applytest.HNSPods(applytest.IPv6)
	for i := range four {
		addrs := []netip.Addr{four[i]}
		if w.dualStack() {
			addrs = append(addrs, six[i])
		}
		s.AddPod(network, addrs...)
	}
	h := &host{Service: s, lab: l}
	s.After = func(c hnstest.Call) uint32 {
		var made struct{ FrontendVIPs []string }
		if (c.Name == "CreateLoadBalancer" || c.Name == "ModifyLoadBalancer") && json.Unmarshal([]byte(c.Text), &made) == nil {
			for _, vip := range made.FrontendVIPs {
				h.balancers.Store(vip, time.Now())
			}
		}
		return 0
	}
	err := l.node.Do(func() (err error) {
		h.listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(h.listener)
	t.Cleanup(func() { h.listener.Close() })
	return h
}

// made returns when a load balancer of an address was last created or modified.
func (h *host) made(vip string) (time.Time, bool) {
	at, ok := h.balancers.Load(vip)
	if !ok {
		return time.Time{}, false
	}
	return at.(time.Time), true
}

func (h *host) env() []string {
	return append([]string{"KUBE_NETWORK=l2", fmt.Sprintf("HCN_PORT=%d", h.listener.Addr().(*net.TCPAddr).Port)}, h.more...)
}
