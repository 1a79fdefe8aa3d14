package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// The tools that this module's go.mod names.
const (
	APIServer = "k8s.io/kubernetes/cmd/kube-apiserver"
	KubeProxy = "k8s.io/kubernetes/cmd/kube-proxy"
	Etcd      = "go.etcd.io/etcd/server/v3"
)

var built sync.Map // package → func() (string, error)

// Proxyc's package.
const proxyc = "github.com/proxyc/proxyc/cmd/proxyc"

// prepared returns the program of a package if the environment variable PROXYC_TOOLS names a
// directory that contains programs, by the paths of their packages. It is set where nothing can
// be built.
func prepared(pkg string) (binary string, ok bool) {
	dir, ok := os.LookupEnv("PROXYC_TOOLS")
	return filepath.Join(dir, pkg), ok
}

// Tool builds a tool of this module, or finds it in Go's build cache, and
// returns the path of its executable.
func Tool(ctx context.Context, pkg string) (string, error) {
	if binary, ok := prepared(pkg); ok {
		return binary, nil
	}
	return once(pkg, func() (string, error) {
		return goCommand(ctx, ".", "tool", "-n", pkg)
	})
}

// Root is the directory of proxyc's own module.
func Root(ctx context.Context) (string, error) {
	return goCommand(ctx, ".", "list", "-m", "-f", "{{.Dir}}", "github.com/proxyc/proxyc")
}

// errNoHistory means that there is no earlier proxyc to build.
var errNoHistory = errors.New("no earlier revision of proxyc")

// releaseApart is the number of commits between two releases if there are no tags.
const releaseApart = 100

// oldestReadable is the first commit with today's form of boot files and of the note about them, which
// each version must read of the other.
const oldestReadable = "6c50fa35e9cf5272ed6d45fdabd3d8f2ba7784a4"

// Previous builds proxyc at a revision, and returns the path of its executable in dir, and the
// commit's name. The revision "" is the previous release: the newest tag before the last commit.
// Without tags it is the commit releaseApart before it, or the first of a shallow clone, but not
// older than oldestReadable. If the source is no clone, has only one commit, or cannot be built,
// the error is one for which NoHistory is true.
func Previous(ctx context.Context, dir, revision string) (binary, commit string, err error) {
	if _, ok := prepared(proxyc); ok {
		return "", "", fmt.Errorf("%w: nothing can be built here", errNoHistory)
	}
	root, err := Root(ctx)
	if err != nil {
		return "", "", err
	}
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return "", "", fmt.Errorf("%w: %s: git rev-parse HEAD: %w", errNoHistory, root, err)
	}
	if revision == "" {
		if revision, err = git("describe", "--tags", "--abbrev=0", "HEAD^"); err != nil {
			log, err := git("rev-list", "--first-parent", fmt.Sprintf("--max-count=%d", releaseApart+1), "HEAD")
			if err != nil {
				return "", "", err
			}
			revision = log[strings.LastIndexByte(log, '\n')+1:]
		}
		if _, err := git("merge-base", "--is-ancestor", revision, oldestReadable); err == nil {
			revision = oldestReadable
		}
	}
	if commit, err = git("rev-parse", "--verify", revision+"^{commit}"); err != nil {
		return "", "", fmt.Errorf("git rev-parse %s: %w", revision, err)
	}
	if commit == head {
		return "", "", fmt.Errorf("%w: %s has the last commit alone", errNoHistory, root)
	}
	source := filepath.Join(dir, "previous")
	if err := os.Mkdir(source, 0o700); err != nil {
		return "", "", err
	}
	archive := filepath.Join(dir, "previous.tar")
	if _, err := git("archive", "--format=tar", "--output="+archive, commit); err != nil {
		return "", "", fmt.Errorf("git archive %s: %w", commit, err)
	}
	if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", source).CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("tar -xf %s: %w: %s", archive, err, out)
	}
	binary = filepath.Join(dir, "proxyc-previous")
	return binary, commit, build(ctx, source, binary, "./cmd/proxyc", "-trimpath") // the directory differs each time
}

// NoHistory reports whether an error of Previous means that there is nothing to build.
func NoHistory(err error) bool { return errors.Is(err, errNoHistory) }

// Proxyc builds proxyc, and returns the path of its executable in dir.
func Proxyc(ctx context.Context, dir string) (string, error) {
	if binary, ok := prepared(proxyc); ok {
		return binary, nil
	}
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "proxyc")
	return binary, build(ctx, root, binary, "./cmd/proxyc")
}

// userspace's package, in a module of its own.
const userspace = "github.com/proxyc/proxyc/e2e/userspace"

// Userspace builds the program that runs kube-proxy 1.25's mode userspace, and
// returns the path of its executable in dir.
func Userspace(ctx context.Context, dir string) (string, error) {
	if binary, ok := prepared(userspace); ok {
		return binary, nil
	}
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "userspace")
	return binary, build(ctx, filepath.Join(root, "e2e", "userspace"), binary, ".")
}

// build builds the program of a package. Unlike go build, go run keeps linked programs in Go's cache.
func build(ctx context.Context, source, binary, pkg string, flags ...string) error {
	_, err := goCommand(ctx, source, slices.Concat([]string{"run", "-exec", "cp"}, flags, []string{pkg, binary})...)
	return err
}

func once(key string, build func() (string, error)) (string, error) {
	f, _ := built.LoadOrStore(key, sync.OnceValues(build))
	return f.(func() (string, error))()
}

// goCommand runs the Go tool in a directory and returns what it printed.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
