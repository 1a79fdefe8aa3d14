package terminal

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Long lines are broken between words; origins and fields behind tabs move to their own lines. Commands stay whole.
func TestFit(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"short # Service a/b\n", "short # Service a/b\n"},
		{"  1. a step of a trace        # Service shop/web: spec.ports[0]\n", "  1. a step of a trace\n      # Service shop/web: spec.ports[0]\n"},
		{"  no route                    # Service shop/web: spec.clusterIPs[0] (spec.ports[0].port)\n", "  no route\n      # Service shop/web:\n      # spec.clusterIPs[0]\n      # (spec.ports[0].port)\n"},
		{"warning: a.yaml:1:1: Service shop/web: spec.type: is → not what it says\n", "warning: a.yaml:1:1: Service shop/web:\n    spec.type: is → not what it says\n"},
		{"  -s, --snapshot=FILE  A file, a directory, or - for input.\n", "  -s, --snapshot=FILE  A file, a\n      directory, or - for input.\n"},
		{"  -c, --conf=F  A configuration, or a ConfigMap.\n", "  -c, --conf=F  A configuration, or a\n                ConfigMap.\n"},
		{"ip proxyc backends 10.96.0.40 . tcp . 9000\tshop/cart:grpc\tendpoints[0]\n", "ip proxyc backends 10.96.0.40 . tcp .\n    9000\n    shop/cart:grpc\n    endpoints[0]\n"},
		{"    proxyc trace --from pod:shop/cart-140 --to 10.96.0.20:80\n", "    proxyc trace --from pod:shop/cart-140 --to 10.96.0.20:80\n"},
		{"a prompt that is longer than forty columns:", "a prompt that is longer than forty\n    columns:"},
	} {
		var b strings.Builder
		w := NewWriter(&b)
		w.Format(false, 40)
		for _, part := range strings.SplitAfter(tc.text, " ") {
			w.Write([]byte(part))
		}
		w.End()
		if d := cmp.Diff(tc.want, b.String()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}
