package config

import (
	"os"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// parseFlags parses a command line with the grammar of Flags.
func parseFlags(t *testing.T, args ...string) *Flags {
	t.Helper()
	f := new(Flags)
	p, err := kong.New(f, kong.Name("kube-proxy"), kong.Exit(func(int) { t.Fatal("kong exits") }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(args); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return f
}

// resolve returns the result of flags and files; files are by name.
func resolve(t *testing.T, files map[string]string, args ...string) (*Resolved, []string) {
	t.Helper()
	r, l := parseFlags(t, args...).Resolve(func(path string) ([]byte, error) {
		data, ok := files[path]
		if !ok {
			return nil, os.ErrNotExist
		}
		return []byte(header + data), nil
	}, false)
	return r, lines(l)
}

// setting is an effective value and its source.
type setting struct{ path, value, source string }

func checkSettings(t *testing.T, r *Resolved, want []setting) {
	t.Helper()
	got := map[string]Setting{}
	for _, s := range Show(r) {
		got[s.Path] = s
	}
	for _, w := range want {
		if diff := cmp.Diff(Setting{w.path, w.value, w.source}, got[w.path]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", w.path, diff)
		}
	}
}

func TestFlagsWithoutFile(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []setting
		diag []string
	}{
		{name: "empty clusterCIDR", args: []string{"--cluster-cidr="}, diag: []string{`error: --cluster-cidr: must be a CIDR, or one of each family, got "" (omit the flag for none)`}},
		{name: "empty clusterCIDR that does not count", args: []string{"--cluster-cidr=", "--detect-local-mode=NodeCIDR"}},
		{name: "no burst", args: []string{"--kube-api-burst=0"}, diag: []string{`error: --kube-api-burst: clientConnection.burst: must be more than 0 if qps is, got 0`}},
		{name: "no burst and no limit", args: []string{"--kube-api-burst=0", "--kube-api-qps=-1"}},
		{name: "none", want: []setting{
			{"mode", `"iptables"`, "default on Linux"},
			{"detectLocalMode", `"ClusterCIDR"`, "default on Linux"},
			{"healthzBindAddress", `"0.0.0.0:10256"`, "default"},
			{"ipvs.minSyncPeriod", `"0s"`, "default"},
			{"winkernel.rootHnsEndpointName", `""`, "default"},
		}},
		{name: "nothing is computed anew", args: []string{"--bind-address=::1"}, want: []setting{
			{"bindAddress", `"::1"`, "--bind-address"},
			{"healthzBindAddress", `"0.0.0.0:10256"`, "default"},
		}},
		{name: "explicit zero", args: []string{"--iptables-min-sync-period=0s", "--conntrack-min=0"}, want: []setting{
			{"iptables.minSyncPeriod", `"0s"`, "--iptables-min-sync-period"},
			{"conntrack.min", `0`, "--conntrack-min"},
		}},
		{name: "iptables periods in nftables", args: []string{"--proxy-mode=nftables", "--iptables-sync-period=40s", "--iptables-min-sync-period=3s", "--ipvs-sync-period=50s"}, want: []setting{
			{"nftables.syncPeriod", `"40s"`, "--iptables-sync-period"},
			{"nftables.minSyncPeriod", `"3s"`, "--iptables-min-sync-period"},
			{"iptables.syncPeriod", `"30s"`, "default"},
			{"nodePortAddresses", `["primary"]`, "default of mode nftables"},
		}, diag: []string{"info: --ipvs-sync-period: ignored in mode nftables"}},
		{name: "ipvs periods", args: []string{"--proxy-mode=ipvs", "--iptables-sync-period=40s", "--iptables-min-sync-period=4s", "--ipvs-sync-period=50s"}, want: []setting{
			{"ipvs.syncPeriod", `"50s"`, "--ipvs-sync-period"},
			{"ipvs.minSyncPeriod", `"1s"`, "default of flags without --config"},
			{"iptables.syncPeriod", `"30s"`, "default"},
		}, diag: []string{"info: --iptables-min-sync-period: ignored in mode ipvs", "info: --iptables-sync-period: ignored in mode ipvs"}},
		{name: "ipvs minimum", args: []string{"--proxy-mode=ipvs", "--ipvs-min-sync-period=0s"}, want: []setting{
			{"ipvs.minSyncPeriod", `"0s"`, "--ipvs-min-sync-period"},
		}},
		{name: "masquerade all", args: []string{"--masquerade-all"}, want: []setting{
			{"iptables.masqueradeAll", "true", "--masquerade-all"}, {"nftables.masqueradeAll", "false", "default"},
		}},
		{name: "masquerade all in nftables", args: []string{"--masquerade-all", "--proxy-mode", "nftables"}, want: []setting{
			{"iptables.masqueradeAll", "false", "default"}, {"nftables.masqueradeAll", "true", "--masquerade-all"},
		}},
		{name: "both modes", args: []string{"--mode=ipvs", "--proxy-mode=nftables"}, want: []setting{{"mode", `"ipvs"`, "--mode"}}},
		{name: "booleans", args: []string{"--iptables-localhost-nodeports=false", "--profiling", "--bind-address-hard-fail=true", "--cleanup"}, want: []setting{
			{"iptables.localhostNodePorts", "false", "--iptables-localhost-nodeports"},
			{"enableProfiling", "true", "--profiling"},
			{"bindAddressHardFail", "true", "--bind-address-hard-fail"},
		}},
		{name: "lists", args: []string{"--nodeport-addresses=10.0.0.0/8,primary", "--nodeport-addresses=localhost", "--feature-gates=ComponentStatusz=false,ComponentFlagz=true,"}, want: []setting{
			{"nodePortAddresses", `["10.0.0.0/8","primary","localhost"]`, "--nodeport-addresses"},
			{"featureGates", `{"ComponentFlagz":true,"ComponentStatusz":false}`, "--feature-gates"},
		}},
		{name: "quotes in lists", args: []string{`--nodeport-addresses="10.0.0.0/8",192.0.2.0/24`}, want: []setting{
			{"nodePortAddresses", `["10.0.0.0/8","192.0.2.0/24"]`, "--nodeport-addresses"},
		}},
		{name: "quotes that do not end", args: []string{`--nodeport-addresses="10.0.0.0/8`}, diag: []string{
			`error: --nodeport-addresses: must be a list with commas between, got "\"10.0.0.0/8"`,
		}},
		{name: "empty lists", args: []string{"--nodeport-addresses=", "--ipvs-exclude-cidrs=", "--proxy-mode=nftables", "--feature-gates=", "--vmodule="}, want: []setting{
			{"nodePortAddresses", `["primary"]`, "default of mode nftables"},
			{"ipvs.excludeCIDRs", `[]`, "--ipvs-exclude-cidrs"},
		}},
		{name: "logging", args: []string{"-v4", "--vmodule=a=1,b*=2", "--log-flush-frequency=7s", "--logging-format=text", "--log-text-info-buffer-size=4Ki", "--feature-gates=LoggingAlphaOptions=true"}, want: []setting{
			{"logging.verbosity", "4", "-v"},
			{"logging.vmodule", `[{"filePattern":"a","verbosity":1},{"filePattern":"b*","verbosity":2}]`, "--vmodule"},
			{"logging.flushFrequency", `"7s"`, "--log-flush-frequency"},
			{"logging.options.text.infoBufferSize", `"4Ki"`, "--log-text-info-buffer-size"},
		}},
		{name: "Windows", args: []string{"--mode=kernelspace", "--source-vip=10.0.0.1", "--enable-dsr", "--windows-service"}, want: []setting{
			{"winkernel.rootHnsEndpointName", `"cbr0"`, "default of --root-hnsendpoint-name"},
			{"winkernel.sourceVip", `"10.0.0.1"`, "--source-vip"},
			{"winkernel.enableDSR", "true", "--enable-dsr"},
			{"windowsRunAsService", "true", "--windows-service"},
			{"detectLocalMode", `""`, "default"},
		}},
		{name: "deprecated ports", args: []string{"--healthz-bind-address=10.0.0.1", "--healthz-port=99", "--metrics-bind-address=::1"}, want: []setting{
			{"healthzBindAddress", `"10.0.0.1:99"`, "--healthz-port"},
			{"metricsBindAddress", `"[::1]:10249"`, "--metrics-bind-address"},
		}},
		{name: "no health server", args: []string{"--healthz-port=0"}, want: []setting{{"healthzBindAddress", `""`, "--healthz-port"}}},
		{name: "empty addresses leave the defaults", args: []string{"--bind-address=", "--healthz-bind-address=", "--metrics-bind-address="}, want: []setting{
			{"bindAddress", `"0.0.0.0"`, "default"}, {"healthzBindAddress", `"0.0.0.0:10256"`, "default"}, {"metricsBindAddress", `"127.0.0.1:10249"`, "default"},
		}, diag: []string{
			`info: --bind-address: empty, so the default "0.0.0.0" is kept`,
			`info: --healthz-bind-address: empty, so the default "0.0.0.0:10256" is kept`,
			`info: --metrics-bind-address: empty, so the default "127.0.0.1:10249" is kept`,
		}},
		{name: "port that does not count", args: []string{"--healthz-port=99"}, want: []setting{{"healthzBindAddress", `"0.0.0.0:10256"`, "default"}},
			diag: []string{`warning: --healthz-port: ignored, because healthzBindAddress "0.0.0.0:10256" has a port`}},
		{name: "ports and write-config-to", args: []string{"--metrics-port=0", "--write-config-to=f"}, want: []setting{{"metricsBindAddress", `"127.0.0.1:10249"`, "default"}}},
		{name: "no metrics server", args: []string{"--metrics-port=0"}, want: []setting{{"metricsBindAddress", `""`, "--metrics-port"}},
			diag: []string{`error: --metrics-port: metricsBindAddress: must be IP:port such as "127.0.0.1:10249" or "[::1]:10249", port 1-65535, got ""`}},
		{name: "errors name the flag", args: []string{"--iptables-masquerade-bit=40", "--cluster-cidr=10.0.0.0/8, fd00::/8", "--nodeport-addresses=primary,x", "--hostname-override= ",
			"--feature-gates=A", "--vmodule=a=b", "--iptables-min-sync-period=1m"}, diag: []string{
			`error: iptables.syncPeriod: must be at least minSyncPeriod, which is 1m0s, got 30s`,
			`error: --cluster-cidr: clusterCIDR: must be a CIDR, or one of each family such as "10.244.0.0/16" or "10.244.0.0/16,fd00:10:244::/56", got " fd00::/8" in "10.0.0.0/8, fd00::/8"`,
			`error: --feature-gates: must be NAME=true or NAME=false, got "A"`,
			`error: --hostname-override: must be a name, got " "`,
			`error: --iptables-masquerade-bit: iptables.masqueradeBit: must be 0-31, got 40`,
			`error: --nodeport-addresses: nodePortAddresses[1]: must be a CIDR such as "192.168.0.0/16", or one of primary, localhost, all, got "x"`,
			`error: --vmodule: must be a list of PATTERN=N, got "a=b"`,
		}},
		{name: "flags of old", args: []string{"--udp-timeout=1s", "--resource-container=/x", "--conntrack-max=3", "--azure-container-registry-config=f", "--cleanup-ipvs=false",
			"--proxy-port-range=1-2", "--logtostderr=true", "--alsologtostderr", "--log-dir=x", "--stderrthreshold=2", "--boot-id-file=a,b", "--machine-id-file=c"}, want: []setting{
			{"portRange", "", ""}, {"conntrack.max", "", ""},
		}, diag: []string{
			"info: --alsologtostderr: has no effect since release 1.26",
			"info: --azure-container-registry-config: has no effect since release 1.14",
			"info: --boot-id-file: has no effect since release 1.14",
			"info: --cleanup-ipvs: has no effect since release 1.18",
			"info: --conntrack-max: has no effect since release 1.15 (use --conntrack-max-per-core and --conntrack-min)",
			"info: --log-dir: has no effect since release 1.26",
			"info: --logtostderr: has no effect since release 1.26",
			"info: --machine-id-file: has no effect since release 1.14",
			"info: --proxy-port-range: has no effect since release 1.26, except in mode userspace",
			"info: --resource-container: has no effect since release 1.16",
			"info: --stderrthreshold: has no effect since release 1.26",
			"info: --udp-timeout: has no effect since release 1.26, except in mode userspace",
		}},
		{name: "userspace", args: []string{"--proxy-mode=userspace", "--proxy-port-range=30000-30010", "--udp-timeout=1s"}, want: []setting{
			{"portRange", `"30000-30010"`, "--proxy-port-range"}, {"udpIdleTimeout", `"1s"`, "--udp-timeout"},
		}},
		{name: "userspace by default", args: []string{"--proxy-mode=userspace"}, want: []setting{{"udpIdleTimeout", `"250ms"`, "default of mode userspace"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, l := resolve(t, nil, tt.args...)
			if diff := cmp.Diff(tt.diag, l); diff != "" {
				t.Errorf("diagnostics (-want +got):\n%s", diff)
			}
			want := tt.want[:0:0]
			for _, s := range tt.want {
				if s.value == "" { // must not be shown
					if src := r.Source(s.path); !find(r.Config, s.path).IsZero() || !src.isDefault {
						t.Errorf("%s is set by %s", s.path, src)
					}
					continue
				}
				want = append(want, s)
			}
			checkSettings(t, r, want)
		})
	}
}

func TestFlagsWithFile(t *testing.T) {
	files := map[string]string{"c.yaml": `mode: ipvs
hostnameOverride: File
iptables:
  masqueradeBit: 5
ipvs:
  syncPeriod: 0s
logging:
  verbosity: 2
  vmodule:
  - filePattern: old
    verbosity: 9
`}
	tests := []struct {
		name string
		args []string
		node string
		want []setting
		diag []string
	}{
		{name: "file alone", node: "file", want: []setting{
			{"mode", `"ipvs"`, "c.yaml:3"},
			{"hostnameOverride", `"File"`, "c.yaml:4"},
			{"ipvs.syncPeriod", `"30s"`, "default, as the value at c.yaml:8 is treated as not set"},
			{"ipvs.minSyncPeriod", `"0s"`, "default"},
			{"logging.verbosity", "2", "c.yaml:10"},
			{"logging.vmodule", `[{"filePattern":"old","verbosity":9}]`, "c.yaml:11"},
		}},
		{name: "kept", node: "over", args: []string{"--hostname-override= Over ", "-v=5", "--vmodule=new=1", "--logging-format=text", "--windows-service", "--master=x", "--cleanup", "--init-only",
			"--write-config-to=f", "--log-flush-frequency=1s"}, want: []setting{
			{"hostnameOverride", `"over"`, "--hostname-override"},
			{"logging.verbosity", "5", "-v"},
			{"logging.vmodule", `[{"filePattern":"new","verbosity":1},{"filePattern":"old","verbosity":9}]`, "--vmodule"},
			{"logging.flushFrequency", `"1s"`, "--log-flush-frequency"},
			{"windowsRunAsService", "true", "--windows-service"},
		}, diag: []string{"warning: --windows-service: windowsRunAsService: has no effect on Linux"}},
		{name: "judged, though they do not count", node: "file", args: []string{"--bind-address=x", "--healthz-bind-address=10.0.0.1:+1", "--metrics-bind-address=10.0.0.1", "--feature-gates=A"}, diag: []string{
			`error: --bind-address: must be an IP address, got "x"`,
			`error: --feature-gates: must be NAME=true or NAME=false, got "A"`,
			"warning: --feature-gates: ignored, because --config is set",
			`error: --healthz-bind-address: must be an IP address or IP:port, got "10.0.0.1:+1"`,
			"warning: --metrics-bind-address: ignored, because --config is set",
		}},
		{name: "empty override", node: "file", args: []string{"--hostname-override="}},
		{name: "thrown away", node: "file", args: []string{"--iptables-masquerade-bit=40", "--proxy-mode=nftables", "--masquerade-all", "--ipvs-sync-period=5s", "--healthz-port=0",
			"--feature-gates=X=true", "--nodeport-addresses=x", "--root-hnsendpoint-name=x"}, want: []setting{
			{"iptables.masqueradeBit", "5", "c.yaml:6"}, {"mode", `"ipvs"`, "c.yaml:3"}, {"iptables.masqueradeAll", "false", "default"},
			{"healthzBindAddress", `"0.0.0.0:10256"`, "default"}, {"featureGates", "{}", "default"},
		}, diag: []string{
			"warning: --feature-gates: ignored, because --config is set",
			"warning: --healthz-port: ignored, because --config is set",
			"warning: --iptables-masquerade-bit: ignored, because --config is set",
			"warning: --ipvs-sync-period: ignored, because --config is set",
			"warning: --masquerade-all: ignored, because --config is set",
			"warning: --nodeport-addresses: ignored, because --config is set",
			"warning: --proxy-mode: ignored, because --config is set",
			"warning: --root-hnsendpoint-name: ignored, because --config is set",
		}},
		{name: "mode", node: "file", args: []string{"--mode=nftables"}, want: []setting{
			{"mode", `"nftables"`, "--mode"}, {"nodePortAddresses", `["primary"]`, "default of mode nftables"},
		}},
		{name: "wrong mode", node: "file", args: []string{"--mode=nft"}, diag: []string{
			`error: --mode: must be one of iptables, ipvs, nftables, kernelspace, userspace, got "nft" (did you mean nftables?)`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, l := resolve(t, files, append(tt.args, "-c", "c.yaml")...)
			if diff := cmp.Diff(tt.diag, l); diff != "" {
				t.Errorf("diagnostics (-want +got):\n%s", diff)
			}
			checkSettings(t, r, tt.want)
			if r.NodeName != tt.node {
				t.Errorf("node name %q, want %q", r.NodeName, tt.node)
			}
		})
	}
}

// Show omits fields without effect, unless they are set.
func TestShowRemovedFields(t *testing.T) {
	shown := func(body string) (paths []string) {
		for _, s := range Show(check(t, header+"mode: userspace\n"+body, true)) {
			if f := s.Path; f == "portRange" || f == "udpIdleTimeout" || f == "resourceContainer" || f == "conntrack.max" {
				paths = append(paths, f+" "+s.Value)
			}
		}
		return paths
	}
	if diff := cmp.Diff([]string{`udpIdleTimeout "250ms"`}, shown("")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`portRange "1-2"`, `udpIdleTimeout "1s"`}, shown("portRange: 1-2\nudpIdleTimeout: 1s")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConfigFlagEmpty(t *testing.T) {
	r, l := resolve(t, nil, "--config=")
	if r == nil || len(l) > 0 {
		t.Fatal(l)
	}
}

// Every flag is accepted on a command line, and either changes a value or reports
// that it has no effect.
func TestEveryFlagIsUnderstood(t *testing.T) {
	values := map[string]string{"*string": "x", "*bool": "true", "*int32": "7", "*config.Level": "7", "*uint64": "7", "*float32": "7", "*time.Duration": "7s", "[]string": "x=true", "bool": "true"}
	for _, f := range flagFields() {
		name, value := flagName(f.Tag), values[f.Type.String()]
		if has(f.Tag, "address") {
			value = "10.0.0.1"
		}
		r, _ := resolve(t, map[string]string{"x": ""}, name+"="+value, "--proxy-mode=userspace")
		path := f.Tag.Get("config")
		if has(f.Tag, "until") && !has(f.Tag, "userspace") {
			path = ""
		}
		if path == "" || name == "--proxy-mode" {
			continue
		}
		if got := r.Source(path).String(); got != name {
			t.Errorf("%s: %s comes from %s", name, path, got)
		}
	}
}
