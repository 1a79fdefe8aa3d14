package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// Paths in kube-proxy's container, by convention.
const (
	configDir    = "/var/lib/kube-proxy"
	bootDir      = "/var/lib/proxyc"
	accountDir   = "/run/secrets/kubernetes.io/serviceaccount"
	peerPath     = "/usr/local/bin/kube-proxy"
	conntrackMax = "/proc/sys/net/netfilter/nf_conntrack_max"
)

// commandLines are common command lines of kube-proxy, all for the same container. $(NODE_NAME)
// is the node's name, $(MASTER) the API server.
var commandLines = []struct {
	name string
	args string
	mode string
	// removed means that today's kube-proxy lacks one of the flags.
	removed bool
	short   bool // also run without -tags all
}{
	{name: "kubeadm", short: true, mode: "iptables", args: "--config=/var/lib/kube-proxy/config.conf --hostname-override=$(NODE_NAME)"},
	{name: "EKS", mode: "iptables", args: "--v=2 --config=/var/lib/kube-proxy/config.conf --hostname-override=$(NODE_NAME)"},
	{name: "k3s", mode: "iptables", args: "--cluster-cidr=10.244.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s " +
		"--conntrack-tcp-timeout-established=0s --healthz-bind-address=127.0.0.1 --hostname-override=$(NODE_NAME) " +
		"--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf --proxy-mode=iptables"},
	{name: "kops", mode: "iptables", args: "--cluster-cidr=10.244.0.0/16 --conntrack-max-per-core=131072 --hostname-override=$(NODE_NAME) " +
		"--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf --master=$(MASTER) --oom-score-adj=-998 --v=2"},
	{name: "GKE", mode: "iptables", args: "--master=$(MASTER) --kubeconfig=/var/lib/kube-proxy/kubeconfig.conf --cluster-cidr=10.244.0.0/16 " +
		"--detect-local-mode=NodeCIDR --oom-score-adj=-998 --v=2 --feature-gates=ContextualLogging=true,ComponentStatusz=true,RotateKubeletServerCertificate=true " +
		"--iptables-sync-period=1m --iptables-min-sync-period=10s --ipvs-sync-period=1m --ipvs-min-sync-period=10s " +
		"--hostname-override=$(NODE_NAME)"},
	{name: "AKS", mode: "iptables", args: "--conntrack-max-per-core=0 --metrics-bind-address=0.0.0.0:10249 " +
		"--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf --cluster-cidr=10.244.0.0/16 --detect-local-mode=ClusterCIDR " +
		"--pod-interface-name-prefix= --v=3 --hostname-override=$(NODE_NAME)"},
	{name: "nftables by flag", short: true, mode: "nftables", args: "--kubeconfig /var/lib/kube-proxy/kubeconfig.conf --proxy_mode nftables " +
		"--nodeport-addresses 192.0.2.0/24 --masquerade-all --profiling --logging-format json --hostname-override $(NODE_NAME)"},
	{name: "1.14", short: true, mode: "iptables", removed: true, args: "--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf --cluster-cidr=10.244.0.0/16 " +
		"--logtostderr=true --stderrthreshold=INFO --resource-container= --proxy-port-range=0-0 --udp-timeout=250ms --conntrack-max=0 " +
		"--healthz-port=10256 --cleanup-ipvs=true --hostname-override=$(NODE_NAME) --v=2"},
}

