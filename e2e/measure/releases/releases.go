// Package releases records what releases of kube-proxy leave on a node for the objects and
// settings of testdata/apply/takeover, in modes nftables and iptables: the output of nft and
// iptables-save, without comments. It builds each release from its module, which takes minutes
// the first time.
//
//	go run ./measure releases -o ../testdata/prove v1.31.14 v1.37.2
package releases

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// settleTimeout is the timeout until kube-proxy's rules stay the same.
const settleTimeout = time.Minute

// Run is the scenario. Its arguments are the releases.
func Run(ctx context.Context, to *scenario.Run, args []string) error {
	out := to.Flags.String("o", "../testdata/prove", "directory that gets a directory of each release")
	from := to.Flags.String("from", "../testdata/apply/takeover", "directory with cluster.yaml and config.yaml")
	if err := to.Flags.Parse(args); err != nil {
		return err
	}
	objects, err := kube.Manifests(filepath.Join(*from, "cluster.yaml"))
	if err != nil {
		return err
	}
	settings, err := os.ReadFile(filepath.Join(*from, "config.yaml"))
	if err != nil {
		return err
	}
	cluster, err := kube.Start(ctx, to.Dir)
	if err != nil {
		return err
	}
	defer cluster.Close()
	if err := cluster.Apply(ctx, objects...); err != nil {
		return err
	}
	for _, release := range to.Flags.Args() {
		binary, err := build(ctx, release)
		if err != nil {
			return fmt.Errorf("building kube-proxy %s: %w", release, err)
		}
		for _, m := range modes {
			text := string(settings)
			if alpha.MatchString(release) {
				text += "featureGates: {NFTablesProxyMode: true}\n"
			}
			r := recorder{cluster: cluster, dir: to.Dir, binary: binary, settings: text, out: filepath.Join(*out, release)}
			if err := r.record(ctx, m); err != nil {
				return fmt.Errorf("kube-proxy %s in mode %s: %w", release, m.name, err)
			}
		}
	}
	return nil
}

// A mode is one of kube-proxy's.
type mode struct {
	name  string
	dumps map[string][]string // by file: the commands that show what it has written
}

var modes = []mode{
	{"nftables", map[string][]string{"kube-proxy.nft": {"nft", "list", "ruleset"}}},
	{"iptables", map[string][]string{"kube-proxy.iptables": {"iptables-save"}, "kube-proxy.ip6tables": {"ip6tables-save"}}},
}

// alpha matches releases in which mode nftables requires its gate (KEP-3866).
var alpha = regexp.MustCompile(`^v1\.(29|30)\.`)

// A recorder runs one release of kube-proxy.
type recorder struct {
	cluster                    *kube.Cluster
	dir, binary, settings, out string
}

// record runs kube-proxy on a node until its rules stay the same, and writes them.
func (r recorder) record(ctx context.Context, m mode) (err error) {
	topo, err := applytest.NewTopology()
	if err != nil {
		return err
	}
	defer topo.Close()
	node := topo.Namespace("node1")
	gate, err := r.cluster.Gate(node)
	if err != nil {
		return err
	}
	defer gate.Close()
	kubeconfig, err := gate.Kubeconfig(r.dir, kube.KubeProxyUser)
	if err != nil {
		return err
	}
	text := r.settings + "mode: " + m.name + "\nclientConnection: {kubeconfig: " + kubeconfig + "}\n"
	config := filepath.Join(r.dir, "config.yaml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	proxy, err := kube.StartProxy(node, r.dir, "kube-proxy", r.binary, "--config", config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.Kill()) }()
	if err := synced(ctx, proxy); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o777); err != nil {
		return err
	}
	for name, command := range m.dumps {
		text, err := settled(ctx, node, command)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, proxy.Tail())
		}
		if err := os.WriteFile(filepath.Join(r.out, name), text, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// synced waits until kube-proxy reports that it has written rules of both families.
func synced(ctx context.Context, proxy *kube.Proxy) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return kube.Until(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		_, metrics, err := proxy.Get(ctx, "http://127.0.0.1:10249/metrics")
		if err == nil && !written.MatchString(metrics) {
			err = errors.New("no sync yet")
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, proxy.Tail())
		}
		return nil
	})
}

// written matches a metric that counts seconds since 1970. Releases before 1.34 have one for both
// families.
var written = regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds(\{ip_family="IPv6"\})? 1\.\d+e\+09`)

// settled runs a command on the node until it prints the same twice, two seconds apart, and
// something of each Service. It returns the output without comments and counters.
func settled(ctx context.Context, node *applytest.Namespace, command []string) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err = kube.Until(ctx, 2*time.Second, func(ctx context.Context) error {
		before := text
		out, err := node.Run(node.Command(ctx, command[0], command[1:]...))
		if err != nil {
			return err
		}
		text = plain(out)
		switch {
		case !bytes.Contains(text, []byte("default/web")):
			return fmt.Errorf("%s prints nothing of Service default/web", strings.Join(command, " "))
		case !bytes.Equal(before, text):
			return fmt.Errorf("%s prints something else each time", strings.Join(command, " "))
		}
		return nil
	})
	return text, err
}

// counts matches counters of packets and bytes.
var counts = regexp.MustCompile(`packets \d+ bytes \d+|\[\d+:\d+\]`)

// plain returns a dump without what differs between runs: comment lines and counters.
func plain(dump []byte) []byte {
	lines := slices.DeleteFunc(strings.Split(string(dump), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "# ")
	})
	return []byte(counts.ReplaceAllStringFunc(strings.Join(lines, "\n"), func(s string) string {
		if strings.HasPrefix(s, "[") {
			return "[0:0]"
		}
		return "packets 0 bytes 0"
	}))
}

// build builds a release of kube-proxy in the user's cache, unless it is there.
func build(ctx context.Context, release string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "proxyc-releases", release)
	binary := filepath.Join(dir, "kube-proxy")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	if err := writeModule(ctx, dir, release); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"mod", "tidy"},
		{"build", "-ldflags", "-X k8s.io/component-base/version.gitVersion=" + release, "-o", binary, kube.KubeProxy},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return binary, nil
}

// staged matches the modules that the go.mod of Kubernetes replaces by directories of its tree.
// Elsewhere they have their own versions: v0.31.14 for v1.31.14.
var staged = regexp.MustCompile(`(?m)^\s*(?:replace )?(k8s\.io/\S+) => \./staging/`)

// writeModule writes a module into dir that depends on a release of kube-proxy.
func writeModule(ctx context.Context, dir, release string) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.GoMod}}", "k8s.io/kubernetes@"+release)
	cmd.Stderr = os.Stderr
	file, err := cmd.Output()
	if err != nil {
		return err
	}
	theirs, err := os.ReadFile(strings.TrimSpace(string(file)))
	if err != nil {
		return err
	}
	module := "module releases\n\ngo 1.26\n\nrequire k8s.io/kubernetes " + release + "\n"
	for _, m := range staged.FindAllStringSubmatch(string(theirs), -1) {
		module += "replace " + m[1] + " => " + m[1] + " v0." + strings.TrimPrefix(release, "v1.") + "\n"
	}
	tools := "//go:build tools\n\npackage releases\n\nimport _ \"" + kube.KubeProxy + "\"\n"
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o666),
		os.WriteFile(filepath.Join(dir, "tools.go"), []byte(tools), 0o666))
}
