// Package demo contains the demo cluster, and runs a smaller one in network namespaces.
package demo

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/ir"
)

// Files contains a configuration and a cluster of ten Services, each of which shows one feature,
// and the smaller cluster of the live demo.
//
//go:embed config.yaml cluster.yaml live.yaml
var Files embed.FS

// ErrDiffers is the error if some connections differ from their traces.
var ErrDiffers = errors.New("some connections differ from their traces")

// WriteRules writes the lines of a node's rules that contain the name of the first packet's
// Service.
func WriteRules(w io.Writer, node, mode string, programs ir.Programs) error {
	const service, most = "shop/web", 12
	var all strings.Builder
	if err := review.WriteFormat(&all, programs, ""); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(all.String(), "\n"), "\n")
	var named []string
	for _, line := range lines {
		if strings.Contains(line, service) && len(named) < most {
			named = append(named, strings.TrimSpace(line))
		}
	}
	if len(named) == 0 { // the mode's rules do not contain Service names
		named = lines[:min(most, len(lines))]
	}
	_, err := fmt.Fprintf(w, "# The rules of %s in mode %s have %d lines. The first lines of Service %s:\n\n%s\n\n# All rules: run proxyc demo --write DIR, then the command that it prints.\n",
		node, mode, len(lines), service, strings.Join(named, "\n"))
	return err
}
