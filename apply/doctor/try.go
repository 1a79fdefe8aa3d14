package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
)

// tryConfig is the configuration for trying a mode. It sets nothing that network namespaces share.
const tryConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
hostnameOverride: node1
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
mode: `

// Try runs a program, usually this one, that applies the rules of a cluster in a mode, in a new
// network namespace. The error describes what the node lacks.
func Try(ctx context.Context, self string, cluster []byte, mode ir.Mode) error {
	dir, err := os.MkdirTemp("", "proxyc-doctor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	config, snapshot := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "cluster.yaml")
	err = errors.Join(os.WriteFile(config, []byte(tryConfig+string(mode)+"\n"), 0o600), os.WriteFile(snapshot, cluster, 0o600))
	if err != nil {
		return err
	}
	_, err = run.Scratch(ctx, nil, self, "apply", "-c", config, "-s", snapshot)
	if failed, ok := errors.AsType[*run.Error](err); ok && failed.Stderr != "" { // its messages are this program's
		return errors.New(strings.ReplaceAll(strings.TrimPrefix(failed.Stderr, "proxyc: "), "\n", "; "))
	}
	return err
}
