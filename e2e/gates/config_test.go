package gates

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	_ "k8s.io/component-base/logs/json/register"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	"k8s.io/kubernetes/pkg/proxy/apis/config/v1alpha1"
	"k8s.io/kubernetes/pkg/proxy/apis/config/validation"

	"github.com/proxyc/proxyc/compiler/config"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// oddValues are set at each field once, in YAML.
var oddValues = strings.Split(strings.TrimSpace(`
null
~
""
" "
true
True
yes
"true"
y
on
Off
0
1
-1
5
14
31
32
40
1000
-1000
1001
65536
2147483647
2147483648
4294967296
99999999999999999999
1.0
1.5
-0.0
1e2
1e39
.5
.inf
.nan
0x10
0o17
017
1_000
+1
"5"
"1.5"
x
nonsense
"a b"
30s
0s
-1s
1h30m
"30"
1d
1.5h
"-0s"
1us
9223372036854775807ns
9223372036854775808ns
5Ki
"5Ki"
1e3
-5
0Ki
"0"
10.0.0.0/8
010.0.0.0/08
10.0.0.1
"10.0.0.0/8,fd00::/8"
"10.0.0.0/8,,fd00::/8"
"10.0.0.0/8,11.0.0.0/8"
fd00::/8
"::"
"::1"
"[::1]:80"
10.0.0.1:80
10.0.0.1:080
10.0.0.1:+80
10.0.0.1:-80
10.0.0.1:0
10.0.0.1:65535
10.0.0.1:65536
"10.0.0.1:"
":80"
"[10.0.0.1]:80"
"[::1]"
"::1:80"
localhost:80
fe80::1%lo
"[fe80::1%lo]:80"
primary
localhost
2001-01-01
2001-01-01T00:00:00Z
12:30:45
!!str 5
!!int "5"
!!float 5
!!bool "true"
!!binary aGVsbG8=
{}
{a: 1}
{masqueradeBit: 3}
[]
[null]
[""]
[5]
[x]
[10.0.0.0/8]
[10.0.0.0/8, fd00::/8]
[010.0.0.0/08]
[primary]
[primary, 10.0.0.0/8]
[all, localhost]
[all, all]
[[]]
[{}]
[{filePattern: a}]
[{filePattern: a, verbosity: 1}]
[{filePattern: "a,b", verbosity: 1}]
[{filePattern: a, verbosity: -1}]
[{filePattern: 5, verbosity: "1"}]
[{nope: 1}]
iptables
IPTables
nftables
ipvs
NodeCIDR
nodecidr
json
text
1.35
"1.x"
"|"
'single'
30000-32000
`), "\n")

// intentional reports whether only one of the two accepts a value. testdata/parity gives most
// reasons.
func intentional(path, value string) bool {
	return path == "ipvs.scheduler" || // kube-proxy accepts names that no scheduler can have; proxyc also reads flags after a comma
		path == "hostnameOverride" && value == `" "` // kube-proxy rejects it only when it starts
}

// TestFields sets each odd value at each field, in each mode. It compares the result of
// kube-proxy's decoder and validation with that of proxyc.
func TestFields(t *testing.T) {
	seen, refused := 0, 0
	for _, f := range config.Fields() {
		switch f.Path {
		case "apiVersion", "kind", "featureGates", "showHiddenMetricsForVersion": // depends on the program's version
			continue
		}
		for _, mode := range []string{"iptables", "ipvs", "nftables"} {
			if f.Path == "mode" && mode != "iptables" {
				continue
			}
			for _, value := range oddValues {
				text := header + nested(f.Path, value)
				if f.Path != "mode" {
					text += "mode: " + mode + "\n"
				}
				seen++
				err := kubeProxyFile(text)
				_, l := config.Load("c.yaml", []byte(text), false)
				if err != nil {
					refused++
				}
				if l.HasErrors() != (err != nil) && !intentional(f.Path, value) {
					t.Errorf("mode %s, %s: %s\nkube-proxy: %v\nproxyc: %v", mode, f.Path, value, err, l)
				}
			}
		}
	}
	t.Logf("%d files, %d refused", seen, refused)
}

// nested writes a value at a path, in flow style.
func nested(path, value string) string {
	keys := strings.Split(path, ".")
	if len(keys) == 1 {
		return keys[0] + ": " + value + "\n"
	}
	text := ""
	for i, key := range keys[1:] {
		text += strings.Repeat("  ", i+1) + key + ":"
		if i < len(keys)-2 {
			text += "\n"
		}
	}
	return keys[0] + ":\n" + text + " " + value + "\n"
}

// kubeProxyFile does the same with a configuration as kube-proxy before it starts.
func kubeProxyFile(text string) error {
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	if err != nil {
		if !runtime.IsStrictDecodingError(err) {
			return err
		}
		lenient := runtime.NewScheme()
		if err := kubeproxyconfig.AddToScheme(lenient); err != nil {
			return err
		}
		if err := v1alpha1.AddToScheme(lenient); err != nil {
			return err
		}
		codecs := serializer.NewCodecFactory(lenient, serializer.DisableStrict)
		if object, _, err = codecs.UniversalDecoder().Decode([]byte(text), nil, nil); err != nil {
			return err
		}
	}
	c, ok := object.(*kubeproxyconfig.KubeProxyConfiguration)
	if !ok {
		return fmt.Errorf("got %T", object)
	}
	// Registering the flags of logging has the same effect on a file's fields.
	c.Logging.Options.Text.SplitStream, c.Logging.Options.JSON.SplitStream = false, false
	if c.DetectLocalMode == "" {
		c.DetectLocalMode = kubeproxyconfig.LocalModeClusterCIDR
	}
	return validation.Validate(c).ToAggregate()
}
