package windows

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// changeTimeout is the timeout of a program's start, and of a change, in a small cluster.
const changeTimeout = 90 * time.Second

// settleTimeout is how long kube-proxy.exe may continue after it has reported a sync: it then
// removes stale objects, and may sync its other family.
const settleTimeout = 20 * time.Second

// player keeps a cluster's objects equal to those of a case, and runs a program that follows
// them.
type player struct {
	*lab
	world
	host   *host
	dir    string
	family string // that of the cases
	peer   string // kube-proxy.exe; empty for proxyc.exe
	resync string // the period of full syncs; empty for the case's
	// changeTimeout is the timeout of the program's start, and of a change.
	changeTimeout time.Duration

	proxy  *kube.Proxy
	began  time.Time // start of the program
	config string    // of the program
	sent   map[string]kube.Object
}

// newPlayer returns a player of proxyc.exe, or of a peer, on a new host.
func (l *lab) newPlayer(t *testing.T, w world, family, peer string) *player {
	t.Helper()
	p := &player{lab: l, world: w, host: l.newHost(t, w), dir: t.TempDir(), family: family, peer: peer, changeTimeout: changeTimeout}
	t.Cleanup(func() { _ = p.stop() })
	return p
}

// send makes the cluster's objects equal to those of a case, and moves the mark.
func (p *player) send(ctx context.Context, objects *applytest.Store) error {
	data, err := objects.File()
	if err != nil {
		return err
	}
	file := filepath.Join(p.dir, "cluster.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return err
	}
	all, err := kube.Manifests(file)
	if err != nil {
		return err
	}
	before := p.sent
	p.sent = map[string]kube.Object{}
	var changed, gone []kube.Object
	for _, o := range all {
		if o["kind"] == "ServiceCIDR" {
			continue // an API server creates its own, from its flags
		}
		meta := o["metadata"].(kube.Object)
		id := fmt.Sprintf("%s/%v/%v", o["kind"], meta["namespace"], meta["name"])
		p.sent[id] = o
		if !reflect.DeepEqual(before[id], o) {
			if o["kind"] == "Service" && o["status"] == nil {
				o["status"] = kube.Object{"loadBalancer": kube.Object{}} // addresses are removed, like by a controller
			}
			if addresses(before[id]) > addresses(o) {
				gone = append(gone, o) // an API server keeps a removed address for a while
			}
			changed = append(changed, o)
		}
	}
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
	return p.cluster.Apply(ctx, marks[p.family].objects(p.marks)...)
}

// addresses returns the number of addresses of a Service.
func addresses(o kube.Object) int {
	spec, _ := o["spec"].(kube.Object)
	ips, _ := spec["clusterIPs"].([]any)
	return len(ips)
}

// The mark is a Service that no case uses, with an endpoint elsewhere, in the family of the case.
// Its port changes after all else was sent. A host that has it has what was sent before, or is
// about to. No port is used twice, since the API server may still report the previous one.
const firstMark = 20000

type mark struct{ family, vip, pod string }

var marks = map[string]mark{
	applytest.IPv4: {"IPv4", "10.96.255.254", "10.244.255.254"},
	applytest.IPv6: {"IPv6", "fd00:10:96::fffe", "fd00:10:244:ff::fffe"},
}

func (m mark) objects(n int) []kube.Object {
	port := fmt.Sprintf("m%d", n) // there is no endpoint unless a port of the slice has the same name
	name := "mark-" + strings.ToLower(m.family)
	return []kube.Object{
		{"apiVersion": "v1", "kind": "Service", "metadata": kube.Object{"name": name, "namespace": "default"},
			"spec": kube.Object{"clusterIP": m.vip, "clusterIPs": []any{m.vip}, "ipFamilies": []any{m.family},
				"ports": []any{kube.Object{"name": port, "port": firstMark + n}}}},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata":    kube.Object{"name": name, "namespace": "default", "labels": kube.Object{"kubernetes.io/service-name": name}},
			"addressType": m.family,
			"ports":       []any{kube.Object{"name": port, "port": firstMark + n, "protocol": "TCP"}},
			"endpoints":   []any{kube.Object{"addresses": []any{m.pod}, "conditions": kube.Object{"ready": true}}}},
	}
}

// in reports whether a line of the state belongs to the mark.
func (m mark) in(line string) bool {
	return strings.Contains(line+" ", m.vip+" ") || strings.Contains(line+" ", m.pod+" ")
}

// state returns the state of the host, without the mark.
func (p *player) state() applytest.HNSState {
	balancers, endpoints := p.host.State(p.hostMAC)
	marked := marks[p.family].in
	return applytest.HNSState{LoadBalancers: slices.DeleteFunc(balancers, marked), Endpoints: slices.DeleteFunc(endpoints, marked)}
}

// familyState returns the part of the state that is in a record, which has one family.
func (p *player) familyState() applytest.HNSState {
	s := p.state()
	other := func(line string) bool { return strings.Contains(line, "::") != (p.family == applytest.IPv6) }
	return applytest.HNSState{LoadBalancers: slices.DeleteFunc(s.LoadBalancers, other), Endpoints: slices.DeleteFunc(s.Endpoints, other)}
}

const (
	metricsPort = 10249
	healthzPort = 10256
)

