package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// executable is a proxy that can play the cases.
type executable struct {
	name, path string
	args       []string
	user       string // of the API server
	peer       bool   // it is kube-proxy
}

// program returns the proxy that the flags select. If necessary it builds it in dir.
func program(ctx context.Context, dir string) (e executable, err error) {
	e = executable{name: "proxyc", path: *proxycFlag, args: []string{"watch"}, user: kube.ProxycUser}
	switch {
	case *peerFlag:
		e = executable{name: "kube-proxy", user: kube.KubeProxyUser, peer: true}
		e.path, err = kube.Tool(ctx, kube.KubeProxy)
	case e.path == "":
		e.path, err = kube.Proxyc(ctx, dir)
	}
	return e, err
}

// plays reports whether the program can be played in a way. kube-proxy uses the iptables in PATH.
func (e executable) plays(w way) bool {
	if !e.peer || w.mode != "iptables" {
		return true
	}
	version, err := exec.Command("iptables", "--version").Output()
	return err == nil && strings.Contains(string(version), "legacy") == (w.name == "iptables-legacy")
}

// A player keeps a cluster's objects equal to those of a snapshot file, and detects when the
// proxy on the node has applied them.
type player struct {
	executable
	way     way
	cluster *kube.Cluster
	node    *applytest.Namespace

	gate  *kube.Gate
	proxy *kube.Proxy
	sent  map[string]kube.Object // by kind and name
	marks int                    // how often the mark was moved
}

var _ applytest.Daemon = (*player)(nil)

// daemon returns a function that starts a program for a case, with the objects of the case in the
// next free API server of the pool.
func daemon(pool servers, e executable, w way) applytest.DaemonFunc {
	return func(ctx context.Context, node *applytest.Namespace, configFile, snapshotFile, _ string) (applytest.Daemon, error) {
		p := &player{executable: e, way: w, cluster: <-pool, node: node}
		d := &pooledPlayer{player: p, pool: pool}
		if err := p.start(ctx, configFile, snapshotFile); err != nil {
			return nil, errors.Join(err, d.Stop())
		}
		return d, nil
	}
}

// pooledPlayer is a player that returns its cluster to the pool.
type pooledPlayer struct {
	*player
	pool servers
}

func (l *pooledPlayer) Stop() error {
	defer func() { l.pool <- l.cluster }()
	return l.player.Stop()
}

// changeTimeout is the timeout of a proxy's start, and of a change.
var changeTimeout = applytest.ScaledTimeout(30 * time.Second)

// start sends the objects to an empty cluster and starts the proxy.
func (p *player) start(ctx context.Context, configFile, snapshotFile string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if p.gate, err = p.cluster.Gate(p.node); err != nil {
		return err
	}
	if err := p.cluster.DeleteAll(ctx); err != nil {
		return err
	}
	if err := p.send(ctx, snapshotFile); err != nil {
		return err
	}
	dir := filepath.Dir(configFile)
	config, err := p.connected(configFile, dir)
	if err != nil {
		return err
	}
	args := append(append([]string{}, p.args...), "--config", config, "--hostname-override", "node1")
	if !p.peer {
		args = append(args, p.way.args...)
	}
	if p.proxy, err = kube.StartProxy(p.node, dir, p.name, p.path, args...); err != nil {
		return err
	}
	return p.inForce(ctx)
}

// Update brings the cluster to the state of a snapshot file, and waits for the node.
func (p *player) Update(ctx context.Context, snapshotFile string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := p.send(ctx, snapshotFile); err != nil {
		return err
	}
	return p.inForce(ctx)
}

// Stop ends the proxy.
func (p *player) Stop() (err error) {
	if p.proxy != nil {
		_, err = p.proxy.Stop()
	}
	if p.gate != nil {
		err = errors.Join(err, p.gate.Close())
	}
	return err
}

// connected writes a configuration that contains the given one and the API server.
func (p *player) connected(configFile, dir string) (string, error) {
	kubeconfig, err := p.gate.Kubeconfig(dir, p.user)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(configFile)
	if err != nil {
		return "", err
	}
	config := kube.Object{}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return "", err
	}
	config["clientConnection"] = kube.Object{"kubeconfig": kubeconfig}
	if data, err = yaml.Marshal(config); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "connected.yaml")
	return file, os.WriteFile(file, data, 0o644)
}

// send makes the cluster's objects equal to those of a snapshot file, and then moves the mark.
func (p *player) send(ctx context.Context, snapshotFile string) error {
	objects, err := kube.Manifests(snapshotFile)
	if err != nil {
		return err
	}
	before := p.sent
	p.sent = map[string]kube.Object{}
	var changed []kube.Object
	for _, o := range objects {
		if o["kind"] == "ServiceCIDR" {
			continue // an API server creates its own, from its flags
		}
		id := identify(o)
		p.sent[id] = o
		if !reflect.DeepEqual(before[id], o) {
			changed = append(changed, complete(o))
		}
	}
	var gone []kube.Object
	for id, o := range before {
		if p.sent[id] == nil {
			gone = append(gone, o)
		}
	}
	if err := p.cluster.Delete(ctx, gone...); err != nil {
		return err
	}
	if err := p.cluster.Apply(ctx, changed...); err != nil {
		return err
	}
	p.marks++
	return p.cluster.Apply(ctx, mark(p.marks)...)
}

