package gates

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-proxy/app"

	"github.com/proxyc/proxyc/compiler/config"
)

// TestFlags detects a flag of kube-proxy that proxyc lacks.
func TestFlags(t *testing.T) {
	known := map[string]bool{"help": true, "version": true} // defined by the parser
	for f := range reflect.TypeFor[config.Flags]().Fields() {
		known[f.Tag.Get("name")] = true
	}
	seen := 0
	app.NewProxyCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Name, "test.") || f.Name == "update" { // flags of this test binary
			return
		}
		seen++
		if !known[strings.ReplaceAll(f.Name, "_", "-")] { // both spellings are accepted

			t.Errorf("--%s: not a flag of proxyc", f.Name)
		}
	})
	if seen < 50 {
		t.Errorf("kube-proxy has only %d flags", seen)
	}
}
