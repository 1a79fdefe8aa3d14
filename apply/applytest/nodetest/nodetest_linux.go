package nodetest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/ir"
)

// Exit codes of proxyc.
const ExitDone, ExitFindings, ExitBad = 0, 1, 2

// Ports of the daemon in a node's network.
const MetricsPort, HealthPort = 10249, 10256

var given = flag.String("proxyc", "", "binary to use; built from this module when empty")

var program struct {
	once sync.Once
	dir  string
	err  error
}

type runner func() int

func (r runner) Run() int { return r() }

// Main is TestMain of a package whose tests call [New] or [Program]. Tests can start the commands
// by their names.
func Main(m *testing.M, commands map[string]func()) {
	testscript.Main(runner(func() int {
		defer func() { os.RemoveAll(program.dir) }()
		return m.Run()
	}), commands)
}

// Program builds proxyc and adds it to PATH, under all of its names. go run keeps it in Go's cache,
// so only the first package links it.
func Program(t testing.TB) {
	t.Helper()
	program.once.Do(func() { program.err = build() })
	if program.err != nil {
		t.Fatalf("build proxyc: %v", program.err)
	}
}

func build() (err error) {
	if program.dir, err = os.MkdirTemp("", "proxyc-"); err != nil {
		return err
	}
	if err := os.Chmod(program.dir, 0o755); err != nil { // other users run it, too
		return err
	}
	file := filepath.Join(program.dir, "proxyc")
	if *given != "" {
		err = os.Symlink(*given, file)
	} else if out, failure := exec.Command("go", "run", "-exec", "cp", "github.com/proxyc/proxyc/cmd/proxyc", file).CombinedOutput(); failure != nil {
		err = fmt.Errorf("%w\n%s", failure, out)
	}
	if err != nil {
		return err
	}
	os.Setenv("PATH", program.dir+":"+os.Getenv("PATH"))
	return os.Symlink(file, filepath.Join(program.dir, "kube-proxy"))
}

// Config is a configuration of a mode that keeps the settings of the machine, and syncs immediately.
const Config = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 0s, localhostNodePorts: false}
nftables: {minSyncPeriod: 0s}
logging: {verbosity: 4}
`

const NodePort = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4],
  ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.10], nodeName: node1}]
ports: [{port: 8080, name: ""}]
`

// A Daemon is proxyc in a network namespace of its own.
type Daemon struct {
	T     *testing.T
	NS    *applytest.Namespace
	Dir   string
	Args  []string
	Env   []string // in addition to that of the test
	CWD   string   // the daemon's; empty: the test's
	Plane Plane

	Process *os.Process
	Started time.Time // of the process
	Wait    func() error
	Log     *applytest.Buffer
}

// A Plane is a way in which a daemon can write rules, with the command that lists them, and
// commands that remove some.
type Plane struct {
	Mode, Variant string
	list          []string
	Flushes       []Flush
}

// A Flush is a command that removes rules or settings of the daemon.
type Flush struct {
	Command string
	Late    bool // no notification from the kernel: found by comparison
}

// Planes are those that every kernel has, and ipvs.
var Planes = map[string]Plane{
	"nftables":        {"nftables", "", []string{"nft", "list", "ruleset"}, []Flush{{"nft flush ruleset", false}}},
	"iptables-nft":    {"iptables", "nft", []string{"iptables-nft-save"}, []Flush{{"iptables-nft -t nat -F", false}}},
	"iptables-legacy": {"iptables", "legacy", []string{"iptables-legacy-save"}, []Flush{{"iptables-legacy -t nat -F", false}}},
	"ipvs": {"ipvs", "nft", []string{"ip", "-o", "addr"}, []Flush{
		{"ip link del " + ir.IPVSDevice, false},
		{"ip addr del 10.96.0.97/32 dev " + ir.IPVSDevice, false},
		{"iptables-nft -t nat -F", false},
		{"ipvsadm -C; ipset flush KUBE-CLUSTER-IP", true},
	}},
}

// New returns a node with a configuration of the plane. It skips the test if the kernel has no ip_vs
// and the plane needs it.
func New(t *testing.T, plane string) *Daemon {
	t.Helper()
	if Planes[plane].Mode == "ipvs" && !applytest.HaveIPVS(t) {
		t.Skip("the kernel has no ip_vs")
	}
	Program(t)
	d := &Daemon{T: t, NS: applytest.RequireNamespace(t), Dir: t.TempDir(), Plane: Planes[plane], Log: &applytest.Buffer{}}
	d.Args = []string{"-c", d.File("config"), "-s", d.File("cluster.yaml"), "--hostname-override", "node1"}
	if variant := d.Plane.Variant; variant != "" {
		d.Args = append(d.Args, "--iptables-variant="+variant)
	}
	d.Write("config", fmt.Sprintf(Config, d.Plane.Mode))
	d.Must("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1") // as on each node of a cluster
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("log of the daemon:\n" + d.Log.String())
		}
	})
	return d
}

// Applied returns a node with a network of pods that has the rules of one Service.
func Applied(t *testing.T, plane string) *Daemon {
	t.Helper()
	d := New(t, plane)
	d.Forward()
	d.Write("cluster.yaml", applytest.Services("a")+"---\n{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n")
	d.Must("proxyc apply " + strings.Join(d.Args, " "))
	return d
}

