package peer

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/e2e/measure/sample"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// A mode is a mode of the proxies, and the variant of iptables that they call.
type mode struct {
	proxy   string // as KubeProxyConfiguration names it
	variant string // as proxyc names it
	tools   string // the program behind iptables
}

var modes = map[string]mode{
	"nftables":        {proxy: "nftables"},
	"ipvs":            {proxy: "ipvs", variant: "nft", tools: "xtables-nft-multi"},
	"iptables-nft":    {proxy: "iptables", variant: "nft", tools: "xtables-nft-multi"},
	"iptables-legacy": {proxy: "iptables", variant: "legacy", tools: "xtables-legacy-multi"},
}

// A program is one of the programs that are compared.
type program struct {
	name   string
	user   string // for the API server
	binary string
	args   func(mode) []string // in addition to the configuration
}

// The programs' names in reports.
const (
	peerName   = "kube-proxy"
	proxycName = "proxyc"
)

// programs finds or builds both.
func programs(ctx context.Context, r *scenario.Run) (peer, own program, err error) {
	peer = program{name: peerName, user: kube.KubeProxyUser, args: func(mode) []string { return nil }}
	own = program{name: proxycName, user: kube.ProxycUser, args: func(m mode) []string {
		return []string{"--iptables-variant", cmp.Or(m.variant, "auto")}
	}}
	peer.binary, err = kube.Tool(ctx, kube.KubeProxy)
	if err == nil {
		own.binary, err = r.Proxyc(ctx)
	}
	return peer, own, err
}

// setup is the input of a program's start.
type setup struct {
	program
	mode
	dir     string
	minSync time.Duration
}

// start writes the program's configuration and starts it on the lab's node.
func (s setup) start(l *lab) (*kube.Proxy, error) {
	kubeconfig, err := l.gate.Kubeconfig(s.dir, s.user)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, s.name+".yaml")
	if err := os.WriteFile(file, []byte(s.config(kubeconfig)), 0o600); err != nil {
		return nil, err
	}
	path, err := s.path()
	if err != nil {
		return nil, err
	}
	args := []string{"PATH=" + path, s.binary}
	if s.name == proxycName {
		args = append(args, "watch")
	}
	args = append(append(args, "--config", file), s.args(s.mode)...)
	return kube.StartProxy(l.node, s.dir, s.name, "env", args...)
}

// config returns the configuration, which is the same for both except for the kubeconfig.
func (s setup) config(kubeconfig string) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %s}
hostnameOverride: %s
clusterCIDR: %s
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
iptables: {minSyncPeriod: %[5]s, localhostNodePorts: false}
nftables: {minSyncPeriod: %[5]s}
ipvs: {minSyncPeriod: %[5]s}
# A namespace of its own may not set these.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, s.proxy, kubeconfig, nodeName, podRange, s.minSync)
}

// path returns a PATH with the iptables of the mode.
func (s setup) path() (string, error) {
	if s.tools == "" {
		return os.Getenv("PATH"), nil
	}
	binary, err := exec.LookPath(s.tools)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.dir, s.tools)
	err = os.MkdirAll(dir, 0o755)
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			link := os.Symlink(binary, filepath.Join(dir, family+verb))
			if !errors.Is(link, os.ErrExist) {
				err = errors.Join(err, link)
			}
		}
	}
	return dir + ":" + os.Getenv("PATH"), err
}

// last returns the Service whose rules a packet reaches last. In mode iptables, the rules of
// kube-proxy are evaluated one after the other, in an order that changes with each sync. In other
// modes the position is irrelevant, and any Service will do.
func (s setup) last(ctx context.Context, l *lab) (netip.AddrPort, error) {
	last := canaryAddr(canary)
	if s.name != peerName || s.proxy != "iptables" {
		return last, nil
	}
	rules, err := l.node.Run(l.node.Command(ctx, s.tools, "iptables-save", "-t", "nat"))
	if err != nil {
		return last, err
	}
	for line := range strings.Lines(string(rules)) {
		words := strings.Fields(line)
		if len(words) < 4 || words[1] != "KUBE-SERVICES" || words[2] != "-d" || !strings.Contains(line, "--dport 80 ") {
			continue
		}
		if prefix, err := netip.ParsePrefix(words[3]); err == nil && clusterIPs.Contains(prefix.Addr()) {
			last = netip.AddrPortFrom(prefix.Addr(), 80)
		}
	}
	return last, nil
}

var clusterIPs = netip.MustParsePrefix("10.96.0.0/12")

// versions describes the machine and the programs.
func versions(ctx context.Context, peer, own program) map[string]string {
	m := sample.ThisMachine()
	out := map[string]string{"Go": m.Go, "CPU": fmt.Sprintf("%d x %s", m.CPUs, m.Model), "kernel": m.Kernel,
		"nft": firstLine(ctx, "nft", "--version"), "iptables-nft": firstLine(ctx, "xtables-nft-multi", "iptables", "--version"),
		"iptables-legacy": firstLine(ctx, "xtables-legacy-multi", "iptables", "--version"),
		"proxyc":          firstLine(ctx, own.binary, "version"), "kube-proxy": "unknown"}
	if info, err := buildinfo.ReadFile(peer.binary); err == nil {
		out["kube-proxy"] = info.Main.Version
	}
	return out
}

// firstLine returns the first line of a command's output.
func firstLine(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}
