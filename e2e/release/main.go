// Command release builds what users get: static programs for each platform, their contents
// (CycloneDX), their checksums, archives of them as kubectl plugins with krew's manifest, and
// images (OCI). The same commit gives the same bytes on every machine.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

// target is a platform that programs are built for.
type target struct{ os, arch string }

// targets are all platforms.
var targets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"darwin", "arm64"}}

func (t target) String() string { return t.os + "/" + t.arch }

// file is the name of the target's program.
func (t target) file() string {
	name := "proxyc-" + t.os + "-" + t.arch
	if t.os == "windows" {
		name += ".exe"
	}
	return name
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var r release
	flag.StringVar(&r.source, "source", "../..", "directory of the sources")
	flag.StringVar(&r.out, "o", "../../dist", "directory to write to")
	only := flag.String("only", "", "the one platform to build for, as linux/amd64; all by default")
	images := flag.Bool("images", false, "make images of the programs, too")
	flag.StringVar(&r.flavour, "flavour", "", "the one image to make, as nftables; all by default")
	flag.Parse()
	if err := r.choose(*only); err != nil {
		fail(err)
	}
	if err := r.make(ctx); err != nil {
		fail(err)
	}
	if *images {
		if err := r.images(ctx); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "release:", err)
	os.Exit(1)
}

// release describes a release to build.
type release struct {
	source, out string
	targets     []target
	env         []string // of the builds, in addition to the process's own
	flavour     string   // of images; empty: all
}

// choose selects one platform, or all.
func (r *release) choose(only string) error {
	r.targets = targets
	if only == "" {
		return nil
	}
	r.targets = slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return t.String() != only })
	if len(r.targets) == 0 {
		return fmt.Errorf("-only: must be one of %v, got %q", targets, only)
	}
	return nil
}

// make writes all files of the release into its directory. It overwrites existing ones.
func (r *release) make(ctx context.Context) error {
	out, err := filepath.Abs(r.out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var sums bytes.Buffer
	version, archives := "", map[string]string{}
	for _, t := range r.targets {
		program := filepath.Join(out, t.file())
		info, err := r.build(ctx, t, program)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		parts, err := contents(ctx, r.source, info)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		if err := os.WriteFile(program+".cdx.json", parts, 0o644); err != nil {
			return err
		}
		data, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		archive, err := r.pack(t, data)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		if err := os.WriteFile(filepath.Join(out, t.archive()), archive, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), t.file())
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(parts), t.file()+".cdx.json")
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(archive), t.archive())
		version, archives[t.archive()] = info.Main.Version, fmt.Sprintf("%x", sha256.Sum256(archive))
	}
	manifest, err := r.krew(version, archives)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, krewFile), manifest, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// build builds a program, and returns the build information that the Go tool embedded in it.
func (r *release) build(ctx context.Context, t target, program string) (*buildinfo.BuildInfo, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=true", "-trimpath", "-ldflags=-s -w", "-o", program, "./cmd/proxyc")
	cmd.Dir = r.source
	// The first level of each architecture, so that the program runs on any machine.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT=")
	cmd.Env = append(cmd.Env, r.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, &stderr)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	if setting(info, "vcs.revision") == "" {
		return nil, errors.New("the Go tool did not stamp the commit: a release is built in a clone of the repository (no worktree, no archive)")
	}
	return info, nil
}

// setting returns the value of a key in the build information, or "".
func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
