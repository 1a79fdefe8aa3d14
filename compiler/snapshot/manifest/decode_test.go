package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

const (
	svcA   = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: x}\nspec: {clusterIP: None}\n"
	svcB   = "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\nspec:\n  clusterIP: None\n"
	nodeN  = "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n"
	jsonA  = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"x"},"spec":{"clusterIP":"None"}}`
	jsonN  = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`
	secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: p\nspec: {containers: 7}\n"
	sliceA = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a-1, namespace: x, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\n"
)

// objects returns the names of all objects in a Snapshot.
func objects(s *snapshot.Snapshot) []string {
	var out []string
	d := s.Document()
	for _, o := range d.Services {
		out = append(out, o.Object)
	}
	for _, o := range d.Slices {
		out = append(out, o.Object)
	}
	for _, o := range d.Nodes {
		out = append(out, "Node "+o.Name)
	}
	for _, o := range d.ServiceCIDRs {
		out = append(out, "ServiceCIDR "+o.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func list(items ...string) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nitems:\n")
	for _, item := range items {
		b.WriteString("- " + strings.ReplaceAll(strings.TrimSuffix(item, "\n"), "\n", "\n  ") + "\n")
	}
	b.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	return b.String()
}

func TestDecode(t *testing.T) {
	indented := strings.ReplaceAll(list(svcA, nodeN), "\n", "\n  ")
	cases := []struct {
		name, in string
		want     string // objects, separated by commas
		diags    string // one per line
	}{
		{name: "empty"},
		{name: "only comments", in: "# nothing\n\n---\n# here\n---\n"},
		{name: "one document", in: svcA, want: "Service x/a"},
		{name: "documents", in: svcA + "---\n" + svcB + "---\n" + nodeN, want: "Node n1,Service default/b,Service x/a"},
		{name: "separators", in: "---\n" + svcA + "--- # next\n" + svcB + "...\n---   \n---\n\n# empty\n---\t\n" + nodeN + "---", want: "Node n1,Service default/b,Service x/a"},
		{name: "document on the separator's line", in: "--- {apiVersion: v1, kind: Node, metadata: {name: n1}}\n--- " + jsonA, want: "Node n1,Service x/a"},
		{name: "four dashes are no separator", in: svcB + "  x: |\n    a\n" + "----\n", diags: "error f:10:1: invalid YAML: could not find expected ':'"},
		{name: "end marker", in: svcA + "...\n" + nodeN, want: "Node n1,Service x/a"},
		{name: "directive", in: "%YAML 1.1\n---\n" + svcA, want: "Service x/a"},
		{name: "byte order mark", in: "\ufeff" + svcA, want: "Service x/a"},
		{name: "byte order mark, JSON", in: "\ufeff" + jsonA, want: "Service x/a"},
		{name: "CRLF", in: strings.ReplaceAll(svcB+"---\n"+list(svcA, nodeN), "\n", "\r\n"), want: "Node n1,Service default/b,Service x/a"},
		{name: "CR", in: strings.ReplaceAll(svcB+"---\n"+nodeN, "\n", "\r"), want: "Node n1,Service default/b"},
		{name: "List", in: list(svcA, svcB, nodeN), want: "Node n1,Service default/b,Service x/a"},
		{name: "List in one document of several", in: secret + "---\n" + list(svcA) + "---\n" + nodeN, want: "Node n1,Service x/a"},
		{name: "List with items first", in: "items:\n- " + strings.ReplaceAll(svcB, "\n", "\n  ") + "\nkind: List\napiVersion: v1\n", want: "Service default/b"},
		{name: "List with indented items", in: "apiVersion: v1\nkind: List\nitems:\n  - " + strings.ReplaceAll(svcA, "\n", "\n    ") + "\n  # next\n# one\n  - " + strings.ReplaceAll(svcB, "\n", "\n    "), want: "Service default/b,Service x/a"},
		{name: "List with a bare dash", in: "apiVersion: v1\nkind: List\nitems:\n-\n  " + strings.ReplaceAll(svcB, "\n", "\n  "), want: "Service default/b"},
		{name: "empty List", in: "apiVersion: v1\nkind: List\nitems: []\n"},
		{name: "List with items null", in: "apiVersion: v1\nkind: List\nitems:\n"},
		{name: "nested Lists", in: list(list(svcA), list(list(svcB), nodeN)), want: "Node n1,Service default/b,Service x/a"},
		{name: "typed List", in: "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata:\n    name: a\n  spec: {clusterIP: None}\n- {metadata: {name: b}, spec: {clusterIP: None}}\n", want: "Service default/a,Service default/b"},
		{name: "typed List of another kind", in: `{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"p"}}]}`},
		{name: "EndpointSliceList", in: `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSliceList","items":[{"metadata":{"name":"s","labels":{"kubernetes.io/service-name":"a"}},"addressType":"IPv4"}]}`, want: "EndpointSlice default/s"},
		{name: "a List in a typed List has no type to inherit", in: `{"apiVersion":"v1","kind":"ServiceList","items":[{"apiVersion":"v1","kind":"List","items":[{"metadata":{"name":"a"}}]}]}`,
			diags: "error f:1:92: items[0].items[0]: kind: must be set, such as Service or List"},
		{name: "items that are no List", in: "apiVersion: example.com/v1\nkind: Menu\nitems:\n- soup\n- salad\n"},
		{name: "anchors across items", in: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: &m\n    name: a\n  spec: {clusterIP: None}\n- apiVersion: v1\n  kind: Node\n  metadata: *m\n", want: "Node a,Service default/a"},
		{name: "flow List", in: "{apiVersion: v1, kind: List, items: [" + jsonA + "," + jsonN + "]}", want: "Node n1,Service x/a"},
		{name: "JSON", in: jsonA, want: "Service x/a"},
		{name: "JSON after a comment", in: "# from a cluster\n\n" + jsonA, want: "Service x/a"},
		{name: "JSON objects", in: jsonA + jsonN, want: "Node n1,Service x/a"},
		{name: "JSON lines", in: jsonA + "\n" + jsonN + "\n", want: "Node n1,Service x/a"},
		{name: "JSON documents", in: jsonA + "\n---\n" + jsonN + "\n---\n" + svcB, want: "Node n1,Service default/b,Service x/a"},
		{name: "JSON List, kind last", in: `{"apiVersion":"v1","items":[` + jsonA + `, ` + jsonN + `],"kind":"List","metadata":{}}`, want: "Node n1,Service x/a"},
		{name: "JSON, nested Lists", in: `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[` + jsonA + `]},` + jsonN + `]}`, want: "Node n1,Service x/a"},
		{name: "escapes in JSON", in: `{"apiVersion":"v1","k\u0069nd":"N\u006fde","metadata":{"name":"n1","annotations":{"x":"}\"]\\"}}}`, want: "Node n1"},
		{name: "other kinds", in: secret + "---\napiVersion: serving.knative.dev/v1\nkind: Service\nspec: 5\n"},
		{name: "all kinds", in: svcA + "---\n" + sliceA + "---\n" + nodeN +
			"---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16]}\n" +
			"---\napiVersion: networking.k8s.io/v1beta1\nkind: ServiceCIDR\nmetadata: {name: more}\n" +
			"---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: e}\nsubsets: [{addresses: [{ip: 10.0.0.1}]}]\n" +
			"---\n" + strings.Replace(strings.Replace(sliceA, "v1", "v1beta1", 1), "a-1", "a-2", 1),
			want: "EndpointSlice x/a-1,EndpointSlice x/a-2,Endpoints default/e,Node n1,Service x/a,ServiceCIDR kubernetes,ServiceCIDR more"},
		{name: "namespace of a Node is ignored", in: "apiVersion: v1\nkind: Node\nmetadata: {name: n1, namespace: x}\n", want: "Node n1"},

		{name: "tab", in: svcA + "---\napiVersion: v1\nkind: Service\nmetadata:\n\tname: b\n---\n" + nodeN, want: "Node n1,Service x/a",
			diags: "error f:9:1: invalid YAML: a tab indents the line: use spaces"},
		{name: "tab before a key", in: svcA + "---\napiVersion: v1\n\tkind: Service\n", want: "Service x/a",
			diags: "error f:7:1: invalid YAML: a tab indents the line: use spaces"},
		{name: "tab in an item", in: list(svcA, "apiVersion: v1\nkind: Service\nmetadata:\n\tname: b", nodeN), want: "Node n1,Service x/a",
			diags: "error f:10:3: items[1]: invalid YAML: a tab indents the line: use spaces"},
		{name: "no kind", in: "a: 1\n", diags: "error f:1:1: kind: must be set, such as Service or List"},
		{name: "cut off", in: "apiVersion: v1\n", diags: "error f:1:1: kind: must be set, such as Service or List: the file may be cut off"},
		{name: "no apiVersion", in: "---\nkind: Service\nmetadata: {name: a}\n", diags: "error f:2:1: apiVersion: must be set, such as v1"},
		{name: "kind of a wrong type", in: "apiVersion: v1\nkind: [Service]\n", diags: "error f:1:1: kind: must be set, such as Service or List: the file may be cut off"},
		{name: "no object", in: svcA + "---\nhello\n---\n7\n", want: "Service x/a",
			diags: `error f:6:1: must be an object with apiVersion and kind, got "\"hello\""` + "\n" +
				`error f:8:1: must be an object with apiVersion and kind, got "7"`},
		{name: "cut off in the first key of an object", in: svcA + "---\napiV", want: "Service x/a",
			diags: `error f:6:1: must be an object with apiVersion and kind, got "\"apiV\""`},
		{name: "YAML array", in: "- " + jsonN + "\n- " + strings.ReplaceAll(svcB, "\n", "\n  ") + "\n- 5\n", want: "Node n1,Service default/b",
			diags: `error f:9:3: [2]: must be an object with apiVersion and kind, got "5"`},
		{name: "item that is no object", in: "apiVersion: v1\nkind: List\nitems:\n- 5\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: n1\n", want: "Node n1",
			diags: `error f:4:3: items[0]: must be an object with apiVersion and kind, got "5"`},
		{name: "no name", in: list(svcA, "apiVersion: v1\nkind: Service\nmetadata: {}\n"), want: "Service x/a",
			diags: "error f:9:3: Service: items[1].metadata.name: must be set"},
		{name: "name that is none", in: "apiVersion: v1\nkind: Service\nmetadata: {name: \"a\\\"\\n-A\", namespace: A}\n",
			diags: `error f:3:12: Service A/a"\n-A: metadata.name: must be lower-case letters, digits, - and ., at most 253, got "a\"\n-A"` + "\n" +
				`error f:3:29: Service A/a"\n-A: metadata.namespace: must be lower-case letters, digits and -, at most 63, got "A"`},
		{name: "words that the API does not have", in: svcB + "  type: Foo\n  sessionAffinity: clientIP\n  externalTrafficPolicy: local\n  internalTrafficPolicy: Node\n" +
			"  ipFamilies: [IPv4, ipv6]\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: VIP}, {ip: 192.0.2.2, ipMode: vip}]}}\n", want: "Service default/b",
			diags: `warning f:7:3: Service default/b: spec.type: must be ClusterIP or NodePort or LoadBalancer or ExternalName, got "Foo": ClusterIP is used` + "\n" +
				`warning f:8:3: Service default/b: spec.sessionAffinity: must be None or ClientIP, got "clientIP": None is used (did you mean ClientIP?)` + "\n" +
				`warning f:9:3: Service default/b: spec.externalTrafficPolicy: must be Cluster or Local, got "local": Cluster is used (did you mean Local?)` + "\n" +
				`warning f:10:3: Service default/b: spec.internalTrafficPolicy: must be Cluster or Local, got "Node": Cluster is used` + "\n" +
				`warning f:11:22: Service default/b: spec.ipFamilies[1]: must be IPv4 or IPv6, got "ipv6": its address is ignored (did you mean IPv6?)` + "\n" +
				`warning f:12:81: Service default/b: status.loadBalancer.ingress[1].ipMode: must be VIP or Proxy, got "vip": Proxy is used (did you mean VIP?)`},
		{name: "port name that is none", in: svcB + "  ports:\n  - {port: 80, name: a b}\n",
			diags: `error f:8:16: Service default/b: spec.ports[0].name: must be lower-case letters, digits and -, at most 63, got "a b"`},
		{name: "text for a number", in: svcA + "---\n" + svcB + "  ports:\n  - name: ok\n    port: 80\n  - name: p\n    port: \"80\"\n", want: "Service x/a",
			diags: "error f:16:5: Service default/b: spec.ports[1].port: must be a whole number, got string"},
		{name: "line after a block of text", in: "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\n  annotations:\n    x: |\n      a\n\n      b\nspec:\n  ports: 7\n",
			diags: "error f:11:3: Service default/b: spec.ports: must be a list, got number"},
		{name: "number for text", in: list(strings.Replace(svcB, "None", "12", 1), nodeN), want: "Node n1",
			diags: "error f:8:5: Service default/b: items[0].spec.clusterIP: must be a string, got number"},
		{name: "boolean for text", in: "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\n  annotations:\n    x: yes\n",
			diags: "error f:6:5: Service default/b: metadata.annotations.x: must be a string, got bool"},
		{name: "fraction for a number", in: svcB + "  ports:\n  - port: 80.5\n", diags: "error f:8:5: Service default/b: spec.ports[0].port: must be a whole number, got number 80.5"},
		{name: "object for a list", in: svcB + "  ports:\n    port: 80\n", diags: "error f:7:3: Service default/b: spec.ports: must be a list, got object"},
		{name: "list for an object", in: "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\nspec:\n- a\n", diags: "error f:5:1: Service default/b: spec: must be an object, got array"},
		{name: "time that is none", in: "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\n  creationTimestamp: soon\n",
			diags: `error f:5:3: Service default/b: metadata.creationTimestamp: must be a time such as 2006-01-02T15:04:05Z, got "soon"`},
		{name: "target port of a wrong type", in: svcB + "  ports:\n  - port: 80\n    targetPort: 7\n  - port: 81\n    targetPort: true\n",
			diags: "error f:11:5: Service default/b: spec.ports[1].targetPort: must be a whole number, got bool"},
		{name: "number for a time, in JSON", in: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"b",` + "\n" + ` "creationTimestamp":5}}`,
			diags: "error f:2:2: Service default/b: metadata.creationTimestamp: must be a string, got number"},
		{name: "columns count bytes", in: "apiVersion: v1\nkind: Service\nmetadata: {labels: {ä: é}, name: B}\n",
			diags: `error f:3:30: Service default/B: metadata.name: must be lower-case letters, digits, - and ., at most 253, got "B"`},
		{name: "CIDR that is none", in: "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDR: 10.0.0.0/33}\n",
			diags: `error f:4:8: Node n1: spec.podCIDRs[0]: must be a CIDR such as 10.0.0.0/24, got "10.0.0.0/33"`},
		{name: "address type that is none", in: strings.Replace(sliceA, "IPv4", "IP", 1), diags: `error f:4:1: EndpointSlice x/a-1: addressType: must be IPv4, IPv6 or FQDN, got "IP"`},
		{name: "slice of no Service", in: strings.Replace(sliceA, "service-name", "other", 1), want: "EndpointSlice x/a-1",
			diags: "warning f:3:37: EndpointSlice x/a-1: metadata.labels: label kubernetes.io/service-name is missing: the slice serves no Service"},
		{name: "twice", in: svcA + "---\n" + svcA, want: "Service x/a", diags: "warning f:6:1: Service x/a: is a duplicate: it replaces the previous one"},
		{name: "every kind twice", in: strings.Repeat("---\n"+sliceA+"---\n"+nodeN+"---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: c}\n---\n{apiVersion: v1, kind: Endpoints,\nmetadata: {name: e},\nsubsets: [{addresses: [{ip: 10.0.0.1}]}]}\n", 2),
			want: "EndpointSlice x/a-1,Endpoints default/e,Node n1,ServiceCIDR c",
			diags: "warning f:20:1: EndpointSlice x/a-1: is a duplicate: it replaces the previous one\n" +
				"warning f:25:1: Node n1: is a duplicate: it replaces the previous one\n" +
				"warning f:30:1: ServiceCIDR c: is a duplicate: it replaces the previous one\n" +
				"warning f:34:1: Endpoints default/e: is a duplicate: it replaces the previous one"},

		{name: "key twice", in: svcA + "---\n" + svcB + "  clusterIP: 10.0.0.3\n  ports:\n  - port: 80\n", want: "Service x/a",
			diags: "error f:12:3: Service default/b: spec.clusterIP: is duplicate: the object is ignored"},
		{name: "object twice, in an item", in: list(svcA, "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\nspec:\n  type: NodePort\nspec:\n  clusterIP: 10.0.0.2\n  ports:\n  - port: 80\n"), want: "Service x/a",
			diags: "error f:13:3: Service default/b: items[1].spec: is duplicate: the object is ignored"},
		{name: "label twice", in: "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\n  labels:\n    x.y/z: a\n    x.y/z: b\nspec:\n  clusterIP: 10.0.0.2\n  ports:\n  - port: 80\n",
			diags: "error f:7:5: Service default/b: metadata.labels.x.y/z: is duplicate: the object is ignored"},
		{name: "key twice in a port", in: svcB + "  ports:\n  - port: 80\n    name: c\n  - port: 81\n    name: a\n    name: b\n",
			diags: "error f:12:5: Service default/b: spec.ports[1].name: is duplicate: the object is ignored"},
		{name: "key twice, in flow style", in: svcA + "---\napiVersion: v1\nkind: Service\nmetadata: {name: b,\n  name: c}\n", want: "Service x/a",
			diags: "error f:9:3: key \"name\" is duplicate: the object is ignored"},
		{name: "key twice, in an item in flow style", in: list(svcA, "apiVersion: v1\nkind: Service\nmetadata: {\"name\": b}\nspec: {}\nspec: {}\n", nodeN), want: "Node n1,Service x/a",
			diags: "error f:11:3: items[1]: key \"spec\" is duplicate: the object is ignored"},
		{name: "key beside a merged one", in: "apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec:\n  clusterIP: 10.0.0.2\n  ports:\n  - &p {port: 80, name: a}\n  - <<: *p\n    port: 81\n    name: b\n", want: "Service default/b"},
		{name: "key of a List twice", in: "apiVersion: v1\nkind: List\nitems:\n- {}\nitems:\n- " + jsonA + "\n", diags: "error f:5:1: key \"items\" is duplicate: the object is ignored"},
		{name: "kind of a List twice", in: "apiVersion: v1\nkind: List\nkind: ServiceList\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: a\n",
			diags: "error f:3:1: key \"kind\" of a List is duplicate"},
		{name: "JSON, key twice", in: `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Service","metadata":{"name":"b"},"spec":{"ports":[{"port":80}]},` + "\n" + `"spec":{"clusterIP":"10.0.0.1"}},` + jsonA + `]}`, want: "Service x/a",
			diags: "error f:2:1: Service default/b: items[0].spec: is duplicate: the object is ignored"},
		{name: "JSON, kind twice", in: `{"apiVersion":"v1","kind":"Service","kind":"Node","metadata":{"name":"b"}}`, diags: "error f:1:37: Node b: kind: is duplicate: the object is ignored"},
		{name: "JSON, items twice", in: `{"apiVersion":"v1","kind":"List","items":[` + jsonA + `],` + "\n" + ` "items":[` + jsonN + `]}`, diags: "error f:2:2: key \"items\" of a List is duplicate"},
		{name: "JSON, key twice in what is not read", in: `{"apiVersion":"v1","kind":"ConfigMap","data":{},"data":{}}` + jsonN, want: "Node n1"},

		{name: "JSON, wrong type", in: `{"apiVersion":"v1","kind":"List","items":[` + jsonN + ",\n" + `{"apiVersion":"v1","kind":"Service",` + "\n" + `"metadata":{"name":"b"},"spec":{"ports":[{"port":80},` + "\n" + `{"port":"81"}]}}]}`,
			want: "Node n1", diags: "error f:4:2: Service default/b: items[1].spec.ports[1].port: must be a whole number, got string"},
		{name: "JSON, broken item", in: `{"apiVersion":"v1","kind":"List","items":[` + "\n" + `{"apiVersion":"v1","kind":"Node","metadata":` + "\n" + `{"name":nil}},` + jsonA + `]}`,
			diags: "error f:3:10: invalid JSON: invalid character 'i' in literal null (expecting 'u'); it is ignored completely"},
		{name: "JSON, cut off", in: "{\"apiVersion\":\"v1\",\"items\":[\n" + jsonA + ",\n" + jsonN[:20], diags: "error f:3:21: cut off: the JSON is incomplete; it is ignored completely"},
		{name: "JSON, cut off after an item", in: "{\"apiVersion\":\"v1\",\"items\":[\n" + jsonA, diags: "error f:2:105: cut off: the JSON is incomplete; it is ignored completely"},
		{name: "JSON, something after", in: jsonA + "\n]", want: "Service x/a", diags: "error f:2:1: invalid JSON: invalid character ']' at start of value; it is ignored completely"},
		{name: "JSON, comment", in: "{\"apiVersion\":\"v1\", // x\n\"kind\":\"Node\"}", diags: "error f:1:21: invalid JSON: it has comments, which JSON does not allow: remove them; it is ignored completely"},
		{name: "JSON, comment first", in: "{\n// x\n\"kind\":\"Node\"}", diags: "error f:2:1: invalid JSON: it has comments, which JSON does not allow: remove them; it is ignored completely"},
		{name: "JSON, comment before", in: "// x\n" + jsonN, diags: "error f:1:1: invalid JSON: it has comments, which JSON does not allow: remove them; it is ignored completely"},
		{name: "JSON, no comma", in: `{"apiVersion":"v1" "kind":"Node"}`, diags: `error f:1:20: invalid JSON: invalid character '"' after object value (expecting ',' or '}'); it is ignored completely`},
		{name: "JSON, no colon", in: `{"apiVersion" "v1"}`, diags: `error f:1:15: invalid JSON: invalid character '"' after object name (expecting ':'); it is ignored completely`},
		{name: "JSON, comma at the end", in: `{"apiVersion":"v1",}`, diags: "error f:1:19: invalid JSON: invalid character ',' at start of value; it is ignored completely"},
		{name: "JSON array", in: " [" + jsonA + ",\n" + jsonN + "]", want: "Node n1,Service x/a"},
		{name: "JSON array, indented, with a List", in: "[\n  " + jsonA + ",\n  {\"kind\":\"List\",\"items\":[" + jsonN + ",\n5]}]\n", want: "Node n1,Service x/a",
			diags: `error f:4:1: [1].items[1]: must be an object with apiVersion and kind, got "5"`},
		{name: "JSON array, empty", in: "[]\n"},
		{name: "JSON array, cut off", in: "[" + jsonA + ",\n", diags: "error f:2:1: cut off: the JSON is incomplete; it is ignored completely"},
		{name: "List, cut off in an item", in: list(svcA, svcB)[:80], diags: "error f:5:26: cut off: the List ends before its kind, which follows the items; it is ignored completely"},
		{name: "List, cut off after an item", in: list(svcA)[:len(list(svcA))-len("kind: List\nmetadata:\n  resourceVersion: \"\"\n")],
			diags: "error f:7:1: cut off: the List ends before its kind, which follows the items; it is ignored completely"},
		{name: "List, cut off in its kind", in: strings.SplitAfter(list(svcA), "kind: Li")[0], diags: "error f:7:9: cut off: the List ends before its kind, which follows the items; it is ignored completely"},
		{name: "documents, cut off", in: svcA + "---\n" + strings.TrimSuffix(svcB, "None\n") + "'10.", want: "Service x/a",
			diags: "error f:11:3: invalid YAML: found unexpected end of stream"},
		{name: "cluster-info dump", in: jsonA + "\n==== START logs for container c of pod x/p ====\n{ [\n---\nkind: {\n==== END logs for container c of pod x/p ====\n" + jsonN + "\n==== START logs for container c of pod x/q ====\n==== END logs for container c of pod x/q ====\n{",
			want: "Node n1,Service x/a", diags: "error f:10:2: cut off: the JSON is incomplete; it is ignored completely"},
		{name: "Lists too deep", in: strings.Repeat(`{"kind":"List","items":[`, 20) + strings.Repeat("]}", 20), diags: "error f:1:409: invalid JSON: items are nested in Lists more than 16 deep; it is ignored completely"},
		{name: "List in a block", in: "x:\n  " + indented, diags: "error f:1:1: kind: must be set, such as Service or List"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := snapshot.New()
			var diags []string
			for _, d := range Decode(s, "f", []byte(c.in)) {
				diags = append(diags, d.Severity.String()+" "+d.String())
			}
			if diff := cmp.Diff(c.want, strings.Join(objects(s), ",")); diff != "" {
				t.Errorf("objects (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(c.diags, strings.Join(diags, "\n")); diff != "" {
				t.Errorf("diagnostics (-want +got)\n%s", diff)
			}
		})
	}
}

func TestDecodeReportsDocument(t *testing.T) {
	in := "# first\n---\n" + svcA + "---\nx: 1\n---\n{\"a\":1}{\"a\":2}"
	var got []int
	for _, d := range Decode(snapshot.New(), "f", []byte(in)) {
		got = append(got, d.Doc)
	}
	if diff := cmp.Diff([]int{2, 3, 4}, got); diff != "" {
		t.Errorf("document numbers (-want +got)\n%s", diff)
	}
}

func TestDecodeDefaults(t *testing.T) {
	name := ir.Name{Namespace: "default", Name: "a"}
	base := snapshot.Service{Name: name, Object: "Service default/a", Type: "ClusterIP"}
	cases := []struct {
		name, spec string
		want       func(*snapshot.Service)
	}{
		{"nothing", "{}", func(*snapshot.Service) {}},
		{"null", "{type: null, ports: null, sessionAffinity: null, internalTrafficPolicy: null, clusterIPs: null}", func(*snapshot.Service) {}},
		{"cluster IPs and families from the cluster IP", "{clusterIP: 10.0.0.1}", func(s *snapshot.Service) {
			s.ClusterIP, s.ClusterIPs, s.IPFamilies = "10.0.0.1", []string{"10.0.0.1"}, []string{"IPv4"}
		}},
		{"cluster IP and families from the cluster IPs", "{clusterIPs: ['fd00::1', 10.0.0.1]}", func(s *snapshot.Service) {
			s.ClusterIP, s.ClusterIPs, s.IPFamilies = "fd00::1", []string{"fd00::1", "10.0.0.1"}, []string{"IPv6", "IPv4"}
		}},
		{"no families of a headless Service", "{clusterIP: None}", func(s *snapshot.Service) { s.ClusterIP, s.ClusterIPs = "None", []string{"None"} }},
		{"given families stay", "{clusterIP: 10.0.0.1, ipFamilies: [IPv6]}", func(s *snapshot.Service) {
			s.ClusterIP, s.ClusterIPs, s.IPFamilies = "10.0.0.1", []string{"10.0.0.1"}, []string{"IPv6"}
		}},
		{"affinity timeout", "{sessionAffinity: ClientIP}", func(s *snapshot.Service) { s.AffinityIP = true }},
		{"affinity timeout null", "{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: null}}", func(s *snapshot.Service) { s.AffinityIP = true }},
		{"given affinity timeout", "{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 7}}}", func(s *snapshot.Service) { s.AffinityIP, s.AffinitySecs = true, 7 }},
		{"protocol and target port", "{ports: [{port: 80}, {port: 53, protocol: UDP, targetPort: 5353}, {port: 1, targetPort: x}, {port: 2, targetPort: ''}]}", func(s *snapshot.Service) {
			s.Ports = []snapshot.ServicePort{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}, {Protocol: "TCP", Port: 1}, {Protocol: "TCP", Port: 2}}
		}},
		{"policies", "{internalTrafficPolicy: Local, externalTrafficPolicy: Local, type: NodePort}", func(s *snapshot.Service) {
			s.InternalLocal, s.ExternalLocal, s.Type = true, true, "NodePort"
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := base
			c.want(&want)
			var in corev1.Service
			if err := yaml.UnmarshalStrict([]byte("{metadata: {name: a}, spec: "+c.spec+"}"), &in); err != nil {
				t.Fatal(err)
			}
			defaultService(&in, "")
			if diff := cmp.Diff(&want, snapshot.FromService(&in), equate); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestDecodeDefaultsOfSlice(t *testing.T) {
	for _, version := range []string{"v1", "v1beta1"} {
		in := strings.Replace(sliceA, "v1", version, 1) + "ports: [{port: 80}, {name: null, port: null, protocol: UDP}, {name: '', port: 0, protocol: null}, {name: b}]\n"
		s := snapshot.New()
		if diags := Decode(s, "f", []byte(in)); len(diags) > 0 {
			t.Fatal(diags)
		}
		want := []snapshot.EndpointPort{
			{Protocol: "TCP", Port: 80, HasName: true, HasPort: true},
			{Protocol: "UDP"},
			{Protocol: "TCP", HasName: true, HasPort: true},
			{Name: "b", Protocol: "TCP", HasName: true},
		}
		if diff := cmp.Diff(want, s.Slice(ir.Name{Namespace: "x", Name: "a-1"}).Ports); diff != "" {
			t.Errorf("%s (-want +got)\n%s", version, diff)
		}
	}
}

// The older podCIDR is used if podCIDRs is missing.
func TestDecodePodCIDR(t *testing.T) {
	s := snapshot.New()
	if diags := Decode(s, "f", []byte(nodeN+"spec: {podCIDR: 10.1.0.0/24}\n")); len(diags) > 0 {
		t.Fatal(diags)
	}
	if got := fmt.Sprint(s.Node("n1").PodCIDRs); got != "[10.1.0.0/24]" {
		t.Errorf("pod CIDRs %s, want [10.1.0.0/24]", got)
	}
}

// Endpoints are used only without slices, whatever the order of files.
func TestEndpointsGiveWayToSlices(t *testing.T) {
	endpoints := func(name, ip string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Endpoints\nmetadata: {name: %s, namespace: x}\nsubsets: [{addresses: [{ip: %s}], ports: [{port: 80}]}]\n", name, ip)
	}
	service := func(name string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: x}\nspec: {clusterIP: 10.0.0.9, ports: [{port: 80}]}\n", name)
	}
	docs := []string{service("a"), service("b"), sliceA, endpoints("a", "10.0.0.1"), endpoints("b", "10.0.0.2"), endpoints("orphan", "10.0.0.3")}
	for range len(docs) {
		docs = append(docs[1:], docs[0])
		s := snapshot.New()
		if diags := Decode(s, "f", []byte(strings.Join(docs, "---\n"))); len(diags) > 0 {
			t.Fatal(diags)
		}
		got := map[string]string{}
		for _, svc := range s.Services() {
			for _, slice := range s.Slices(svc.Name) {
				got[svc.Object] += slice.Object
			}
		}
		want := map[string]string{"Service x/a": "EndpointSlice x/a-1", "Service x/b": "Endpoints x/b"}
		if !maps.Equal(want, got) {
			t.Errorf("slices (-want +got)\n%s", cmp.Diff(want, got))
		}
		wantInfo := "Service x/b: no EndpointSlice serves it: its v1 Endpoints are used instead (Endpoints contain neither terminating endpoints nor zone hints; add EndpointSlices if the cluster has them)"
		if got := fmt.Sprint(s.Finish()); got != "["+wantInfo+"]" {
			t.Errorf("Finish: %s", got)
		}
	}
}

// A misspelt kind or version is reported. Otherwise the object, and the rules for
// it, would be lost silently.
func TestMisspelt(t *testing.T) {
	const object = "metadata: {name: a, namespace: b}\n"
	for _, tt := range [...]struct{ apiVersion, kind, want string }{
		{"v1", "Servi", `cluster.yaml:2:1: Servi b/a: kind: is not a supported kind: the object is ignored: got "Servi" (did you mean Service?)`},
		{"v1", "Servce", `did you mean Service?`},
		{"v1", "Sevrice", `did you mean Service?`},
		{"v1", "service", `did you mean Service?`},
		{"v1", "Services", `did you mean Service?`},
		{"v2", "Servce", `did you mean Service?`},
		{"v1", "Noed", `did you mean Node?`},
		{"v1", "Lits", `did you mean List?`},
		{"v1", "Enpoints", `did you mean Endpoints?`},
		{"discovery.k8s.io/v1", "Endpointslice", `did you mean EndpointSlice?`},
		{"discovery.k8s.io/v1", "EndpointSli", `did you mean EndpointSlice?`},
		{"discovery.k8s.io/v1", "EndpontSlices", `did you mean EndpointSlice?`},
		{"v2", "Service", `error: cluster.yaml:1:1: Service b/a: apiVersion: must be v1, got "v2": the object is ignored (did you mean v1?)`},
		{"V1", "Node", `error: cluster.yaml:1:1: Node a: apiVersion: must be v1, got "V1"`},
		{"v1", "EndpointSlice", `apiVersion: must be discovery.k8s.io/v1 or discovery.k8s.io/v1beta1, got "v1"`},
		{"discovery.k8s.io/v2", "EndpointSlice", `error: cluster.yaml:1:1: EndpointSlice b/a: apiVersion: must be discovery.k8s.io/v1 or`},
		{"networking.k8s.io/v1alpha1", "ServiceCIDR", `error: cluster.yaml:1:1: ServiceCIDR a: apiVersion: must be networking.k8s.io/v1 or`},
		{"discovry.k8s.io/v1", "EndpointSlice", `warning: cluster.yaml:1:1: EndpointSlice b/a: apiVersion: must be`},
		{"serving.knative.dev/v1", "Service", ""},
		{"longhorn.io/v1beta2", "Node", ""},
		{"discovery.k8s.io/v1", "EndpointSliceMirror", ""},
	} {
		diags := Decode(snapshot.New(), "cluster.yaml", []byte("apiVersion: "+tt.apiVersion+"\nkind: "+tt.kind+"\n"+object))
		var got string
		for _, d := range diags {
			got += d.Severity.String() + ": " + d.String()
		}
		if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s %s: %q, want %q", tt.apiVersion, tt.kind, got, tt.want)
		}
	}
}

// No kind of Kubernetes itself is reported as a misspelling.
func TestOtherKindsAreSilent(t *testing.T) {
	silent := 0
	for gvk := range scheme.Scheme.AllKnownTypes() {
		version, kind := gvk.ToAPIVersionAndKind()
		switch f := misspelt(version, kind); {
		case decoderOf(version, kind) != nil:
		case f != nil:
			t.Errorf("%s %s: %s", version, kind, f.msg)
		default:
			silent++
		}
	}
	if silent < 200 {
		t.Errorf("only %d kinds are silent", silent)
	}
}

// A Service that cannot be served is reported with the missing field.
func TestServiceMissingField(t *testing.T) {
	for spec, want := range map[string]string{
		"{clusterIP: 10.96.0.1, quite: [{port: 80}]}":                     "error: f:1:68: Service b/a: spec.ports: must have a port, unless spec.clusterIP is None",
		"{type: LoadBalancer, ports: [{port: 80}]}":                       "warning: f:1:68: Service b/a: spec.clusterIP: is not set: the Service has no rules (the API server allocates it: save the Service from there, or set an address)",
		"{clusterIP: None}":                                               "",
		"{type: ExternalName, externalName: example.com}":                 "",
		"{type: ClusterIP, clusterIPs: [10.96.0.1], ports: [{port: 80}]}": "",
	} {
		snap := snapshot.New()
		var got string
		for _, d := range Decode(snap, "f", []byte("{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}, spec: "+spec+"}\n")) {
			got += d.Severity.String() + ": " + d.String()
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", spec, got, want)
		}
		if skipped := len(snap.Services()) == 0; skipped != strings.HasPrefix(want, "error") {
			t.Errorf("%s: left out: %v", spec, skipped)
		}
	}
}

// A Status is an error of the file, alone or next to objects, and the file is not
// used. It does not mean an empty cluster.
func TestDecodeStatus(t *testing.T) {
	const status = `{"kind":"Status","apiVersion":"v1","metadata":{"resourceVersion":"3"},"status":"Failure","message":"services is forbidden","reason":"Forbidden","code":403}`
	const want = `is a Status, the API server's answer to a failed request, not an object: "services is forbidden"`
	for name, text := range map[string]string{
		"JSON":           status,
		"YAML":           "apiVersion: v1\nkind: Status\nmessage: services is forbidden\n",
		"in a List":      `{"apiVersion":"v1","kind":"List","items":[` + status + `]}`,
		"beside objects": "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\n---\napiVersion: v1\nkind: Status\nmessage: services is forbidden\n",
	} {
		found := Decode(snapshot.New(), "s.json", []byte(text))
		if len(found) != 1 || found[0].Severity != diag.Error || found[0].Object != "" || found[0].Msg != want {
			t.Errorf("%s: %v", name, found)
		}
	}
}