// TestCommandLines starts proxyc under kube-proxy's name and with its arguments, and compares it
// with a real kube-proxy that has the same command line.
func TestCommandLines(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	peer, err := kube.Tool(ctx, kube.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	put(ctx, t, dropinNode(), service("dropin", "10.96.2.1"), slice("dropin", "10.244.1.10"))
	for _, line := range commandLines {
		t.Run(line.name, func(t *testing.T) {
			if !line.short {
				applytest.Long(t)
			}
			n := newNode(t)
			replace := strings.NewReplacer("$(NODE_NAME)", "node1", "$(MASTER)", "https://"+n.gate.Addr())
			args := strings.Fields(replace.Replace(line.args))
			for _, p := range []struct{ name, binary, user string }{{"proxyc", proxyc, kube.KubeProxyUser}, {"kube-proxy", peer, kube.KubeProxyUser}} {
				started := n.runAs(t, p.name, n.container(t, p.binary, p.user), append([]string{peerPath}, args...)...)
				if p.binary == peer && line.removed {
					if err := started.Wait(ctx); err == nil || !strings.Contains(started.Tail(), "unknown flag") {
						t.Errorf("kube-proxy supports all of these flags: %v\n%s", err, started.Tail())
					}
					continue
				}
				n.works(ctx, t, started, line.mode, "10.96.2.1")
				if took, err := started.Stop(); p.binary == proxyc && (err != nil || took > applytest.StopTimeout) {
					t.Errorf("ended after %s: %v", took, err)
				}
			}
		})
	}
}

// works waits until a proxy reports that it is healthy in a mode, and until the kernel has the
// address of a Service.
func (n *node) works(ctx context.Context, t *testing.T, p *kube.Proxy, mode, addr string) {
	t.Helper()
	eventually(t, 20*time.Second, p.Name, func() error {
		for url, want := range map[string]string{
			"http://127.0.0.1:10256/healthz":   `"healthy":true`,
			"http://127.0.0.1:10256/livez":     `"healthy":true`,
			"http://127.0.0.1:10249/proxyMode": mode,
			"http://127.0.0.1:10249/metrics":   "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
		} {
			code, body, err := p.Get(ctx, url)
			if err != nil || code != 200 || !strings.Contains(body, want) {
				return fmt.Errorf("GET %s: want 200 with %s, got %d %.300s, %v\n%s", url, want, code, body, err, p.Tail())
			}
		}
		if rules := n.rules(ctx, t, mode); !strings.Contains(rules, addr) {
			return fmt.Errorf("%s is not in the rules of mode %s:\n%s", addr, mode, rules)
		}
		return nil
	})
}

// rules lists the rules of the node.
func (n *node) rules(ctx context.Context, t *testing.T, mode string) string {
	t.Helper()
	tool := []string{"nft", "list", "ruleset"}
	if mode == "iptables" {
		tool = []string{"iptables-save"}
	}
	out, err := n.Run(n.Command(ctx, tool[0], tool[1:]...))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// container returns the container of kubeadm's kube-proxy, with an executable in the place of
// kube-proxy and with a user's account.
func (n *node) container(t *testing.T, binary, user string) *kube.Container {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"account/token": user, "account/namespace": "kube-system", "max": "65536\n", "hashsize": "262144\n", "xtables.lock": "",
	}
	for name, text := range configFiles(t) {
		files["config/"+name] = strings.ReplaceAll(text, "127.0.0.1:6443", n.gate.Addr())
	}
	ca, err := os.ReadFile(n.cluster.CA())
	if err != nil {
		t.Fatal(err)
	}
	files["account/ca.crt"] = string(ca)
	for name, text := range files {
		writeFile(t, filepath.Join(dir, name), text)
	}
	for _, empty := range []string{"run", "lib/proxyc", "bin"} {
		if err := os.MkdirAll(filepath.Join(dir, empty), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"bin/kube-proxy": binary, "bin/proxyc": binary, "lib/kube-proxy": filepath.Join(dir, "config"),
		"run/secrets/kubernetes.io/serviceaccount": filepath.Join(dir, "account")} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755), os.Symlink(to, filepath.Join(dir, link))); err != nil {
			t.Fatal(err)
		}
	}
	return &kube.Container{Files: map[string]string{
		filepath.Dir(configDir): filepath.Join(dir, "lib"),
		"/run":                  filepath.Join(dir, "run"),
		filepath.Dir(peerPath):  filepath.Join(dir, "bin"),
		// Settings of the machine, which other tests and programs need unchanged.
		conntrackMax: filepath.Join(dir, "max"),
		"/sys/module/nf_conntrack/parameters/hashsize": filepath.Join(dir, "hashsize"),
	}}
}

