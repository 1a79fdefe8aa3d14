package e2e

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/e2e/kube"
)

// TestNewUser follows the README's steps with only the contents of a clone. It builds the image,
// renders the chart, and runs pods of its DaemonSets on a node that the real kube-proxy served. A
// canary does not start, which the gate must detect. The test does the work of a kubelet: it
// unpacks the image, and gives containers the mounts and rights that they request.
func TestNewUser(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	n := newNode(t)
	root := image(ctx, t)
	objects := chart(ctx, t, fmt.Sprintf("{image: 'registry.example/proxyc:v1', apiServer: 'https://%s', configuration: {mode: nftables, clusterCIDR: 10.244.0.0/16},"+
		" canary: {enabled: true, extraArgs: [--no-such-flag]}}", n.gate.Addr()))
	sets := map[string]*appsv1.DaemonSet{}
	for _, o := range objects {
		if o["kind"] == "DaemonSet" {
			set := created(ctx, t, o)
			sets[set.Name] = set
		}
	}
	if len(sets) != 2 {
		t.Fatalf("DaemonSets: %v", slices.Collect(maps.Keys(sets)))
	}
	put(ctx, t, dropinNode(), service("newuser", "10.96.4.9"), slice("newuser", "10.244.1.10"))

	// kube-proxy runs, and leaves rules when its pod ends.
	peer, err := kube.Tool(ctx, kube.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	p := n.runAs(t, "kube-proxy", n.container(t, peer, kube.KubeProxyUser), peerPath, "--proxy-mode=nftables",
		"--kubeconfig="+configDir+"/kubeconfig.conf", "--hostname-override=node1", "--cluster-cidr=10.244.0.0/16")
	n.works(ctx, t, p, "nftables", "10.96.4.9")
	if _, err := p.Stop(); err != nil && !strings.Contains(err.Error(), "terminated") {
		t.Fatal(err)
	}
	if rules := n.rules(ctx, t, "nftables"); !strings.Contains(rules, "table ip kube-proxy") {
		t.Fatalf("kube-proxy left no rules:\n%s", rules)
	}

	k := &kubelet{node: n, root: root, machine: n.container(t, proxyc, kube.ProxycUser), config: configMap(t, objects)}
	p = k.pod(ctx, t, sets["proxyc"])
	n.works(ctx, t, p, "nftables", "10.96.4.9")
	ours := func() {
		t.Helper()
		eventually(t, 20*time.Second, "proxyc's rules alone", func() error {
			if rules := n.rules(ctx, t, "nftables"); strings.Contains(rules, "table ip kube-proxy") || !strings.Contains(rules, "10.96.4.9") {
				return errors.New(rules)
			}
			return nil
		})
	}
	ours()
	if out, err := k.gate(ctx, t, p, sets["proxyc"]); err != nil {
		t.Errorf("the gate: %v\n%s", err, out)
	}
	if _, err := p.Stop(); err != nil { // the node's label is the canary's now
		t.Fatal(err)
	}
	canary := k.pod(ctx, t, sets["proxyc-canary"])
	if err := canary.Wait(ctx); err == nil || !strings.Contains(canary.Tail(), "unknown flag --no-such-flag") {
		t.Errorf("the canary: %v\n%s", err, canary.Tail())
	}
	if out, err := k.gate(ctx, t, canary, sets["proxyc-canary"]); err == nil || !strings.Contains(out, "gate: daemonset/proxyc-canary is not rolled out") {
		t.Errorf("the gate lets a canary pass that does not run: %v\n%s", err, out)
	}
	ours()
	p = k.pod(ctx, t, sets["proxyc"]) // and back
	n.works(ctx, t, p, "nftables", "10.96.4.9")
	ours()
	if err := p.Ready(ctx); err != nil { // kubectl rollout status waits for this; rules that existed before do not show it
		t.Fatal(err)
	}
	if out, err := k.gate(ctx, t, p, sets["proxyc"]); err != nil {
		t.Errorf("the gate, after the way back: %v\n%s", err, out)
	}
	if log := p.Tail(); !strings.Contains(log, "0 added, 0 changed, 0 removed") {
		t.Errorf("the rules were not found as they should be:\n%s", log)
	}
}

// image builds the image of a clone, and returns the directory in which it is unpacked.
func image(ctx context.Context, t *testing.T) (root string) {
	t.Helper()
	dir := t.TempDir()
	command(ctx, t, "", "..", "git", "clone", "-q", ".", filepath.Join(dir, "clone"))
	command(ctx, t, "", "release", "go", "run", ".", "-source", filepath.Join(dir, "clone"), "-o", filepath.Join(dir, "dist"),
		"-only", "linux/"+runtime.GOARCH, "-images", "-flavour", "nftables")
	root = filepath.Join(dir, "root")
	layout := filepath.Join(dir, "dist/image-nftables")
	var index, manifest struct {
		Manifests, Layers []struct{ Digest string }
	}
	blob := func(digest string) string {
		return filepath.Join(layout, "blobs", strings.Replace(digest, ":", "/", 1))
	}
	read := func(name string, into any) {
		t.Helper()
		data, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read(filepath.Join(layout, "index.json"), &index)
	read(blob(index.Manifests[0].Digest), &manifest)
	for _, l := range manifest.Layers {
		unpack(t, blob(l.Digest), root)
	}
	return root
}

// unpack writes the files of a layer.
func unpack(t *testing.T, layer, root string) {
	t.Helper()
	file, err := os.Open(layer)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(root, h.Name)
		err = os.MkdirAll(filepath.Dir(at), 0o755)
		switch h.Typeflag {
		case tar.TypeDir:
			err = errors.Join(err, os.MkdirAll(at, 0o755))
		case tar.TypeSymlink:
			err = errors.Join(err, os.Symlink(h.Linkname, at))
		default:
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(at, data, h.FileInfo().Mode())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// chart renders the chart.
func chart(ctx context.Context, t *testing.T, values string) []kube.Object {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rendered.yaml")
	if err := os.WriteFile(file, command(ctx, t, values, "deploy", "go", "run", "./template"), 0o644); err != nil {
		t.Fatal(err)
	}
	objects, err := kube.Manifests(file)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func command(ctx context.Context, t *testing.T, stdin, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, &stderr)
	}
	return out
}

// created returns a DaemonSet as created in the API server, which rejects unknown fields.
func created(ctx context.Context, t *testing.T, o kube.Object) *appsv1.DaemonSet {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	set := new(appsv1.DaemonSet)
	err = clusterOf(t).Client().AppsV1().RESTClient().Post().Namespace("kube-system").Resource("daemonsets").
		Param("fieldValidation", "Strict").Body(data).Do(ctx).Into(set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clusterOf(t).Delete(context.WithoutCancel(ctx), o) })
	return set
}

// configMap writes the files of the chart's ConfigMap, like a volume.
func configMap(t *testing.T, objects []kube.Object) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, o := range objects {
		if o["kind"] == "ConfigMap" {
			for name, text := range o["data"].(kube.Object) {
				writeFile(t, filepath.Join(dir, name), text.(string))
			}
		}
	}
	return dir
}

// A kubelet runs the containers of pods, as far as these tests require it.
type kubelet struct {
	*node
	root    string          // of the image
	machine *kube.Container // has the account, and files in place of the machine's
	config  string          // the directory of the ConfigMap
	host    string          // the directory of the volumes on the node
}

// pod runs a pod of a DaemonSet: first its init container until that ends, and then its
// container.
func (k *kubelet) pod(ctx context.Context, t *testing.T, set *appsv1.DaemonSet) *kube.Proxy {
	t.Helper()
	if k.host == "" {
		k.host = t.TempDir()
	}
	spec := &set.Spec.Template.Spec
	init := k.container(t, spec, &spec.InitContainers[0])
	if err := init.Wait(ctx); err != nil {
		t.Fatalf("%s: %v\n%s", set.Name, err, init.Tail())
	}
	return k.container(t, spec, &spec.Containers[0])
}

func (k *kubelet) container(t *testing.T, spec *corev1.PodSpec, c *corev1.Container) *kube.Proxy {
	t.Helper()
	command := slices.Concat(c.Command, c.Args)
	for i := range command {
		command[i] = strings.ReplaceAll(command[i], "$(NODE_NAME)", "node1")
	}
	return k.runAs(t, c.Name, k.inside(t, spec, c), command...)
}

// inside returns what a container of a pod sees and may do.
func (k *kubelet) inside(t *testing.T, spec *corev1.PodSpec, c *corev1.Container) *kube.Container {
	t.Helper()
	account := filepath.Join(filepath.Dir(k.machine.Files["/run"]), "account")
	run := &kube.Container{Root: k.root, Files: map[string]string{"/proc": "/proc", "/dev/null": "/dev/null", "/sys": "/sys",
		"/var" + accountDir: account, conntrackMax: k.machine.Files[conntrackMax],
		"/sys/module/nf_conntrack/parameters/hashsize": k.machine.Files["/sys/module/nf_conntrack/parameters/hashsize"]}}
	if s := c.SecurityContext; s.Privileged == nil || !*s.Privileged {
		run.Capabilities, run.ReadOnly = []string{}, []string{"/proc/sys"}
		for _, name := range s.Capabilities.Add {
			run.Capabilities = append(run.Capabilities, strings.ToLower(string(name)))
		}
	}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		from := filepath.Join(k.host, m.Name)
		switch v := spec.Volumes[i]; {
		case v.ConfigMap != nil:
			from = k.config
		case v.HostPath.Type != nil && *v.HostPath.Type == corev1.HostPathFileOrCreate:
			writeFile(t, from, "")
		default:
			if err := os.MkdirAll(from, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		run.Files[m.MountPath] = from
		if m.ReadOnly {
			run.ReadOnly = append(run.ReadOnly, m.MountPath)
		}
	}
	return run
}

// kubectl replaces kubectl in a cluster of this node. The kubelet's data about pods and the API
// server's about objects are its output. It runs exec in the pod's container.
const kubectl = `#!/bin/sh
case "$*" in
*"rollout status daemonset/"*) [ "$READY" = true ] ;;
*" get controllerrevisions "*) echo 2026-01-01T00:00:00Z ;;
*" get pods "*) echo "pod-1 node1 " ;;
"get servicecidrs") ;;
"get services,endpointslices,nodes,servicecidrs -A -o json") cat "$SNAPSHOT" ;;
*" exec "*)
	while [ "$1" != -- ]; do shift; done
	shift
	exec %s "$@" ;;
*) echo "kubectl $*: not expected" >&2; exit 2 ;;
esac
`

// gate runs the gate of docs/deploy for a DaemonSet that has pod p.
func (k *kubelet) gate(ctx context.Context, t *testing.T, p *kube.Proxy, set *appsv1.DaemonSet) (out string, err error) {
	t.Helper()
	gate, err := filepath.Abs("../docs/deploy/gate")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	snapshot := filepath.Join(dir, "cluster.json")
	if err := k.cluster.Snapshot(ctx, snapshot); err != nil {
		t.Fatal(err)
	}
	spec := &set.Spec.Template.Spec
	binary, args := k.inside(t, spec, &spec.Containers[0]).Command()
	quoted := binary
	for _, a := range args {
		quoted += " '" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), fmt.Appendf(nil, kubectl, quoted), 0o755); err != nil {
		t.Fatal(err)
	}
	probe := spec.Containers[0].ReadinessProbe.HTTPGet
	code, _, err := p.Get(ctx, fmt.Sprintf("http://%s:%s%s", probe.Host, probe.Port.String(), probe.Path))
	cmd := k.Command(ctx, gate, set.Name, "1")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SNAPSHOT="+snapshot, fmt.Sprintf("READY=%t", err == nil && code == 200))
	text, err := k.Run(cmd)
	if err != nil {
		return err.Error(), err // the error contains the whole output
	}
	return string(text), nil
}