// configuration returns the configuration of a case, with this lab's additions.
func (p *player) configuration(c *applytest.Case) (string, error) {
	data, err := c.ConfigFile("kernelspace")
	if err != nil {
		return "", err
	}
	config := kube.Object{}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return "", err
	}
	user := kube.ProxycUser
	if p.peer != "" {
		user = kube.KubeProxyUser
	}
	kubeconfig, err := p.gate.Kubeconfig(p.dir, user)
	if err != nil {
		return "", err
	}
	if p.resync != "" {
		config["iptables"] = kube.Object{"syncPeriod": p.resync, "minSyncPeriod": "10ms"} // kube-proxy.exe reads it here
	}
	config["clientConnection"] = kube.Object{"kubeconfig": windowsPath(kubeconfig)}
	config["winkernel"] = kube.Object{"networkName": "l2", "enableDSR": p.dsr}
	if p.kind == overlay {
		config["winkernel"] = kube.Object{"networkName": "l2", "enableDSR": p.dsr, "sourceVip": "10.244.1.254"}
	}
	data, err = yaml.Marshal(config)
	return string(data), err
}

// begin starts the program for a case, unless it runs with the same configuration.
func (p *player) begin(ctx context.Context, c *applytest.Case) error {
	config, err := p.configuration(c)
	if err != nil {
		return err
	}
	if p.proxy != nil && p.peer == "" && config == p.config {
		return nil
	}
	if err := p.stop(); err != nil {
		return err
	}
	file := filepath.Join(p.dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	program, name, args := p.proxyc, "proxyc", []string{"watch"}
	if p.peer != "" {
		program, name, args = p.peer, "kube-proxy", nil
	}
	args = append(args, "--config", windowsPath(file), "--hostname-override", "node1")
	if p.peer != "" {
		args = append(args, "--v=2")
	}
	p.config = config
	for try := 1; ; try++ {
		p.began = time.Now()
		if p.proxy, err = p.start(p.host, p.dir, name, program, args...); err != nil || p.peer == "" || try == 3 {
			return err
		}
		if hangs, err := p.hangs(ctx); !hangs || err != nil {
			return err
		}
		if err := p.stop(); err != nil {
			return err
		}
	}
}

// hangs reports whether kube-proxy.exe hangs, as it sometimes does under wine at its start. Then
// it calls the host no more, and has not reached the mark.
func (p *player) hangs(ctx context.Context) (bool, error) {
	const quiet = 45 * time.Second
	calls, since, hangs := p.host.Calls(), time.Now(), false
	err := kube.Until(ctx, 50*time.Millisecond, func(context.Context) error {
		if now := p.host.Calls(); now != calls {
			calls, since = now, time.Now()
		}
		hangs = time.Since(since) > quiet
		if hangs || time.Since(p.began) > p.changeTimeout {
			return nil
		}
		return p.marked()
	})
	return hangs, err
}

// marked returns an error unless the host has the mark.
func (p *player) marked() error {
	balancers, _ := p.host.State("")
	want := fmt.Sprintf("%s 6 %d->", marks[p.family].vip, firstMark+p.marks)
	if !slices.ContainsFunc(balancers, func(l string) bool { return strings.HasPrefix(l, want) }) {
		return fmt.Errorf("mark %d is not on the host", p.marks)
	}
	return nil
}

func (p *player) stop() error {
	if p.proxy == nil {
		return nil
	}
	err := p.proxy.Kill()
	p.proxy = nil
	return err
}

// inForce waits until the host has the mark and the program is idle.
func (p *player) inForce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.changeTimeout)
	defer cancel()
	synced := p.synced
	if p.peer != "" {
		synced = func(ctx context.Context) error { return p.peerSynced(ctx, marks[p.family].vip) }
	}
	err := kube.Until(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		if err := synced(ctx); err != nil && p.peer == "" {
			return err
		}
		if err := p.marked(); err != nil {
			return err
		}
		return synced(ctx)
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.proxy.Tail())
	}
	return nil
}

// peerSynced returns an error unless kube-proxy.exe has synced the family since it made the load
// balancer of an address. Related changes may follow that one.
func (p *player) peerSynced(ctx context.Context, vip string) error {
	_, body, err := p.proxy.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort))
	if err != nil {
		return err
	}
	prefix := fmt.Sprintf("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=%q} ", marks[p.family].family)
	for line := range strings.Lines(body) {
		if text, ok := strings.CutPrefix(line, prefix); ok {
			at, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			made, ok := p.host.made(vip)
			if err == nil && (!ok || made.Before(p.began) || at < float64(made.UnixNano())/1e9) {
				return fmt.Errorf("kube-proxy.exe synced at %f, began at %v, and %s was made at %v", at, p.began, vip, made)
			}
			return err
		}
	}
	return fmt.Errorf("kube-proxy.exe reports no %q", prefix)
}

// synced returns an error unless proxyc is idle.
func (p *player) synced(ctx context.Context) error {
	_, body, err := p.proxy.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/proxyc/status", metricsPort))
	if err != nil {
		return err
	}
	var status struct{ Synced bool }
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		return fmt.Errorf("status: %q: %w", body, err)
	}
	if !status.Synced {
		return fmt.Errorf("status: not synced: %s", body)
	}
	return nil
}