// configFiles returns the files of kubeadm's ConfigMap.
func configFiles(t *testing.T) map[string]string {
	t.Helper()
	objects, err := kube.Manifests("../testdata/dropin/kubeadm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for name, text := range objects[0]["data"].(kube.Object) {
		files[name] = text.(string)
	}
	return files
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// runAs runs a command in a container on the node until the test ends.
func (n *node) runAs(t *testing.T, name string, c *kube.Container, command ...string) *kube.Proxy {
	t.Helper()
	binary, args := c.Command(command...)
	p, err := kube.StartProxy(n.Namespace, n.dir, name, binary, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return p
}

// put creates objects that exist until the test ends.
func put(ctx context.Context, t *testing.T, objects ...kube.Object) {
	t.Helper()
	if err := clusterOf(t).Apply(ctx, objects...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clusterOf(t).Delete(context.WithoutCancel(ctx), objects...); err != nil {
			t.Error(err)
		}
	})
}

func dropinNode() kube.Object {
	return kube.Object{"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": "node1"},
		"spec":   kube.Object{"podCIDR": "10.244.1.0/24", "podCIDRs": []any{"10.244.1.0/24"}},
		"status": kube.Object{"addresses": []any{kube.Object{"type": "InternalIP", "address": "192.0.2.11"}}}}
}

// slice returns an EndpointSlice of a Service, with port 8080.
func slice(service string, addrs ...string) kube.Object {
	var endpoints []any
	for _, a := range addrs {
		endpoints = append(endpoints, kube.Object{"addresses": []any{a}, "conditions": kube.Object{"ready": true}, "nodeName": "node1"})
	}
	return kube.Object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  kube.Object{"name": service + "-1", "namespace": "default", "labels": kube.Object{"kubernetes.io/service-name": service}},
		"endpoints": endpoints, "ports": []any{kube.Object{"name": "", "port": 8080, "protocol": "TCP"}}}
}

// TestOneShots checks the command lines with which kube-proxy does one thing and ends.
func TestOneShots(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	put(ctx, t, dropinNode(), service("oneshot", "10.96.2.2"), slice("oneshot", "10.244.1.10"))
	n := newNode(t)
	c := n.container(t, proxyc, kube.KubeProxyUser)
	once := func(args ...string) {
		t.Helper()
		p := n.runAs(t, "once", c, append([]string{peerPath, "--config=" + configDir + "/config.conf", "--hostname-override=node1"}, args...)...)
		if err := p.Wait(ctx); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, p.Tail())
		}
	}
	once("--init-only")
	if most, err := os.ReadFile(c.Files[conntrackMax]); err != nil || strings.HasPrefix(string(most), "65536") {
		t.Errorf("--init-only left nf_conntrack_max as it was: %s, %v", most, err)
	}
	if rules := n.rules(ctx, t, "iptables"); strings.Contains(rules, "KUBE-") {
		t.Errorf("--init-only wrote rules:\n%s", rules)
	}
	written := filepath.Join(t.TempDir(), "config.yaml")
	once("--write-config-to=" + written)
	peer, err := kube.Tool(ctx, kube.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	real := n.runAs(t, "kube-proxy", n.container(t, peer, kube.KubeProxyUser), peerPath, "--config="+written, "--hostname-override=node1")
	n.works(ctx, t, real, "iptables", "10.96.2.2")
	real.Stop()
	once("--cleanup")
	if rules := n.rules(ctx, t, "iptables"); strings.Contains(rules, "KUBE-") {
		t.Errorf("--cleanup left rules of kube-proxy:\n%s", rules)
	}
}