// Each runs a test in each plane that the kernel has.
func Each(t *testing.T, test func(t *testing.T, plane string)) {
	ipvs := applytest.HaveIPVS(t)
	for name, plane := range Planes {
		if plane.Mode == "ipvs" && !ipvs {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}

// File returns the path of a file of the node.
func (d *Daemon) File(name string) string { return filepath.Join(d.Dir, name) }

// Write replaces a file in one step.
func (d *Daemon) Write(name, text string) {
	d.T.Helper()
	next := d.File(name + ".next")
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		d.T.Fatal(err)
	}
	if err := os.Rename(next, d.File(name)); err != nil {
		d.T.Fatal(err)
	}
}

// Start starts the daemon under a name.
func (d *Daemon) Start(name string, args ...string) {
	d.T.Helper()
	cmd := d.NS.Command(context.Background(), name, append(args, d.Args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = d.Log, d.Log, d.CWD
	cmd.Env = append(os.Environ(), d.Env...)
	began := time.Now()
	wait, err := d.NS.Start(cmd)
	if err != nil {
		d.T.Fatal(err)
	}
	d.Process, d.Started, d.Wait = cmd.Process, began, sync.OnceValue(wait)
	d.T.Cleanup(func() { d.Process.Kill(); d.Wait() })
}

// Sync starts the daemon with a snapshot, and waits for the first sync.
func (d *Daemon) Sync(cluster string) {
	d.T.Helper()
	d.Write("cluster.yaml", cluster)
	d.Start("proxyc", "watch")
	d.Until("first sync", Synced)
}

// Stop ends the daemon, and returns how long that took.
func (d *Daemon) Stop(signal os.Signal) time.Duration {
	d.T.Helper()
	began := time.Now()
	d.Process.Signal(signal)
	if err := d.Wait(); signal == syscall.SIGTERM && err != nil {
		d.T.Errorf("the daemon ended with %v", err)
	}
	return time.Since(began)
}

// Until waits for a status that satisfies holds.
func (d *Daemon) Until(what string, holds func(status.Status) bool) (st status.Status) {
	d.T.Helper()
	applytest.Until(d.T, 0, what, func() (ok bool) {
		st, ok = d.Status()
		return ok && holds(st)
	})
	return st
}

// Synced reports whether all changes are in the rules.
func Synced(st status.Status) bool { return st.Synced && st.Pending == 0 }

// Status asks the daemon once; it may not exist yet.
func (d *Daemon) Status() (st status.Status, ok bool) {
	code, body, err := d.Get(MetricsPort, status.StatusPath)
	return st, err == nil && code == http.StatusOK && json.Unmarshal([]byte(body), &st) == nil
}

// Get asks the daemon over HTTP, in its namespace.
func (d *Daemon) Get(port int, path string) (code int, body string, err error) {
	return d.NS.Get(context.Background(), port, path)
}

// Rules lists the rules of the node.
func (d *Daemon) Rules() string {
	d.T.Helper()
	out, code := d.Run(d.Plane.list[0], d.Plane.list[1:]...)
	if code != 0 {
		d.T.Fatal(out)
	}
	return out
}

// Has reports whether the rules contain a Service of [applytest.Services].
func (d *Daemon) Has(name string) bool {
	return strings.Contains(d.Rules(), fmt.Sprintf("10.96.0.%d", name[0]))
}

// Holds waits until the rules contain a Service, or do not.
func (d *Daemon) Holds(limit time.Duration, name string, want bool) {
	d.T.Helper()
	applytest.Until(d.T, limit, fmt.Sprintf("Service %s in the rules: %t", name, want), func() bool { return d.Has(name) == want })
}

// Proxyc runs a verb on the node, with its configuration.
func (d *Daemon) Proxyc(verb string, args ...string) (out string, code int) {
	return d.Run("proxyc", slices.Concat([]string{verb}, d.Args, args)...)
}

// Run runs a command in the namespace, and returns its output and exit code.
func (d *Daemon) Run(name string, args ...string) (string, int) {
	cmd := d.NS.Command(d.T.Context(), name, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	d.NS.Run(cmd) // the exit code contains more than the error
	return out.String(), cmd.ProcessState.ExitCode()
}

// Must runs commands of the shell in the namespace.
func (d *Daemon) Must(commands ...string) {
	d.T.Helper()
	for _, command := range commands {
		if out, code := d.Run("sh", "-ec", command); code != 0 {
			d.T.Fatalf("%s: exit %d\n%s", command, code, out)
		}
	}
}

// Forward gives the node a network of pods, and a route to all other addresses.
func (d *Daemon) Forward() {
	d.T.Helper()
	d.Must("ip link set lo up; ip addr add 192.0.2.11/32 dev lo; ip addr add 2001:db8:0:1::11/128 dev lo", "ip link add cni0 type veth peer pod0; ip link set pod0 up; ip addr add 10.244.1.1/24 dev cni0; ip link set cni0 up; ip route add default dev cni0",
		"ip addr add fd00:10:244:1::1/64 dev cni0 nodad; ip -6 route add default dev cni0")
}

// Demo writes the demo's files into a directory, with settings that a network
// namespace can have: the size of the kernel's table of connections is the machine's.
func Demo(t testing.TB, dir string) {
	t.Helper()
	Program(t)
	if out, err := exec.Command("proxyc", "demo", "--write", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	name := filepath.Join(dir, "config.yaml")
	config, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, append(config, "conntrack: {maxPerCore: 0, min: 0}\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
