package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// flavour is an image: its purpose, and its contents besides the program.
type flavour struct {
	name, title string
	packages    []string // of Debian, with their dependencies
}

// flavours are all images. The first has no tools: an nft of another version than the node's
// could fail on rules that it does not support.
var flavours = []flavour{
	{"nftables", "proxyc for mode nftables", nil},
	{"iptables", "proxyc for all modes of Linux", []string{"iptables"}},
}

// program is the program's path in the images. It is also there under kube-proxy's name, and
// accepts the arguments of kubeadm's DaemonSet.
const (
	program  = "usr/local/bin/proxyc"
	peerName = "usr/local/bin/kube-proxy"
	runner   = "go-runner" // with which kOps starts kube-proxy
)

// images writes an OCI layout of each flavour below the release's directory, for all Linux
// targets.
func (r *release) images(ctx context.Context) error {
	for _, f := range flavours {
		if r.flavour != "" && r.flavour != f.name {
			continue
		}
		if err := r.image(ctx, f); err != nil {
			return fmt.Errorf("image %s: %w", f.name, err)
		}
	}
	return nil
}

func (r *release) image(ctx context.Context, f flavour) error {
	dir := filepath.Join(r.out, "image-"+f.name)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, t := range r.targets {
		if t.os != "linux" {
			continue
		}
		path := filepath.Join(r.out, t.file())
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return err
		}
		img, err := r.imageFor(ctx, f, t, path, info)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: t.os, Architecture: t.arch}}})
	}
	_, err := layout.Write(dir, index)
	return err
}

func (r *release) imageFor(ctx context.Context, f flavour, t target, path string, info *buildinfo.BuildInfo) (v1.Image, error) {
	made, err := time.Parse(time.RFC3339, setting(info, "vcs.time"))
	if err != nil {
		return nil, err
	}
	var adds []mutate.Addendum
	add := func(files tree, what string) error {
		layer, err := files.layer(made)
		adds = append(adds, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: made}, CreatedBy: what}})
		return err
	}
	labels := map[string]string{
		"org.opencontainers.image.title":    f.title,
		"org.opencontainers.image.version":  info.Main.Version,
		"org.opencontainers.image.revision": setting(info, "vcs.revision"),
		"org.opencontainers.image.created":  made.Format(time.RFC3339),
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	if len(f.packages) > 0 {
		unpacked, err := os.MkdirTemp("", "proxyc-image-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(unpacked)
		versions, err := unpackDebian(ctx, unpacked, t.arch, f.packages)
		if err != nil {
			return nil, err
		}
		files := tree{}
		if err := files.addDir(unpacked, needless); err != nil {
			return nil, err
		}
		for link, to := range alternatives {
			files.addLink("usr/sbin/"+link, to)
		}
		what := strings.Join(versions, " ")
		labels["proxyc.debian.packages"] = what
		if err := add(files, "Debian packages "+what); err != nil {
			return nil, err
		}
	}
	own := tree{}
	own.addFile(program, path, 0o755)
	own.addLink(peerName, "proxyc")
	own.addLink(runner, program)
	if err := add(own, "proxyc "+info.Main.Version); err != nil {
		return nil, err
	}
	img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), adds...)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = t.os, t.arch, v1.Time{Time: made}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + program}, Cmd: []string{"watch"}, Labels: labels,
		Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}
	return mutate.ConfigFile(img, config)
}
