package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// TestDaemonSet creates the manifest in the API server, which rejects unknown fields, and runs
// its containers one after the other.
func TestDaemonSet(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	objects, err := kube.Manifests("../docs/deploy/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(objects[0])
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	err = clusterOf(t).Client().AppsV1().RESTClient().Post().Namespace("kube-system").Resource("daemonsets").
		Param("fieldValidation", "Strict").Body(data).Do(ctx).Into(&set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clusterOf(t).Delete(context.WithoutCancel(ctx), objects...) })
	put(ctx, t, dropinNode(), service("deployed", "10.96.4.1"), slice("deployed", "10.244.1.10"))

	n := newNode(t)
	machine := n.container(t, proxyc, kube.ProxycUser)
	pod := set.Spec.Template.Spec
	init := n.runPod(t, machine, &pod.InitContainers[0])
	if err := init.Wait(ctx); err != nil {
		t.Fatalf("%v\n%s", err, init.Tail())
	}
	most, err := os.ReadFile(machine.Files[conntrackMax])
	if want := fmt.Sprint(max(131072, 32768*runtime.NumCPU())); err != nil || strings.TrimSpace(string(most)) != want {
		t.Errorf("nf_conntrack_max after the init container: want %s, got %q, %v", want, most, err)
	}
	p := n.runPod(t, machine, &pod.Containers[0])
	n.works(ctx, t, p, "iptables", "10.96.4.1")
	for _, probe := range []*corev1.Probe{pod.Containers[0].LivenessProbe, pod.Containers[0].ReadinessProbe} {
		get := probe.HTTPGet
		url := fmt.Sprintf("http://%s:%s%s", get.Host, get.Port.String(), get.Path)
		eventually(t, 5*time.Second, url, func() error {
			code, body, err := p.Get(ctx, url)
			if err != nil || code != 200 {
				return fmt.Errorf("%d %s, %v", code, body, err)
			}
			return nil
		})
	}
	eventually(t, 30*time.Second, "the boot file", func() error {
		_, err := os.Stat(filepath.Join(machine.Files[filepath.Dir(bootDir)], "proxyc/boot.json"))
		return err
	})
	within := *machine // like kubectl exec, with the container's capabilities
	within.Capabilities = []string{"net_admin", "net_raw"}
	eventually(t, 30*time.Second, "status at the socket", func() error {
		q := n.runAs(t, "status", &within, "/usr/local/bin/proxyc", "status", "--status-socket=/run/proxyc/status.sock")
		if err := q.Wait(ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, q.Tail())
		}
		return nil
	})
	snapshot := filepath.Join(t.TempDir(), "cluster.json")
	if err := n.cluster.Snapshot(ctx, snapshot); err != nil {
		t.Fatal(err)
	}
	if err := n.Sysctl("ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1"); err != nil { // as on each node of a cluster
		t.Fatal(err)
	}
	pods := "ip link add cni0 type veth peer pod0; ip link set pod0 up; ip link set cni0 up; ip addr add 10.244.1.1/24 dev cni0; ip addr add 192.0.2.11/32 dev cni0; ip route add default dev cni0"
	if out, err := n.Run(n.Command(ctx, "sh", "-c", pods)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	q := n.runAs(t, "prove", &within, "/usr/local/bin/proxyc", "prove", "-c", configDir+"/config.conf", "--hostname-override=node1", "-s", snapshot, "ir", "kernel")
	if err := q.Wait(ctx); err != nil {
		t.Errorf("prove: %v\n%s", err, q.Tail())
	}
	if took, err := p.Stop(); err != nil || took > applytest.StopTimeout {
		t.Errorf("ended after %s: %v", took, err)
	}
}

// runPod runs the command of a pod's container, under the container's name and with the rights of
// its security context. Its mounts are those of machine.
func (n *node) runPod(t *testing.T, machine *kube.Container, c *corev1.Container) *kube.Proxy {
	t.Helper()
	run := *machine
	if p := c.SecurityContext.Privileged; p == nil || !*p {
		run.Capabilities = []string{}
		for _, name := range c.SecurityContext.Capabilities.Add {
			run.Capabilities = append(run.Capabilities, strings.ToLower(string(name)))
		}
		run.ReadOnly = []string{"/proc/sys"}
	}
	for _, m := range c.VolumeMounts {
		if !slices.Contains([]string{configDir, "/run/xtables.lock", "/run/proxyc", bootDir, "/lib/modules"}, m.MountPath) {
			t.Errorf("container %s: volumeMounts: %s is not where anybody looks", c.Name, m.MountPath)
		}
	}
	var env []string
	for _, v := range c.Env {
		if v.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
			env = append(env, "$("+v.Name+")", "node1")
		}
	}
	command := slices.Concat(c.Command, c.Args)
	for i := range command {
		command[i] = strings.NewReplacer(env...).Replace(command[i])
	}
	return n.runAs(t, c.Name, &run, command...)
}