// TestConfigMapSwap changes the configuration like the kubelet: it replaces the directory behind
// the link that leads to all files.
func TestConfigMapSwap(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	put(ctx, t, dropinNode(), service("swap", "10.96.2.3"), slice("swap", "10.244.1.10"))
	n := newNode(t)
	c := n.container(t, proxyc, kube.KubeProxyUser)
	volume := t.TempDir()
	link := func(to, at string) {
		t.Helper()
		if err := errors.Join(os.Symlink(to, filepath.Join(volume, at+".next")), os.Rename(filepath.Join(volume, at+".next"), filepath.Join(volume, at))); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(version, mode string) {
		t.Helper()
		for name, text := range configFiles(t) {
			text = strings.ReplaceAll(text, "127.0.0.1:6443", n.gate.Addr())
			writeFile(t, filepath.Join(volume, version, name), strings.Replace(text, `mode: ""`, "mode: "+mode, 1))
		}
		link(version, "..data")
	}
	publish("..1", "iptables")
	for name := range configFiles(t) {
		link("..data/"+name, name)
	}
	lib := c.Files[filepath.Dir(configDir)]
	if err := errors.Join(os.Remove(filepath.Join(lib, "kube-proxy")), os.Symlink(volume, filepath.Join(lib, "kube-proxy"))); err != nil {
		t.Fatal(err)
	}
	p := n.runAs(t, "proxyc", c, peerPath, "--config="+configDir+"/config.conf", "--hostname-override=node1")
	n.works(ctx, t, p, "iptables", "10.96.2.3")
	publish("..2", "nftables")
	if err := os.RemoveAll(filepath.Join(volume, "..1")); err != nil {
		t.Fatal(err)
	}
	n.works(ctx, t, p, "nftables", "10.96.2.3")
}

// TestNodeChanges changes the relevant fields of the Node while one process runs.
func TestNodeChanges(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	hinted := slice("nodes", "10.244.1.10", "10.244.2.10")
	for i, zone := range []string{"a", "b"} {
		hinted["endpoints"].([]any)[i].(kube.Object)["hints"] = kube.Object{"forZones": []any{kube.Object{"name": zone}}}
	}
	node := dropinNode()
	node["metadata"].(kube.Object)["labels"] = kube.Object{"topology.kubernetes.io/zone": "a"}
	put(ctx, t, node, service("nodes", "10.96.2.4"), hinted)
	n := newNode(t)
	p := n.watch(ctx, t, "--proxy-mode", "nftables", "--detect-local-mode", "NodeCIDR")
	shows := func(has, lacks string) {
		t.Helper()
		eventually(t, 10*time.Second, "rules with "+has, func() error {
			rules := n.rules(ctx, t, "nftables")
			if !strings.Contains(rules, has) || strings.Contains(rules, lacks) {
				return fmt.Errorf("want %s and not %s in\n%s\n%s", has, lacks, rules, p.Tail())
			}
			return nil
		})
	}
	change := func(change func(metadata, spec, status kube.Object)) {
		t.Helper()
		change(node["metadata"].(kube.Object), node["spec"].(kube.Object), node["status"].(kube.Object))
		if err := n.cluster.Apply(ctx, node); err != nil {
			t.Fatal(err)
		}
	}
	shows("10.244.1.10 . 8080", "10.244.2.10")
	change(func(metadata, _, _ kube.Object) { metadata["labels"] = kube.Object{"topology.kubernetes.io/zone": "b"} })
	shows("10.244.2.10 . 8080", "10.244.1.10")
	shows("10.244.1.0/24", "10.244.9.0/24")
	change(func(_, spec, _ kube.Object) {
		spec["podCIDR"], spec["podCIDRs"] = "10.244.9.0/24", []any{"10.244.9.0/24"}
	})
	shows("10.244.9.0/24", "10.244.1.0/24")
	shows("192.0.2.11", "192.0.2.99")
	change(func(_, _, status kube.Object) {
		status["addresses"] = []any{kube.Object{"type": "InternalIP", "address": "192.0.2.99"}}
	})
	shows("192.0.2.99", "192.0.2.11")
	if _, err := p.Stop(); err != nil {
		t.Errorf("%v\n%s", err, p.Tail())
	}
}