func identify(o kube.Object) string {
	meta := o["metadata"].(kube.Object)
	return fmt.Sprintf("%s/%v/%v", o["kind"], meta["namespace"], meta["name"])
}

// complete does the work of a cluster's controllers: a Service without load balancer addresses
// loses its previous ones.
func complete(o kube.Object) kube.Object {
	if o["kind"] != "Service" || o["status"] != nil {
		return o
	}
	whole := kube.Object{"status": kube.Object{"loadBalancer": kube.Object{}}}
	for k, v := range o {
		whole[k] = v
	}
	return whole
}

// The mark is a Service with an endpoint of each family, which no case uses. Its port changes
// after all else was sent. Watches report changes in order. A kernel that sends the mark's last
// port to its last endpoints therefore has all Services and EndpointSlices that were sent before.
const firstMark = 20000

var markEndpoints = []struct{ slice, family, addr, clusterIP string }{
	{"mark-4", "IPv4", "10.244.255.254", "10.96.255.254"},
	{"mark-6", "IPv6", "fd00:10:244:ffff::254", "fd00:10:96::fffe"},
}

func mark(n int) []kube.Object {
	port := fmt.Sprintf("m%d", n) // there is no endpoint unless a port of the slice has the same name
	objects := []kube.Object{{"apiVersion": "v1", "kind": "Service",
		"metadata": kube.Object{"name": "mark", "namespace": "default"},
		"spec": kube.Object{
			"clusterIP": markEndpoints[0].clusterIP, "clusterIPs": []any{markEndpoints[0].clusterIP, markEndpoints[1].clusterIP},
			"ipFamilies": []any{"IPv4", "IPv6"}, "ipFamilyPolicy": "RequireDualStack",
			"ports": []any{kube.Object{"name": port, "port": firstMark + n}}}}}
	for _, e := range markEndpoints {
		objects = append(objects, kube.Object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata":    kube.Object{"name": e.slice, "namespace": "default", "labels": kube.Object{"kubernetes.io/service-name": "mark"}},
			"addressType": e.family,
			"ports":       []any{kube.Object{"name": port, "port": firstMark + n, "protocol": "TCP"}},
			"endpoints":   []any{kube.Object{"addresses": []any{e.addr}, "conditions": kube.Object{"ready": true}}}})
	}
	return objects
}

// rulesets are the commands that print the kernel's rules of each family, by way.
var rulesets = map[string][][]string{
	"nftables":        {{"nft", "list", "ruleset"}},
	"ipvs":            {{"ipset", "save"}, {"iptables-save", "-t", "nat"}, {"ip6tables-save", "-t", "nat"}},
	"iptables-nft":    {{"iptables-nft-save", "-t", "nat"}, {"ip6tables-nft-save", "-t", "nat"}},
	"iptables-legacy": {{"iptables-legacy-save", "-t", "nat"}, {"ip6tables-legacy-save", "-t", "nat"}},
}

// inForce waits until the kernel has the mark, and the proxy has finished what follows its rules.
func (p *player) inForce(ctx context.Context) error {
	return kube.Until(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		err := p.marked(ctx)
		if err == nil {
			err = p.settled(ctx)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, p.proxy.Tail())
		}
		return nil
	})
}

// marked returns an error unless the kernel has the mark in both families.
func (p *player) marked(ctx context.Context) error {
	var rules []byte
	for _, tool := range rulesets[p.way.name] {
		out, err := p.node.Run(p.node.Command(ctx, tool[0], tool[1:]...))
		if err != nil {
			return err
		}
		rules = append(rules, out...)
	}
	for _, e := range markEndpoints {
		at := fmt.Sprintf(`%s\]?( \. |:)%d\b`, regexp.QuoteMeta(e.addr), firstMark+p.marks)
		if p.way.mode == "ipvs" { // the sets are updated after ip_vs
			at = fmt.Sprintf(`%s,tcp:%d\b`, regexp.QuoteMeta(e.clusterIP), firstMark+p.marks)
		}
		if !regexp.MustCompile(at).Match(rules) {
			return fmt.Errorf("mark %d is not in the kernel: %s", p.marks, e.addr)
		}
	}
	// In mode ipvs rules come last, and are the same after every sync: two jumps in each family.
	if p.way.mode == "ipvs" && bytes.Count(rules, []byte("-j KUBE-SERVICES")) < 2*len(markEndpoints) {
		return errors.New("rules are missing")
	}
	return nil
}

// afterRules is how long kube-proxy may need for what follows its rules. It does not report the
// end.
var afterRules = applytest.ScaledTimeout(300 * time.Millisecond)

// settled returns an error unless the proxy has finished.
func (p *player) settled(ctx context.Context) error {
	if p.peer {
		time.Sleep(afterRules)
		return nil
	}
	code, body, err := p.proxy.Get(ctx, "http://127.0.0.1:10249/proxyc/status")
	if err != nil {
		return err
	}
	var status struct{ Synced bool }
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		return fmt.Errorf("status: %d %q: %w", code, body, err)
	}
	if !status.Synced {
		return fmt.Errorf("status: not synced: %s", body)
	}
	return nil
}