// TestInCluster starts without a kubeconfig, like a pod with a service account.
func TestInCluster(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	put(ctx, t, dropinNode(), service("incluster", "10.96.4.2"), slice("incluster", "10.244.1.10"))
	n := newNode(t)
	c := n.container(t, proxyc, kube.ProxycUser)
	host, port, _ := strings.Cut(n.gate.Addr(), ":")
	c.Env = []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	p := n.runAs(t, "proxyc", c, peerPath, "--proxy-mode=nftables", "--hostname-override=node1")
	n.works(ctx, t, p, "nftables", "10.96.4.2")
}

// TestRBAC checks that a daemon's requests, from its start to its end, use every rule of the
// manifest. TestMain checks that no request is forbidden.
func TestRBAC(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	put(ctx, t, dropinNode())
	n := newNode(t)
	n.grant(t)
	c := n.container(t, proxyc, kube.ProxycUser)
	for _, lists := range []string{"false", "true"} { // the client lists if the server does not support streaming lists
		c.Env = []string{"KUBE_FEATURE_WatchListClient=" + lists}
		p := n.runAs(t, "proxyc", c, peerPath, "--config="+configDir+"/config.conf", "--hostname-override=node1", "--node-condition")
		if err := p.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	objects, err := kube.Manifests("../docs/deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	more, err := kube.Manifests("../docs/deploy/node-condition/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{}
	for _, o := range append(objects, more...) {
		if o["kind"] != "ClusterRole" {
			continue
		}
		data, err := json.Marshal(o)
		var role rbacv1.ClusterRole
		if err == nil {
			err = json.Unmarshal(data, &role)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range role.Rules {
			for _, verb := range r.Verbs {
				for _, resource := range r.Resources {
					allowed[fmt.Sprintf("%s %s/%s", verb, r.APIGroups[0], resource)] = true
				}
			}
		}
	}
	eventually(t, 10*time.Second, "all requests are in the audit log", func() error {
		requests, err := n.cluster.Requests(kube.ProxycUser, time.Time{})
		if err != nil {
			return err
		}
		asked := map[string]bool{}
		for _, r := range requests {
			asked[fmt.Sprintf("%s %s/%s", r.Verb, r.ObjectRef.APIGroup, path.Join(r.ObjectRef.Resource, r.ObjectRef.Subresource))] = true
		}
		if diff := cmp.Diff(allowed, asked); diff != "" {
			return fmt.Errorf("(-allowed +requested):\n%s", diff)
		}
		return nil
	})
}

// TestEvents compares the events of a start, and of a health check whose port is in use, with
// those of a real kube-proxy.
func TestEvents(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	peer, err := kube.Tool(ctx, kube.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	const port = 32767
	checked := service("checked", "10.96.4.3")
	checked["spec"] = kube.Object{"type": "LoadBalancer", "clusterIP": "10.96.4.3", "externalTrafficPolicy": "Local",
		"healthCheckNodePort": port, "ports": []any{kube.Object{"port": 80, "targetPort": 8080}}}
	put(ctx, t, dropinNode(), checked, slice("checked", "10.244.1.10"))
	// kube-proxy reports the machine's own name, which usually is the node's.
	want, got := eventsOf(ctx, t, peer, strings.ToLower(host), port), eventsOf(ctx, t, proxyc, "node1", port)
	if _, sent := got[defaultMode]; !sent {
		t.Error("no event reports that no mode was chosen")
	}
	delete(got, defaultMode)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-kube-proxy +proxyc):\n%s", diff)
	}
}

// defaultMode is an event that kube-proxy loses, since it records the event before it starts to send
// events.
const defaultMode = "KubeProxyDefaultMode"

// eventsOf returns the events that a proxy sends on a node where a port is in use. They are by
// reason, without names, times and messages.
func eventsOf(ctx context.Context, t *testing.T, binary, instance string, port int) map[string]eventsv1.Event {
	t.Helper()
	api := clusterOf(t).Client().EventsV1().Events("default")
	if err := api.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	var taken net.Listener
	err := n.Do(func() (err error) {
		taken, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p := n.runAs(t, filepath.Base(binary), n.container(t, binary, kube.KubeProxyUser),
		peerPath, "--config="+configDir+"/config.conf", "--hostname-override=node1")
	defer p.Stop()
	got := map[string]eventsv1.Event{}
	eventually(t, 20*time.Second, "two kinds of events", func() error {
		list, err := api.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			e.ObjectMeta = metav1.ObjectMeta{Namespace: e.Namespace}
			e.EventTime, e.Note = metav1.MicroTime{}, ""
			e.ReportingInstance = strings.TrimSuffix(e.ReportingInstance, "-"+instance)
			got[e.Reason] = e
		}
		shared := len(got)
		if _, own := got[defaultMode]; own {
			shared--
		}
		if shared < 2 {
			return fmt.Errorf("got %v\n%s", got, p.Tail())
		}
		return nil
	})
	return got
}
