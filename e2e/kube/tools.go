package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// prepared gives the program of a package, where the environment names a directory
// (PROXYC_TOOLS) that has programs by the paths of their packages. It does so
// where nothing can be built.
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
	_, err = goCommand(ctx, root, "build", "-o", binary, "./cmd/proxyc")
	return binary, err
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
	_, err = goCommand(ctx, filepath.Join(root, "e2e", "userspace"), "build", "-o", binary, ".")
	return binary, err
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
