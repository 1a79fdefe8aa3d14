package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
)

// placed is an object with something wrong. The value that is wrong stands once
// in it, and says so: bad.
type placed struct{ name, object, field, says string }

const bad = "BAD-1"

// placedObjects has findings of reading objects and of compiling them, of each
// kind of object that is read.
var placedObjects = []placed{
	{"Service: a name", `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"ns","name":"BAD-1"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}`, "name", "metadata.name: must be"},
	{"Service: a type", `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"ns","name":"a"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80},{"name":"b","port":"BAD-1"}]}}`, "port", "spec.ports[1].port: must be a whole number"},
	{"Service: a time", `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"ns","name":"a","creationTimestamp":"BAD-1"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}`, "creationTimestamp", "metadata.creationTimestamp: must be a time"},
	{"Service: a word", `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"ns","name":"a"},"spec":{"clusterIP":"10.96.0.1","type":"BAD-1","ports":[{"port":80}]}}`, "type", "spec.type: must be"},
	{"Service: a port name", `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"ns","name":"a"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80},{"name":"BAD-1","port":81}]}}`, "name", "spec.ports[1].name: must be"},
	{"Service: an address, compiled", `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"ns","name":"a"},"spec":{"clusterIP":"BAD-1","ports":[{"port":80}]}}`, "clusterIP", "spec.clusterIPs[0]: must be"},
	{"Service: an external address, compiled", `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"ns","name":"a"},"spec":{"clusterIP":"10.96.0.1","externalIPs":["192.0.2.1","BAD-1"],"ports":[{"port":80}]}}`, "", "spec.externalIPs[1]: "},
	{"EndpointSlice: an address type", `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"namespace":"ns","name":"s","labels":{"kubernetes.io/service-name":"w"}},"addressType":"BAD-1","endpoints":[],"ports":[]}`, "addressType", "addressType: must be"},
	{"EndpointSlice: a port name", `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"namespace":"ns","name":"s","labels":{"kubernetes.io/service-name":"w"}},"addressType":"IPv4","endpoints":[],"ports":[{"name":"BAD-1","port":80}]}`, "name", "ports[0].name: must be"},
	{"EndpointSlice: an address, compiled", `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"namespace":"ns","name":"s","labels":{"kubernetes.io/service-name":"w"}},"addressType":"IPv4","endpoints":[{"addresses":["10.244.0.1"]},{"addresses":["BAD-1"]}],"ports":[{"port":80}]}`, "", "endpoints[1].addresses[0]: "},
	{"Endpoints: a port name", `{"apiVersion":"v1","kind":"Endpoints","metadata":{"namespace":"ns","name":"e"},"subsets":[{"addresses":[{"ip":"10.244.0.1"}],"ports":[{"name":"BAD-1","port":80}]}]}`, "name", "subsets[0].ports[0].name: must be"},
	{"Node: a CIDR", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"spec":{"podCIDRs":["10.244.0.0/24","BAD-1"]}}`, "", "spec.podCIDRs[1]: must be"},
	{"ServiceCIDR: a CIDR", `{"apiVersion":"networking.k8s.io/v1","kind":"ServiceCIDR","metadata":{"name":"c"},"spec":{"cidrs":["10.96.0.0/16","BAD-1"]}}`, "", "spec.cidrs[1]: must be"},
	{"a kind", `{"apiVersion":"v1","kind":"Services","metadata":{"name":"BAD-1"}}`, "kind:Services", "kind: is not a supported kind"},
	{"no kind", `{"name":"BAD-1"}`, "object", "kind: must be set"},
}

// around are the valid objects of the file.
const around = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node1"}}
{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"ns","name":"w"},"spec":{"clusterIP":"10.96.0.9","ports":[{"port":80}]}}`

// Each finding names file, line and column of the field, whatever the form of
// the file.
func TestPlaces(t *testing.T) {
	toYAML := func(object string) string {
		text, err := yaml.JSONToYAML([]byte(object))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	indented := func(object string) string {
		var b bytes.Buffer
		must(t, json.Indent(&b, []byte(object), "", "  "))
		return b.String()
	}
	forms := []struct {
		name, file string
		make       func(before []string, object string) string
	}{
		{"YAML documents", "f.yaml", func(before []string, o string) string {
			return "# é\n" + toYAML(before[0]) + "---\n" + toYAML(before[1]) + "---\n" + toYAML(o)
		}},
		{"YAML List", "f.yml", func(before []string, o string) string {
			var items []string
			for _, o := range append(before, o) {
				items = append(items, "- "+strings.ReplaceAll(strings.TrimSpace(toYAML(o)), "\n", "\n  ")+"\n")
			}
			return "apiVersion: v1\nitems:\n" + strings.Join(items, "") + "kind: List\n"
		}},
		{"flow YAML with other signs", "f.yaml", func(before []string, o string) string {
			return strings.Join(before, "\n---\n") + "\n--- # é\n{ä: é, " + o[1:] + "\n"
		}},
		{"CRLF", "f.yaml", func(before []string, o string) string {
			return strings.ReplaceAll(toYAML(before[0])+"---\n"+toYAML(before[1])+"---\n"+toYAML(o), "\n", "\r\n")
		}},
		{"JSON List", "f.json", func(before []string, o string) string {
			return indented(`{"apiVersion":"v1","kind":"List","items":[` + strings.Join(append(before, o), ",") + `]}`)
		}},
		{"JSON lines", "f.json", func(before []string, o string) string { return strings.Join(append(before, o), "\n") + "\n" }},
		{"JSON array", "f.json", func(before []string, o string) string {
			return "[" + strings.Join(append(before, o), ",\n  ") + "]\n"
		}},
		{"gzip", "f.yaml.gz", func(before []string, o string) string {
			return toYAML(before[0]) + "---\n" + toYAML(before[1]) + "---\n" + toYAML(o)
		}},
		{"nested directory", "a/b/f.yaml", func(before []string, o string) string {
			return toYAML(before[0]) + "---\n" + toYAML(before[1]) + "---\n" + toYAML(o)
		}},
	}
	for _, form := range forms {
		for _, p := range placedObjects {
			t.Run(form.name+"/"+p.name, func(t *testing.T) {
				text := form.make(strings.Split(around, "\n"), p.object)
				dir := t.TempDir()
				file := filepath.Join(dir, form.file)
				give := file
				if top, _, nested := strings.Cut(form.file, "/"); nested {
					give = filepath.Join(dir, top)
				}
				writePlaced(t, file, text)
				want := fmt.Sprintf("%s:%s: ", file, placeOf(text, p.field))
				checkPlace(t, want, p.says, "compile", "-s", give, "--detect-local-mode=NodeCIDR", "--hostname-override=node1", "-o", "ir")
			})
		}
	}
}

var placedConfigs = []placed{
	{"a value", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","iptables":{"masqueradeBit":4000000,"syncPeriod":"30s"},"oomScoreAdj":1}`, "masqueradeBit", "iptables.masqueradeBit: must be 0-31"},
	{"a type", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","conntrack":{"min":"BAD-1"}}`, "min", "conntrack.min: must be an integer"},
	{"an unknown key", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","ipvs":{"shedular":"BAD-1"}}`, "shedular", "ipvs.shedular: unknown key"},
	{"a word", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":"BAD-1"}`, "mode", "mode: must be one of"},
	{"an item", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","nodePortAddresses":["10.0.0.0/8","BAD-1"]}`, "", "nodePortAddresses[1]: must be"},
	{"a dead field", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","portRange":"BAD-1"}`, "portRange", "portRange: has no effect"},
	{"used with the Node", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","nodePortAddresses":["fd00::/8"]}`, "nodePortAddresses", "nodePortAddresses: has no IPv4 CIDR"},
	{"what is not there", `{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","detectLocalMode":"BridgeInterface"}`, "object", "detectLocal.bridgeInterface: "},
}

// So do findings of configurations.
func TestPlacesOfConfigurations(t *testing.T) {
	cluster := filepath.Join(t.TempDir(), "cluster.yaml")
	writePlaced(t, cluster, "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n---\n"+applytest.Services("a"))
	toYAML := func(object string) string {
		text, err := yaml.JSONToYAML([]byte(object))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	block := func(text, indent string) string {
		return indent + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+indent) + "\n"
	}
	forms := []struct {
		name, file string
		make       func(object string) string
	}{
		{"YAML", "c.yaml", toYAML},
		{"YAML with other signs", "c.yaml", func(o string) string { return "# é\n{" + `"hostnameOverride":  "` + "node1\", " + o[1:] + "\n" }},
		{"JSON", "c.json", func(o string) string { return strings.ReplaceAll(o, ",", ",\n ") }},
		{"gzip", "c.yaml.gz", toYAML},
		{"behind another document", "c.yaml", func(o string) string {
			return "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n---\n" + toYAML(o)
		}},
		{"ConfigMap", "c.yaml", func(o string) string {
			return "apiVersion: v1\nkind: ConfigMap\ndata:\n  config.conf: |-\n\n" + block(toYAML(o), "      ") + "  other: x\n"
		}},
		{"ConfigMap in a List", "c.yaml", func(o string) string {
			return "apiVersion: v1\nitems:\n" + "- apiVersion: v1\n  kind: ConfigMap\n  data:\n    config: |\n" + block(toYAML(o), "      ") + "kind: List\n"
		}},
	}
	for _, form := range forms {
		for _, p := range placedConfigs {
			t.Run(form.name+"/"+p.name, func(t *testing.T) {
				text := form.make(p.object)
				file := filepath.Join(t.TempDir(), form.file)
				writePlaced(t, file, text)
				var want string
				if p.field != "object" {
					want = fmt.Sprintf("%s:%s: ", file, placeOf(text, p.field))
				} else { // the configuration itself
					at := strings.Index(text, "apiVersion: kubeproxy")
					if at < 0 {
						at = strings.Index(text, "{")
					}
					want = fmt.Sprintf("%s:%s: ", file, lineAndColumn(text, at))
				}
				checkPlace(t, want, p.says, "compile", "-c", file, "-s", cluster, "-o", "ir")
			})
		}
	}
}

// placeOf returns where the key of the value that is wrong stands; where the value
// does, for field ""; where the key stands that is wrong, for "kind:Services", or
// the object.
func placeOf(text, field string) string {
	value := strings.Index(text, bad)
	switch {
	case field == "object":
		at := strings.LastIndex(text[:value], "{")
		if at < 0 {
			at = strings.LastIndex(text[:value], "name: ")
		}
		return lineAndColumn(text, at)
	case field == "kind:Services":
		return lineAndColumn(text, keyBefore(text, "kind", strings.Index(text, "Services")))
	case field == "":
		if text[value-1] == '"' {
			value--
		}
		return lineAndColumn(text, value)
	case value < 0:
		value = len(text)
	}
	return lineAndColumn(text, keyBefore(text, field, value))
}

// keyBefore returns where a key stands, the last one before an offset.
func keyBefore(text, key string, before int) int {
	at := strings.LastIndex(text[:before], key)
	if at > 0 && text[at-1] == '"' {
		at--
	}
	return at
}

func lineAndColumn(text string, at int) string {
	return fmt.Sprintf("%d:%d", 1+strings.Count(text[:at], "\n"), at-strings.LastIndex(text[:at], "\n"))
}

func writePlaced(t *testing.T, file, text string) {
	t.Helper()
	data := []byte(text)
	if strings.HasSuffix(file, ".gz") {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write(data)
		w.Close()
		data = b.Bytes()
	}
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, data, 0o644))
}

var hasPlace = regexp.MustCompile(`^(error|warning|info): \S+:\d+:\d+: `)

// checkPlace runs a verb, and looks for one finding at a place, and for any
// without one.
func checkPlace(t *testing.T, want, says string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	e := testEnv(t, disk.OS{}, args...)
	e.stderr = &said
	run(e)
	found := false
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "--") { // a flag, which stands in no file
			continue
		}
		if !hasPlace.MatchString(line) {
			t.Errorf("without a place: %s", line)
		}
		if strings.Contains(line, says) {
			found = true
			if !strings.Contains(line, want) {
				t.Errorf("want %s, got %s", want, line)
			}
		}
	}
	if !found {
		t.Errorf("nothing is said of %q:\n%s", says, &said)
	}
}
