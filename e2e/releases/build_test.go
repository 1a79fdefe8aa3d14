package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// stubs replace helpers of those packages, which would link most of Kubernetes.
var stubs = map[string]string{
	"pkg/apis/core/validation/stub.go": `package validation

import "k8s.io/apimachinery/pkg/api/validation"

var ValidateNonnegativeField = validation.ValidateNonnegativeField
`,
	"pkg/kubelet/qos/stub.go":   "package qos\n\nconst KubeProxyOOMScoreAdj int = -999\n",
	"pkg/cluster/ports/stub.go": "package ports\n\nconst (\n\tProxyStatusPort  = 10249\n\tProxyHealthzPort = 10256\n)\n",
	"pkg/proxy/util/stub.go": `package util

import (
	"net"
	"strconv"
)

func AppendPortIfNeeded(addr string, port int32) string {
	if _, _, err := net.SplitHostPort(addr); err == nil || net.ParseIP(addr) == nil {
		return addr
	}
	return net.JoinHostPort(addr, strconv.Itoa(int(port)))
}
`,
}

// unserved are versions that the module proxy does not serve, and those with the same source.
var unserved = map[string]string{"k8s.io/kube-proxy v0.31.14": "k8s.io/kube-proxy v0.31.8"}

// unbuildable are releases that cannot be built here, with the reason.
var unbuildable = map[string]string{
	"1.38.0-beta.0": "requires Go 1.27, and sigs.k8s.io/structured-merge-diff/v7, k8s.io/ktesting and sigs.k8s.io/iptables-wrappers are not served",
}

// versionless matches modules of Kubernetes, which k8s.io/kubernetes has in its own directory.
var versionless = regexp.MustCompile(`(?m)^(\tk8s\.io/[a-z-]+) v0\.0\.0( // indirect)?$`)

// buildJudge builds the judge of a release from a copy of kube-proxy's packages, and returns the program.
func buildJudge(ctx context.Context, version, dir string) (string, error) {
	main, err := os.ReadFile("judge/main.go")
	if err != nil {
		return "", err
	}
	archive, err := download("k8s.io/kubernetes", "v"+version)
	if err != nil {
		return "", err
	}
	defer archive.Close()
	files := map[string][]byte{"cmd/judge/main.go": main}
	for name, text := range stubs {
		files[name] = []byte(text)
	}
	err = each(archive, "k8s.io/kubernetes@v"+version, func(name string, text []byte) error {
		if name == "go.mod" {
			own, _, _ := strings.Cut(string(text), "\nreplace ")
			own = versionless.ReplaceAllString(own, "$1 v0."+strings.TrimPrefix(version, "1.")+"$2")
			for is, instead := range unserved {
				own = strings.ReplaceAll(own, is, instead)
			}
			text = []byte(own)
		}
		files[name] = text
		return nil
	}, "pkg/features", "pkg/proxy/apis/config", "go.mod", "go.sum")
	if err != nil {
		return "", err
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return "", err
		}
	}
	program := filepath.Join(dir, "judge")
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-o", program, "./cmd/judge")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", version, err, out)
	}
	return program, nil
}
