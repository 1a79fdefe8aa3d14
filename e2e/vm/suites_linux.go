package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A suite is a test binary with its arguments.
type suite struct {
	name  string
	pkg   string // below proxyc's module
	args  string // -test.v is added; $PROXYC is the program
	usual bool
}

// suites are in the order in which they run.
var suites = []suite{
	{name: "nftables", pkg: "apply/nftables", usual: true},
	{name: "iptables", pkg: "apply/iptables", usual: true},
	{name: "ipvs", pkg: "apply/ipvs", usual: true},
	{name: "conformance-ipv4", pkg: "apply/applytest", args: "-test.run=TestConformance -families=ipv4 -proxyc=$PROXYC"},
	{name: "conformance-ipv6", pkg: "apply/applytest", args: "-test.run=TestConformance -families=ipv6 -proxyc=$PROXYC"},
}

// build builds the suites and what they need into dir.
func build(ctx context.Context, dir string, chosen []suite) (commands []command, err error) {
	root, err := goTool(ctx, ".", "list", "-m", "-f", "{{.Dir}}", "github.com/proxyc/proxyc")
	if err != nil {
		return nil, err
	}
	proxyc := filepath.Join(dir, "proxyc")
	if _, err := goTool(ctx, root, "build", "-o", proxyc, "./cmd/proxyc"); err != nil {
		return nil, err
	}
	for _, s := range chosen {
		binary := filepath.Join(dir, strings.ReplaceAll(s.pkg, "/", "-")+".test")
		if _, err := os.Stat(binary); err != nil {
			fmt.Println("vm: building", s.pkg)
			if _, err := goTool(ctx, root, "test", "-c", "-o", binary, "./"+s.pkg); err != nil {
				return nil, err
			}
		}
		args := strings.Fields(strings.ReplaceAll(s.args, "$PROXYC", proxyc))
		commands = append(commands, command{Name: s.name, Dir: filepath.Join(root, s.pkg),
			Args: append([]string{binary, "-test.v", "-test.timeout=60m"}, args...)})
	}
	return commands, nil
}

// goTool runs the Go tool in a directory and returns what it printed. Binaries
// that it builds are static.
func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
