package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/compiler/config"
)

// The documented periods are the actual ones.
func TestPeriods(t *testing.T) {
	for _, section := range []string{"iptables", "ipvs", "nftables"} {
		text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + section + "\n" +
			section + ": {syncPeriod: 7s, minSyncPeriod: 3s}\nconfigSyncPeriod: 5s\n"
		resolved, l := config.Load("c.yaml", []byte(text), true)
		if l.HasErrors() {
			t.Fatal(l)
		}
		full := time.Hour
		if section == "ipvs" {
			full = time.Minute
		}
		if s := scheduleOf(resolved.Config); s.Retry != 7*time.Second || s.Min != 3*time.Second || s.Full != full {
			t.Errorf("mode %s: tried again after %s, at least %s between two, compared every %s", section, s.Retry, s.Min, s.Full)
		}
	}
	said := 0
	for _, f := range config.Fields() {
		if strings.HasSuffix(f.Path, ".syncPeriod") || f.Path == "configSyncPeriod" {
			said++
			every := "every hour"
			if strings.HasPrefix(f.Path, "ipvs.") {
				every = "every minute"
			}
			if !strings.Contains(f.Means, every) && f.Means != "As iptables.syncPeriod." {
				t.Errorf("%s: does not say when rules are compared: %s", f.Path, f.Means)
			}
		}
	}
	if said != 4 {
		t.Errorf("%d fields speak of it", said)
	}
}
