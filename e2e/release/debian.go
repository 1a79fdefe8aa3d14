package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// unpackDebian unpacks packages, with all dependencies, of this machine's Debian release for an
// architecture. It returns "name=version" of each.
func unpackDebian(ctx context.Context, dir, arch string, packages []string) ([]string, error) {
	state, err := os.MkdirTemp("", "proxyc-apt-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(state)
	for _, sub := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(state, sub), 0o755); err != nil {
			return nil, err
		}
	}
	// With an empty status file nothing counts as installed, so that apt fetches all
	// dependencies.
	if err := os.WriteFile(filepath.Join(state, "status"), nil, 0o644); err != nil {
		return nil, err
	}
	apt := func(args ...string) error {
		return command(ctx, "apt-get", append([]string{"-q",
			"-o", "APT::Architecture=" + arch, "-o", "APT::Architectures=" + arch, "-o", "APT::Sandbox::User=root",
			"-o", "Dir::State::lists=" + filepath.Join(state, "lists"), "-o", "Dir::State::status=" + filepath.Join(state, "status"),
			"-o", "Dir::Cache=" + state, "-o", "Debug::NoLocking=true"}, args...)...)
	}
	if err := apt("update"); err != nil {
		return nil, err
	}
	if err := apt(append([]string{"install", "-y", "--no-install-recommends", "--download-only"}, packages...)...); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(state, "archives", "*.deb"))
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, file := range files {
		name, rest, _ := strings.Cut(filepath.Base(file), "_")
		version, _, _ := strings.Cut(rest, "_")
		if slices.Contains(needlessPackages, name) {
			continue
		}
		versions = append(versions, name+"="+strings.ReplaceAll(version, "%3a", ":"))
		if err := command(ctx, "dpkg-deb", "--extract", file, dir); err != nil {
			return nil, err
		}
	}
	slices.Sort(versions)
	return versions, nil
}

// needlessPackages are only used by scripts that do not run.
var needlessPackages = []string{"debconf", "dpkg", "tar", "perl-base", "gcc-12-base", "gcc-14-base"}

// needlessFiles matches files that no program uses: documentation except licences, and
// translations.
var needlessFiles = regexp.MustCompile(`^usr/share/(man|locale|lintian|bug|info)(/|$)|^usr/share/doc/[^/]+/[^c]|^(var|etc|home|tmp|proc|sys|dev|run|mnt|media|opt|srv)(/|$)|^usr/lib/[^/]+/gconv(/|$)`)

func needless(at string) bool { return needlessFiles.MatchString(at) }

// alternatives are the links that update-alternatives would have made.
var alternatives = map[string]string{
	"iptables": "iptables-nft", "iptables-save": "iptables-nft-save", "iptables-restore": "iptables-nft-restore",
	"ip6tables": "ip6tables-nft", "ip6tables-save": "ip6tables-nft-save", "ip6tables-restore": "ip6tables-nft-restore",
}

func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, &stderr)
	}
	return nil
}
