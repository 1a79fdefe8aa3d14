package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// checkImages builds the images of a release twice, and starts each as on a node: with read-only
// files, and only the rights in the manifest.
func checkImages(t *testing.T, r *release) {
	for _, f := range flavours {
		t.Run("image "+f.name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			var before v1.Hash
			var img v1.Image
			for range 2 {
				if err := r.image(t.Context(), f); err != nil {
					t.Fatal(err)
				}
				var digest v1.Hash
				img, digest = loaded(t, filepath.Join(r.out, "image-"+f.name))
				if before != (v1.Hash{}) && digest != before {
					t.Errorf("built twice: %s and %s", before, digest)
				}
				before = digest
			}
			if err := validate.Image(img); err != nil {
				t.Error(err)
			}
			root := t.TempDir()
			unpack(t, img, root)
			start(t, root, f.name)
		})
	}
}

// loaded returns the one image of a layout, and the digest of its index.
func loaded(t *testing.T, dir string) (v1.Image, v1.Hash) {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("the index has %+v", manifest.Manifests)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img, digest
}

// unpack writes the files of an image below a directory.
func unpack(t *testing.T, img v1.Image, root string) {
	t.Helper()
	files := mutate.Extract(img)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(at, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, at)
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

// container starts the program of the image below $1 in its own network namespace. $2 is mounted
// at /run. A first container, which has the right, adjusts the kernel's settings. The second has
// the rights in its arguments.
const container = `
ip link set lo up
root=$1 run=$2 caps=$3
mount --bind "$root" "$root"
mkdir -p "$root/proc" "$root/run" "$root/dev"
touch "$root/dev/null"
mount --bind /dev/null "$root/dev/null"
mount -t proc proc "$root/proc"
mount --bind "$run" "$root/run"
chroot "$root" /go-runner --log-file=/run/kube-proxy.log --also-stdout /usr/local/bin/kube-proxy \
	--config /run/config.yaml --hostname-override node1 --init-only
test -f "$run/kube-proxy.log"
mount -o remount,bind,ro "$root"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
setpriv --bounding-set="$caps" --inh-caps="$caps" chroot "$root" /usr/local/bin/proxyc \
	apply --config /run/config.yaml --snapshot /run/cluster.yaml --hostname-override node1
nft list ruleset
`

// given matches the capabilities in the manifest.
var given = regexp.MustCompile(`(?m)^ *add: \[(.*)\]`)

// rights returns the capabilities in the manifest, and the one that the test needs to enter the
// image.
func rights(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/deploy/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := given.FindSubmatch(text)
	if m == nil {
		t.Fatal("daemonset.yaml names no capabilities")
	}
	return "-all,+sys_chroot,+" + strings.ReplaceAll(strings.ToLower(string(m[1])), ", ", ",+")
}

func start(t *testing.T, root, mode string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(root, "bin")); mode == "nftables" && err == nil {
		t.Error("the image has more than the program")
	}
	run := t.TempDir()
	for name, text := range map[string]string{
		"config.yaml": fmt.Sprintf("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: %s\nclusterCIDR: 10.244.0.0/16\n"+
			nothingOfTheMachine, mode),
		"cluster.yaml": cluster,
		"xtables.lock": "",
	} {
		if err := os.WriteFile(filepath.Join(run, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "--propagation=private", "sh", "-ec", container, "sh", root, run, rights(t))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "10.244.1.10") {
		t.Errorf("%v\n%s", err, out)
	}
}

// nothingOfTheMachine keeps the settings of connection tracking that all network namespaces of
// the machine share.
const nothingOfTheMachine = "conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n"

// cluster contains a Service with one endpoint.
const cluster = `apiVersion: v1
kind: Node
metadata: {name: node1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], ports: [{port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.10], conditions: {ready: true}}]
`
