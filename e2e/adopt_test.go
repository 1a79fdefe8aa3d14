package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

func service(name, ip string) kube.Object {
	return kube.Object{"apiVersion": "v1", "kind": "Service", "metadata": kube.Object{"name": name, "namespace": "default"},
		"spec": kube.Object{"clusterIP": ip, "ports": []any{kube.Object{"port": 80, "targetPort": 8080}}}}
}

// TestAdopt checks that a Service from the API reaches the kernel, and that a second daemon finds
// nothing to change.
func TestAdopt(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			parallel(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := clusterOf(t).Apply(ctx, service("adopt", "10.96.1.1")); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { clusterOf(t).Delete(context.WithoutCancel(ctx), service("adopt", "")) })
			n := newNode(t)
			p := n.watch(ctx, t, "--proxy-mode", mode)
			rules := func() string {
				tool := []string{"nft", "list", "ruleset"}
				if mode == "iptables" {
					tool = []string{"iptables-save"}
				}
				out, err := n.Run(n.Command(ctx, tool[0], tool[1:]...))
				if err != nil {
					t.Fatal(err)
				}
				return string(out)
			}
			if !strings.Contains(rules(), "10.96.1.1") {
				t.Fatalf("the Service is not in the kernel:\n%s", rules())
			}
			if took, err := p.Stop(); err != nil || took > applytest.StopTimeout {
				t.Errorf("ended after %s: %v\n%s", took, err, p.Tail())
			}
			p = n.watch(ctx, t, "--proxy-mode", mode)
			_, metrics, err := p.Get(ctx, "http://127.0.0.1:10249/metrics")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(metrics) {
				if strings.HasPrefix(line, "proxyc_operations_total") && !strings.HasSuffix(line, " 0\n") {
					t.Errorf("a restart with nothing changed wrote rules: %s", line)
				}
			}
		})
	}
}
