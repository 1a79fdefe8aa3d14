package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/diag"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// lines returns diagnostics as "severity: text", for comparison.
func lines(l diag.List) []string {
	var out []string
	for _, d := range l {
		out = append(out, d.Severity.String()+": "+d.String())
	}
	return out
}

// check loads a configuration and compares its diagnostics with want.
func check(t *testing.T, data string, strict bool, want ...string) *Resolved {
	t.Helper()
	r, l := Load("c.yaml", []byte(data), strict)
	if diff := cmp.Diff(want, lines(l)); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
	return r
}

func TestLoadFindings(t *testing.T) {
	tests := []struct {
		name, body string // body follows the two lines of the header
		strict     bool
		want       []string
	}{
		{name: "nothing but the header"},
		{name: "unknown key", body: "masqueradeBot: 1\niptables:\n  masqueradebit: 3\n", want: []string{
			`warning: c.yaml:3:1: masqueradeBot: unknown key, it has no effect`,
			`warning: c.yaml:5:3: iptables.masqueradebit: unknown key, it has no effect (did you mean masqueradeBit?)`,
		}},
		{name: "unknown key of another section", body: "masqueradeAll: true\n", want: []string{
			`warning: c.yaml:3:1: masqueradeAll: unknown key, it has no effect (did you mean iptables.masqueradeAll or nftables.masqueradeAll?)`,
		}},
		{name: "unknown key, strict", body: "modes: ipvs\n", strict: true, want: []string{
			`error: c.yaml:3:1: modes: unknown key, it has no effect (did you mean mode?)`,
		}},
		{name: "duplicate key", body: "mode: ipvs\nmode: nftables\n", want: []string{
			`warning: c.yaml:4:1: mode: duplicate key, first at line 3; the last value is used`,
		}},
		{name: "duplicate key, strict", body: "mode: ipvs\nmode: nftables\n", strict: true, want: []string{
			`error: c.yaml:4:1: mode: duplicate key, first at line 3; the last value is used`,
		}},
		{name: "wrong types", body: `mode: 3
bindAddress: yes
iptables:
  masqueradeBit: "14"
  masqueradeAll: "true"
  syncPeriod: 30
  minSyncPeriod: 1 minute
ipvs: []
nodePortAddresses: primary
conntrack:
  min: 99999999999
clientConnection:
  qps: fast
featureGates:
  NFTablesProxyMode: 1
showHiddenMetricsForVersion: 1.36
oomScoreAdj: 1.5
clusterCIDR: {a: b}
`, want: []string{
			`error: c.yaml:3:1: mode: must be a string, got 3 (put it in quotes)`,
			`error: c.yaml:4:1: bindAddress: must be a string, got yes (put it in quotes)`,
			`error: c.yaml:6:3: iptables.masqueradeBit: must be an integer from -2147483648 to 2147483647, got "14"`,
			`error: c.yaml:7:3: iptables.masqueradeAll: must be true or false, got "true"`,
			`error: c.yaml:8:3: iptables.syncPeriod: must be a duration such as "30s" or "1h30m", got 30`,
			`error: c.yaml:9:3: iptables.minSyncPeriod: must be a duration such as "30s" or "1h30m", got "1 minute"`,
			`error: c.yaml:10:1: ipvs: must be a mapping, got a list`,
			`error: c.yaml:11:1: nodePortAddresses: must be a list, got "primary"`,
			`error: c.yaml:13:3: conntrack.min: must be an integer from -2147483648 to 2147483647, got 99999999999`,
			`error: c.yaml:15:3: clientConnection.qps: must be a number, got "fast"`,
			`error: c.yaml:17:3: featureGates.NFTablesProxyMode: must be true or false, got 1`,
			`error: c.yaml:18:1: showHiddenMetricsForVersion: must be a string, got 1.36 (put it in quotes)`,
			`error: c.yaml:19:1: oomScoreAdj: must be an integer from -2147483648 to 2147483647, got 1.5`,
			`error: c.yaml:20:1: clusterCIDR: must be a string, got a mapping`,
		}},
		{name: "read errors and invalid values at once", body: "iptables:\n  masqueradeBit: 40\n  minSyncPeriod: soon\noomScoreAdj: -2000\n", want: []string{
			`error: c.yaml:4:3: iptables.masqueradeBit: must be 0-31, got 40`,
			`error: c.yaml:5:3: iptables.minSyncPeriod: must be a duration such as "30s" or "1h30m", got "soon"`,
			`error: c.yaml:6:1: oomScoreAdj: must be -1000 to 1000, got -2000`,
		}},
		{name: "null is absent", body: "mode: null\niptables:\nipvs: ~\noomScoreAdj: null\nnodePortAddresses: null\n"},
		{name: "removed fields", body: `udpIdleTimeout: 250ms
portRange: "30000-31000"
resourceContainer: /kube-proxy
conntrack:
  max: 1000
`, want: []string{
			`warning: c.yaml:3:1: udpIdleTimeout: has no effect since release 1.26, except in mode userspace`,
			`warning: c.yaml:4:1: portRange: has no effect since release 1.26, except in mode userspace`,
			`warning: c.yaml:5:1: resourceContainer: has no effect since release 1.16`,
			`warning: c.yaml:7:3: conntrack.max: has no effect since release 1.15 (use conntrack.maxPerCore and conntrack.min)`,
		}},
		{name: "removed fields that say nothing", body: "portRange: \"\"\nconntrack:\n  max: 0\n  maxPerCore: 5\n"},
		{name: "userspace reads what is removed", body: "mode: userspace\nudpIdleTimeout: 1s\nportRange: 30000+100\n"},
		{name: "max with maxPerCore", body: "conntrack:\n  max: 5\n  maxPerCore: 6\n", want: []string{
			`warning: c.yaml:4:3: conntrack.max: has no effect since release 1.15 (use conntrack.maxPerCore and conntrack.min)`,
		}},
		{name: "second document", body: "mode: ipvs\n---\nmode: nftables\n", want: []string{
			`warning: c.yaml:5:1: is ignored: the configuration is the one at line 1`,
		}},
		{name: "anchors and merge keys", body: "iptables: &p\n  syncPeriod: 40s\nnftables:\n  <<: *p\n  minSyncPeriod: 2s\n"},
		{name: "tab before a key", body: "mode: nftables\n\tclusterCIDR: 10.244.0.0/16\n", want: []string{
			`error: c.yaml:4:1: not YAML or JSON: a tab indents the line: use spaces`,
		}},
		{name: "broken YAML", body: "iptables:\n  syncPeriod: [\n", want: []string{
			`error: c.yaml:4:3: not YAML or JSON: did not find expected node content`,
		}},
		{name: "null key", body: "null: 1\n", want: []string{`error: c.yaml:3:1: must be a mapping with keys that are strings, got null`}},
		{name: "null duration", body: "configSyncPeriod: null\nconntrack: {tcpEstablishedTimeout: null}\n", want: []string{
			`error: c.yaml:3:1: configSyncPeriod: must be a duration such as "30s" or "1h30m", got null`,
		}},
		{name: "empty size", body: "logging: {options: {json: {infoBufferSize: ''}}}\n", want: []string{
			`error: c.yaml:3:28: logging.options.json.infoBufferSize: must be a size such as "512" or "4Ki", got ""`,
		}},
		{name: "fields that kube-proxy knows no more", body: "udpIdleTimeout: x\nresourceContainer: 5\nconntrack: {max: x}\n", want: []string{
			`warning: c.yaml:3:1: udpIdleTimeout: must be a duration such as "30s" or "1h30m", got "x"`,
			`warning: c.yaml:4:1: resourceContainer: must be a string, got 5 (put it in quotes)`,
			`warning: c.yaml:5:13: conntrack.max: must be an integer from -2147483648 to 2147483647, got "x"`,
		}},
		{name: "split stream without its gate", body: "logging: {options: {json: {splitStream: true}}}\n", want: []string{
			`warning: c.yaml:3:28: logging.options.json.splitStream: has no effect unless feature gate LoggingAlphaOptions is on`,
		}},
		{name: "dead fields", body: "portRange: x\nwindowsRunAsService: true\nshowHiddenMetricsForVersion: '1.35'\n", want: []string{
			`warning: c.yaml:3:1: portRange: has no effect since release 1.26, except in mode userspace`,
			`warning: c.yaml:4:1: windowsRunAsService: has no effect on Linux`,
			`warning: c.yaml:5:1: showHiddenMetricsForVersion: has no effect: proxyc has no hidden metrics`,
		}},
		{name: "tags and whole numbers", body: "hostnameOverride: !!binary aGVsbG8=\nenableProfiling: !!bool 'true'\nlogging: {flushFrequency: 1e9}\n"},
		{name: "numbers that JSON lacks", body: "nope: {a: [.inf]}\nresourceContainer: .nan\n", want: []string{
			`warning: c.yaml:3:1: nope: unknown key, it has no effect`,
			`error: c.yaml:3:12: nope: must be a number that JSON supports, got .inf`,
			`warning: c.yaml:4:1: resourceContainer: must be a string, got .nan (put it in quotes)`,
			`error: c.yaml:4:20: resourceContainer: must be a number that JSON supports, got .nan`,
		}},
		{name: "list key", body: "? [a]\n: 1\n", want: []string{
			`error: c.yaml:3:3: must be a mapping with keys that are strings, got a list`,
		}},
		{name: "bad list item", body: "logging:\n  vmodule:\n  - filePattern: a\n    verbosity: -1\n  - 3\n", want: []string{
			`error: c.yaml:6:5: logging.vmodule[0].verbosity: must be an integer from 0 to 4294967295, got -1`,
			`error: c.yaml:7:5: logging.vmodule[1]: must be a mapping, got 3`,
			`error: c.yaml:7:5: logging.vmodule[1].filePattern: must be a file name or pattern without , and =, got ""`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { check(t, header+tt.body, tt.strict, tt.want...) })
	}
}

func TestLoadHeader(t *testing.T) {
	tests := []struct {
		name, data string
		want       []string
	}{
		{"empty", "", []string{`error: c.yaml:1:1: no configuration found, the file is empty`}},
		{"only comments", "# nothing\n---\n# here\n", []string{`error: c.yaml:1:1: no configuration found, the file is empty`}},
		{"a list", "- a\n", []string{`error: c.yaml:1:1: must be a mapping with apiVersion and kind, got a list`}},
		{"missing", "mode: 3\n", []string{
			`error: c.yaml:1:1: apiVersion: missing, must be "kubeproxy.config.k8s.io/v1alpha1"`,
			`error: c.yaml:1:1: kind: missing, must be "KubeProxyConfiguration"`,
			`error: c.yaml:1:1: mode: must be a string, got 3 (put it in quotes)`,
		}},
		{"wrong", "kind: Secret\napiVersion: v1\nspec: {}\n", []string{
			`error: c.yaml:1:1: kind: must be "KubeProxyConfiguration", got "Secret"`,
			`error: c.yaml:2:1: apiVersion: must be "kubeproxy.config.k8s.io/v1alpha1", got "v1"`,
		}},
		{"binary", "\x00\x01", []string{`error: c.yaml:1:1: not YAML or JSON: control characters are not allowed`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { check(t, tt.data, false, tt.want...) })
	}
}

func TestLoadUnreadable(t *testing.T) {
	f := &Flags{Config: new("c.yaml")}
	r, l := f.Resolve(func(string) ([]byte, error) { return nil, os.ErrNotExist }, false)
	if r != nil {
		t.Error("a configuration without a file")
	}
	if diff := cmp.Diff([]string{"error: c.yaml: file does not exist"}, lines(l)); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
}

// Load finds the configuration among other objects in typical files.
func TestLoadFinds(t *testing.T) {
	const (
		own     = header + "mode: ipvs\noomScoreAdj: 2000\n"
		cluster = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking: {podSubnet: 10.244.0.0/16}\n"
		kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	)
	inMap := func(key string) string {
		return "apiVersion: v1\nkind: ConfigMap\ndata:\n  " + key + ": |\n    " + strings.ReplaceAll(strings.TrimSpace(own), "\n", "\n    ") + "\n"
	}
	inList := func(items ...string) string {
		list := "apiVersion: v1\nitems:\n"
		for _, item := range items {
			list += "- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ") + "\n"
		}
		return list + "kind: List\n"
	}
	const other = "apiVersion: v1\nkind: ConfigMap\ndata:\n  config: |\n    a: b\n"
	for _, tt := range []struct {
		name, data string
		at         string // of oomScoreAdj
		more       []string
	}{
		{"kubeadm's file", cluster + "---\n" + own, "8:1", nil},
		{"kubeadm's file, the other way", own + "---\n" + cluster + "---\n" + kubelet, "4:1", nil},
		{"a ConfigMap behind others", cluster + "---\n" + other + "---\n" + inMap("config.conf"), "18:5", nil},
		{"EKS", inMap("config"), "8:5", nil},
		{"both keys", strings.Replace(inMap("config.conf"), "data:\n", "data:\n  config: x\n", 1), "9:5", nil},
		{"a List", inList(other, inMap("config.conf")), "15:7", nil},
		{"an array", "- {apiVersion: v1, kind: Secret}\n- " + strings.ReplaceAll(strings.TrimSpace(own), "\n", "\n  ") + "\n", "5:3", nil},
		{"a typed List", strings.Replace(inList(strings.Replace(inMap("config"), "apiVersion: v1\nkind: ConfigMap", "kind: ConfigMap", 1)), "List", "ConfigMapList", 1), "9:7", nil},
		{"a List of one document", inList(other) + "---\n" + own, "13:1", nil},
		{"two", own + "---\n" + inMap("config"), "4:1", []string{"warning: c.yaml:6:1: is ignored: the configuration is the one at line 1"}},
		{"broken behind", own + "---\n{ [ :\n", "4:1", []string{"warning: c.yaml:5:1: the text after the configuration is not YAML or JSON: did not find expected node content"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := append([]string{fmt.Sprintf("error: c.yaml:%s: oomScoreAdj: must be -1000 to 1000, got 2000", tt.at)}, tt.more...)
			check(t, tt.data, false, want...)
		})
	}
	check(t, cluster+"---\n"+kubelet, false,
		`error: c.yaml:1:1: apiVersion: must be "kubeproxy.config.k8s.io/v1alpha1", got "kubeadm.k8s.io/v1beta4"`,
		`error: c.yaml:2:1: kind: must be "KubeProxyConfiguration", got "ClusterConfiguration"`)
}

func TestLoadConfigMap(t *testing.T) {
	const literal = `apiVersion: v1
kind: ConfigMap
metadata:
  name: kube-proxy
data:
  config.conf: |-
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    kind: KubeProxyConfiguration
    mode: ipvs
    oomScoreAdj: 2000
  kubeconfig.conf: |-
    apiVersion: v1
`
	r := check(t, literal, false, `error: c.yaml:10:5: oomScoreAdj: must be -1000 to 1000, got 2000`)
	if got := r.Source("mode").String(); got != "c.yaml:9" || r.Config.Mode != "ipvs" {
		t.Errorf("mode %s from %s, want ipvs from c.yaml:9", r.Config.Mode, got)
	}
	check(t, `{"kind":"ConfigMap",
"data":{
"config.conf":"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nfTables\n"}}`, false,
		`error: c.yaml:3:15: mode: must be one of iptables, ipvs, nftables, kernelspace, userspace, got "nfTables" (did you mean nftables?)`)
	check(t, "kind: ConfigMap\ndata:\n  b: x\n  a: y\n", false,
		`error: c.yaml:3:3: data["config.conf"]: missing, a ConfigMap must contain the configuration there, or under "config"; it has a, b`)
	check(t, "kind: ConfigMap\n", false, `error: c.yaml:1:1: data["config.conf"]: missing, a ConfigMap must contain the configuration there`)
	check(t, "kind: ConfigMap\ndata:\n  config.conf: 3\n", false, `error: c.yaml:3:16: data["config.conf"]: must be a configuration as a string, got 3`)
	check(t, "kind: ConfigMap\ndata:\n  config.conf: |\n    a: [\n", false, `error: c.yaml:4:5: not YAML or JSON: did not find expected node content`)
	check(t, "kind: ConfigMap\ndata:\n  config.conf: |\n    kind: ConfigMap\n", false,
		`error: c.yaml:4:5: apiVersion: missing, must be "kubeproxy.config.k8s.io/v1alpha1"`,
		`error: c.yaml:4:5: kind: must be "KubeProxyConfiguration", got "ConfigMap"`)
}

func TestParseJSON(t *testing.T) {
	c, l := Parse("c.json", []byte(`{
	"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
	"mode": "nftables", "iptables": {"syncPeriod": "40s"}, "nodePortAddresses": ["primary", "10.0.0.0\/8"],
	"hostnameOverride": "\ud83d\ude00\\/"}`), true)
	if len(l) > 0 {
		t.Fatal(l)
	}
	if c.HostnameOverride != "😀\\/" {
		t.Errorf("hostnameOverride %q", c.HostnameOverride)
	}
	if c.Mode != "nftables" || c.IPTables.SyncPeriod != seconds(40) || cmp.Diff([]string{"primary", "10.0.0.0/8"}, c.NodePortAddresses) != "" {
		t.Errorf("got %+v", c)
	}
}

// Different YAML forms of the same values.
func TestParseScalars(t *testing.T) {
	tests := []struct{ body, path, want string }{
		{"enableProfiling: yes", "enableProfiling", "true"},
		{"enableProfiling: Off", "enableProfiling", "false"},
		{"oomScoreAdj: 0x10", "oomScoreAdj", "16"},
		{"oomScoreAdj: 010", "oomScoreAdj", "8"},
		{"oomScoreAdj: 5.0", "oomScoreAdj", "5"},
		{"clientConnection: {qps: 2.5}", "clientConnection.qps", "2.5"},
		{"hostnameOverride: 'yes'", "hostnameOverride", `"yes"`},
		{"hostnameOverride: 2001-01-01", "hostnameOverride", `"2001-01-01"`},
		{"iptables: {minSyncPeriod: 0s}", "iptables.minSyncPeriod", `"0s"`},
		{"logging: {flushFrequency: 1000000000}", "logging.flushFrequency", `"1s"`},
		{"logging: {flushFrequency: 2s}", "logging.flushFrequency", `"2s"`},
		{"logging: {options: {text: {infoBufferSize: 512}}}", "logging.options.text.infoBufferSize", `"512"`},
		{"conntrack: {tcpCloseWaitTimeout: 0s}", "conntrack.tcpCloseWaitTimeout", `"0s"`},
		{"nodePortAddresses: []", "nodePortAddresses", `[]`},
		{"nodePortAddresses:", "nodePortAddresses", `null`},
		{"a: &x ipvs\nmode: *x", "mode", `"ipvs"`},
		{"iptables: &p {syncPeriod: 40s, minSyncPeriod: 3s}\nnftables: {<<: *p, minSyncPeriod: 2s}", "nftables.syncPeriod", `"40s"`},
		{"iptables: &p {syncPeriod: 40s, minSyncPeriod: 3s}\nnftables: {<<: *p, minSyncPeriod: 2s}", "nftables.minSyncPeriod", `"2s"`},
		{"mode: ipvs\nmode: nftables", "mode", `"nftables"`},
	}
	for _, tt := range tests {
		t.Run(tt.body, func(t *testing.T) {
			c, l := Parse("c.yaml", []byte(header+tt.body), false)
			if l.HasErrors() {
				t.Fatal(l)
			}
			if got := text(find(c, tt.path)); got != tt.want {
				t.Errorf("%s = %s, want %s", tt.path, got, tt.want)
			}
		})
	}
}

// No input causes a panic, and a parsed configuration is written and parsed again
// to the same value.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(header + "mode: ipvs\niptables: &x {<<: *x}\n"))
	f.Add([]byte("kind: ConfigMap\ndata:\n  config.conf: |\n    " + strings.ReplaceAll(header, "\n", "\n    ")))
	f.Add([]byte(header + "logging: {vmodule: [{filePattern: a, verbosity: 3}], flushFrequency: 5}\nfeatureGates: {A: true}\n"))
	f.Add([]byte("{\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\", \"kind\": \"KubeProxyConfiguration\", \"mode\": \"\\u0000\"}"))
	if all, err := WriteConfig(Default()); err == nil {
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		Load("c.yaml", data, true)
		c, l := Parse("c.yaml", data, false)
		if c == nil || l.HasErrors() {
			return
		}
		written, err := WriteConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		again, l := Parse("written.yaml", written, true)
		if len(l) > 0 {
			t.Fatalf("%v in\n%s", l, written)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatalf("(-parsed +written and parsed):\n%s\n%s", diff, written)
		}
	})
}

// golden compares with a file of the documentation, or rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not up to date, run the test with -update (-file +generated):\n%s", path, diff)
	}
}
