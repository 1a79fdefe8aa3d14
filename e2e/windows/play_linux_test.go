package windows

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// patience is how long a program may take for a change, and for its start.
const patience = 90 * time.Second

// peerPatience is how long kube-proxy.exe may take for what it has begun: it rests
// for seconds, and what it has not done then it never does.
const peerPatience = 20 * time.Second

// player keeps a cluster's objects at those of a case, and a program that follows them.
type player struct {
	*lab
	t    *testing.T
	host *host
	dir  string
	dsr  bool
	kind string
	// family is that of the cases: the records have one at a time.
	family string
	peer   string // kube-proxy.exe; empty: proxyc.exe

	proxy  *kube.Proxy
	config string // with which the program runs
	sent   map[string]kube.Object
}

// send makes the cluster's objects those of a case and moves the mark.
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
			continue // an API server makes its own, of its flags
		}
		meta := o["metadata"].(kube.Object)
		id := fmt.Sprintf("%s/%v/%v", o["kind"], meta["namespace"], meta["name"])
		p.sent[id] = o
		if !reflect.DeepEqual(before[id], o) {
			if o["kind"] == "Service" && o["status"] == nil {
				o["status"] = kube.Object{"loadBalancer": kube.Object{}} // addresses go, as a controller takes them away
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
	return p.cluster.Apply(ctx, mark(p.marks)...)
}

// The mark is a Service that no case uses, with an endpoint elsewhere. Its port moves after all
// else was sent: a host that has it has what was sent before, or is about to. No port comes twice, as the
// API server may still tell of the one before.
const (
	firstMark = 20000
	markVIP   = "10.96.255.254"
	markPod   = "10.244.255.254"
)

func mark(n int) []kube.Object {
	port := fmt.Sprintf("m%d", n) // without this name's twin in the slice there is no endpoint
	return []kube.Object{
		{"apiVersion": "v1", "kind": "Service", "metadata": kube.Object{"name": "mark", "namespace": "default"},
			"spec": kube.Object{"clusterIP": markVIP, "clusterIPs": []any{markVIP}, "ipFamilies": []any{"IPv4"},
				"ports": []any{kube.Object{"name": port, "port": firstMark + n}}}},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata":    kube.Object{"name": "mark-4", "namespace": "default", "labels": kube.Object{"kubernetes.io/service-name": "mark"}},
			"addressType": "IPv4",
			"ports":       []any{kube.Object{"name": port, "port": firstMark + n, "protocol": "TCP"}},
			"endpoints":   []any{kube.Object{"addresses": []any{markPod}, "conditions": kube.Object{"ready": true}}}},
	}
}

// state is what the host holds in the family, without the mark.
func (p *player) state() applytest.HNSState {
	balancers, endpoints := p.host.State(p.hostMAC)
	marked := func(line string) bool {
		return strings.Contains(line+" ", markVIP+" ") || strings.Contains(line+" ", markPod+" ") ||
			strings.Contains(line, "::") != (p.family == applytest.IPv6)
	}
	return applytest.HNSState{LoadBalancers: slices.DeleteFunc(balancers, marked), Endpoints: slices.DeleteFunc(endpoints, marked)}
}

const (
	metricsPort = 10249
	healthzPort = 10256
)

// configuration is that of a case, with what this lab adds.
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
	p.proxy, err = p.start(p.host, p.dir, name, program, args...)
	p.config = config
	return err
}

func (p *player) stop() error {
	if p.proxy == nil {
		return nil
	}
	err := p.proxy.Kill()
	p.proxy = nil
	return err
}

// comesTo waits until the host has the load balancers of a record: kube-proxy.exe
// does not tell when it has done what it was asked to, and rests for seconds in between.
func (p *player) comesTo(ctx context.Context, want applytest.HNSState) error {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	return kube.Until(ctx, 50*time.Millisecond, func(context.Context) error {
		if got := p.state().LoadBalancers; !slices.Equal(got, want.LoadBalancers) {
			return fmt.Errorf("the host has %q, recorded are %q\n%s", got, want.LoadBalancers, p.proxy.Tail())
		}
		return nil
	})
}

// inForce waits until the host has the mark and the program is at rest.
func (p *player) inForce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := kube.Until(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		if p.peer == "" {
			if err := p.synced(ctx); err != nil {
				return err
			}
		}
		balancers, _ := p.host.State("")
		want := fmt.Sprintf("%s 6 %d->", markVIP, firstMark+p.marks)
		if !slices.ContainsFunc(balancers, func(l string) bool { return strings.HasPrefix(l, want) }) {
			return fmt.Errorf("mark %d is not on the host", p.marks)
		}
		if p.peer == "" {
			return p.synced(ctx)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.proxy.Tail())
	}
	return nil
}

// synced tells whether proxyc has nothing left to do.
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
