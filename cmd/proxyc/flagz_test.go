package main

import (
	"io"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/compiler/config"
)

// flagsOf parses a command line of the daemon and returns what /flagz lists.
func flagsOf(t *testing.T, file string, args ...string) map[string]string {
	t.Helper()
	var c cli
	parser := kong.Must(&c, grammar(io.Discard, io.Discard)...)
	k, err := parser.Parse(help.Dashed(append([]string{"watch"}, args...)))
	if err != nil {
		t.Fatal(err)
	}
	resolved, l := c.Watch.Resolve(func(string) ([]byte, error) { return []byte(file), nil }, false)
	if l.HasErrors() {
		t.Fatal(l)
	}
	return help.Values(k, config.FlagValues(resolved.Config))
}

func TestFlagz(t *testing.T) {
	got := flagsOf(t, "", "-s/dir", "-v", "4", "--masquerade-all", "--proxy_mode", "nftables", "--nodeport-addresses=10.0.0.0/8,192.0.2.0/24",
		"--iptables-sync-period=1m", "--feature-gates=ContextualLogging=false,ComponentFlagz=true", "--vmodule=a=1,b=2", "--lock-timeout=5s", "--master=me:hunter2@host", "--healthz-port=0")
	for name, want := range map[string]string{
		"snapshot": "[/dir]", "v": "4", "masquerade-all": "true", "proxy-mode": "nftables", "mode": "nftables", "nodeport-addresses": "[10.0.0.0/8,192.0.2.0/24]",
		"iptables-sync-period": "1m0s", "ipvs-sync-period": "30s", "feature-gates": "ComponentFlagz=true,ContextualLogging=false", "vmodule": "a=1,b=2", "lock-timeout": "5s",
		"master": "xxxxx@host", "config": "", "cleanup": "false", "healthz-port": "0", "metrics-port": "10249", "metrics-bind-address": "127.0.0.1:10249",
		"oom-score-adj": "-999", "conntrack-tcp-timeout-established": "24h0m0s", "log-flush-frequency": "5s", "kube-api-qps": "5", "iptables-localhost-nodeports": "true",
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %q (there: %t), want %q", name, value, ok, want)
		}
	}
	if _, ok := got["s/dir"]; ok || len(got) < 70 {
		t.Errorf("%d flags: %v", len(got), got)
	}
}

// Values of the configuration file override those of other flags.
func TestFlagzWithFile(t *testing.T) {
	got := flagsOf(t, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nipvs: {syncPeriod: 7s}\n", "--config=c.yaml", "--proxy-mode=nftables", "-v=3")
	want := map[string]string{"config": "c.yaml", "proxy-mode": "ipvs", "ipvs-sync-period": "7s", "v": "3"}
	for name := range want {
		if d := cmp.Diff(want[name], got[name]); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
