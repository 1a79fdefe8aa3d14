package applytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// The families a case runs in.
const (
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// A Case is a conformance case in one family. It consists of a configuration and objects, flows
// that are tried after the proxy has applied them, and steps that change the objects, each with its
// own flows.
type Case struct {
	Name       string            `json:"name"`
	Shows      string            `json:"shows"`
	Families   []string          `json:"families"` // empty for both
	Modes      []string          `json:"modes"`    // empty for all
	Daemon     bool              `json:"daemon"`   // requires a daemon
	Config     Object            `json:"config"`   // KubeProxyConfiguration, merged over the base
	ModeConfig map[string]Object `json:"mode_config"`
	Objects    []Object          `json:"objects"`
	Flows      []Flow            `json:"flows"`
	Steps      []Step            `json:"steps"`
}

// A Step changes objects, waits and tries flows.
type Step struct {
	Delete []string `json:"delete"` // Kind/[namespace/]name
	Apply  []Object `json:"apply"`
	Pause  float64  `json:"pause"` // seconds
	Flows  []Flow   `json:"flows"`
}

// A Flow is a set of tries of one target.
type Flow struct {
	From       string  `json:"from"`
	To         string  `json:"to"` // address:port[/proto]; IPv6 with or without brackets
	Tries      int     `json:"tries"`
	Affinity   bool    `json:"affinity"`
	Name       string  `json:"name"`
	SameAs     string  `json:"same_as"`
	Interval   float64 `json:"interval"` // seconds
	Sport      uint16  `json:"sport"`
	Open       string  `json:"open"`
	Again      string  `json:"again"`
	Any        bool    `json:"any"`
	Unstable   bool    `json:"unstable"`
	HTTP       string  `json:"http"` // address:port/path
	StatusOnly bool    `json:"status_only"`
}

// An Object is a Kubernetes object, or a part of one, as decoded from its file.
type Object = map[string]any

// LoadCases reads the *.yaml files of a directory. It returns the cases for the family, ordered by
// name.
func LoadCases(dir fs.FS, family string) ([]*Case, error) {
	files, err := fs.Glob(dir, "*.yaml")
	if err != nil {
		return nil, err
	}
	var cases []*Case
	for _, file := range files {
		data, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		c, err := ParseCase(data, family)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if want := strings.TrimSuffix(path.Base(file), ".yaml"); c.Name != want {
			return nil, fmt.Errorf("%s: name: must be that of the file, got %q", file, c.Name)
		}
		if c.RunsIn(family) {
			cases = append(cases, c)
		}
	}
	return cases, nil
}

// ParseCase parses a case. For IPv6 it replaces every address and family name by its IPv6 twin.
// Unknown fields are errors.
func ParseCase(data []byte, family string) (*Case, error) {
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return nil, err
	}
	if m, ok := tree.(map[string]any); ok && family == IPv6 {
		families := m["families"] // selects families, so it is not replaced
		delete(m, "families")
		twinTree(m)
		m["families"] = families
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	c := &Case{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return nil, err
	}
	return c, nil
}

// RunsIn reports whether the case applies to the family.
func (c *Case) RunsIn(family string) bool {
	return len(c.Families) == 0 || slices.Contains(c.Families, family)
}

// RunsUnder reports whether the case applies to the mode.
func (c *Case) RunsUnder(mode string) bool {
	return len(c.Modes) == 0 || slices.Contains(c.Modes, mode)
}

// Stages returns the steps of the case in order. The flows before the first change are in a first
// step that applies the objects.
func (c *Case) Stages() []Step {
	return append([]Step{{Apply: c.Objects, Flows: c.Flows}}, c.Steps...)
}

// Key returns the key of the flow in the records; stage and number count from 1.
func (f *Flow) Key(stage, number int) string {
	at := fmt.Sprintf("%d.%d ", stage, number)
	switch {
	case f.Again != "":
		return at + "connection " + f.Again + " again"
	case f.HTTP != "":
		return at + f.From + " http " + f.HTTP
	}
	to := f.To
	if !strings.Contains(to, "/") {
		to += "/tcp"
	}
	key := at + f.From + " -> " + to
	if f.Name != "" {
		key += " (" + f.Name + ")"
	}
	return key
}

// Target parses the target of the flow.
func (f *Flow) Target() (to netip.AddrPort, proto string, err error) {
	addr, proto, ok := strings.Cut(f.To, "/")
	if !ok {
		proto = "tcp"
	}
	to, err = parseAddrPort(addr)
	return to, proto, err
}

// parseAddrPort parses address:port. An IPv6 address need not have brackets, since the twin of an
// IPv4 address has none.
func parseAddrPort(s string) (netip.AddrPort, error) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 && strings.Count(s, ":") > 1 && !strings.HasPrefix(s, "[") {
		s = "[" + s[:i] + "]" + s[i:]
	}
	return netip.ParseAddrPort(s)
}

// TryCount returns the number of tries of the flow.
func (f *Flow) TryCount() int {
	_, proto, _ := strings.Cut(f.To, "/")
	switch {
	case f.Tries > 0:
		return f.Tries
	case f.Open != "":
		return 1
	case proto == "sctp":
		return 24
	}
	return 40
}

// Sequential reports whether the tries of the flow must be sequential.
func (f *Flow) Sequential() bool { return f.Affinity || f.Sport != 0 || f.Interval != 0 }

// Alone reports whether the flow must not run concurrently with others, since its result depends on
// the order.
func (f *Flow) Alone() bool {
	return f.Sequential() || f.Name != "" || f.SameAs != "" || f.Open != "" || f.Again != "" ||
		strings.HasSuffix(f.To, "/sctp") // an ICMP error reaches every raw socket between two addresses
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

var (
	ipv4Text = regexp.MustCompile(`\b(\d+\.\d+\.\d+)\.(\d+)(/\d+)?\b`)

	// twinPrefix maps the first three octets of the topology's addresses to IPv6 prefixes.
	twinPrefix = map[string]string{
		"10.244.1": "fd00:10:244:1::", "10.244.2": "fd00:10:244:2::",
		"10.96.0": "fd00:10:96::", "203.0.113": "2001:db8:203::", "198.18.0": "2001:db8:198::",
		"192.0.2": "2001:db8:0:1::", "198.51.100": "2001:db8:0:2::",
	}
	// twinCIDR maps networks of other sizes.
	twinCIDR = map[string]string{
		"10.244.0.0/16": "fd00:10:244::/48", "10.96.0.0/16": "fd00:10:96::/112", "10.96.0.0/24": "fd00:10:96::/112",
		"10.0.0.0/8": "fd00:10::/32", "0.0.0.0/0": "::/0", "0.0.0.0": "::",
		"127.0.0.1": "::1", "127.0.0.0/8": "::1/128", "127.0.0.1/32": "::1/128",
	}
)

// Twin replaces every IPv4 address and network in a text by its IPv6 twin: 10.244.1.10 by
// fd00:10:244:1::10, 192.0.2.0/24 by 2001:db8:0:1::/64. The last octet is kept as text. Addresses
// outside the topology are kept.
func Twin(text string) string {
	switch text {
	case "IPv4":
		return "IPv6"
	case "ipv4":
		return "ipv6"
	}
	return ipv4Text.ReplaceAllStringFunc(text, func(s string) string {
		if to, ok := twinCIDR[s]; ok {
			return to
		}
		m := ipv4Text.FindStringSubmatch(s)
		prefix, ok := twinPrefix[m[1]]
		if !ok {
			return s
		}
		switch m[3] {
		case "":
			return prefix + m[2]
		case "/24":
			return prefix + "/64"
		case "/32":
			return prefix + m[2] + "/128"
		}
		return s
	})
}

func twinTree(v any) any {
	switch v := v.(type) {
	case string:
		return Twin(v)
	case []any:
		for i := range v {
			v[i] = twinTree(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = twinTree(v[k])
		}
	}
	return v
}

// baseConfig is the default configuration of a case, which the case's own is merged into.
const baseConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
detectLocalMode: ClusterCIDR
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 0s, udpStreamTimeout: 0s}
iptables: {minSyncPeriod: 10ms, syncPeriod: 30s}
ipvs: {minSyncPeriod: 10ms, syncPeriod: 30s}
nftables: {minSyncPeriod: 10ms, syncPeriod: 30s}
metricsBindAddress: 127.0.0.1:10249
healthzBindAddress: 0.0.0.0:10256
`

// ClusterObjects exist in every case.
const ClusterObjects = `
- apiVersion: v1
  kind: Node
  metadata:
    name: node1
    labels: {kubernetes.io/hostname: node1, topology.kubernetes.io/zone: zone-a}
  spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24, 'fd00:10:244:1::/64']}
  status:
    addresses:
    - {type: InternalIP, address: 192.0.2.11}
    - {type: InternalIP, address: '2001:db8:0:1::11'}
- apiVersion: v1
  kind: Node
  metadata:
    name: node2
    labels: {kubernetes.io/hostname: node2, topology.kubernetes.io/zone: zone-b}
  spec: {podCIDR: 10.244.2.0/24, podCIDRs: [10.244.2.0/24, 'fd00:10:244:2::/64']}
  status:
    addresses:
    - {type: InternalIP, address: 192.0.2.12}
    - {type: InternalIP, address: '2001:db8:0:1::12'}
- apiVersion: networking.k8s.io/v1
  kind: ServiceCIDR
  metadata: {name: kubernetes}
  spec: {cidrs: [10.96.0.0/16, 'fd00:10:96::/112']}
`

// UDPIdle is how long mode userspace keeps the socket of a silent UDP client. With kube-proxy
// 1.25's default of 250 ms, a client loses a reply that a busy machine delays by that time. It is
// shorter than the pause before a step, after which kube-proxy 1.25 has forgotten its clients.
const UDPIdle = 900 * time.Millisecond

// ConfigFile returns the configuration of the case for a mode, as YAML.
func (c *Case) ConfigFile(mode string) ([]byte, error) {
	config := Object{}
	if err := yaml.Unmarshal([]byte(baseConfig), &config); err != nil {
		return nil, err
	}
	config["mode"] = mode
	if mode == "userspace" {
		config["udpIdleTimeout"] = UDPIdle.String()
	}
	merge(config, c.Config)
	merge(config, c.ModeConfig[mode])
	return yaml.Marshal(config)
}

// merge merges the fields of from into those of into, recursively. Lists are replaced.
func merge(into, from Object) {
	for k, v := range from {
		a, aok := into[k].(map[string]any)
		b, bok := v.(map[string]any)
		if aok && bok {
			a = maps.Clone(a)
			merge(a, b)
			v = a
		}
		into[k] = v
	}
}

// Annotate adds an annotation to all Services of the case.
func (c *Case) Annotate(key, value string) {
	for _, stage := range c.Stages() {
		for _, o := range stage.Apply {
			if meta, ok := o["metadata"].(map[string]any); ok && o["kind"] == "Service" {
				all, _ := meta["annotations"].(map[string]any)
				if all == nil {
					all = map[string]any{}
				}
				all[key] = value
				meta["annotations"] = all
			}
		}
	}
}

// A Store contains the objects of a running case.
type Store struct {
	keys    []string // in order of first appearance
	objects map[string]Object
}

// NewStore returns a Store with the objects that exist in every case.
func NewStore() (*Store, error) {
	s := &Store{objects: map[string]Object{}}
	var objects []Object
	if err := yaml.Unmarshal([]byte(ClusterObjects), &objects); err != nil {
		return nil, err
	}
	return s, s.Step(Step{Apply: objects})
}

// Step deletes and applies objects. Deleting a missing object is an error, since the case is then
// wrong.
func (s *Store) Step(step Step) error {
	for _, key := range step.Delete {
		if strings.Count(key, "/") == 1 {
			key = strings.Replace(key, "/", "/default/", 1)
		}
		if _, ok := s.objects[key]; !ok {
			return fmt.Errorf("delete %s: there is none", key)
		}
		delete(s.objects, key)
		s.keys = slices.DeleteFunc(s.keys, func(k string) bool { return k == key })
	}
	for _, o := range step.Apply {
		key, err := identify(o)
		if err != nil {
			return err
		}
		if _, ok := s.objects[key]; !ok {
			s.keys = append(s.keys, key)
		}
		s.objects[key] = o
	}
	return nil
}

// identify sets the default namespace of the object and returns its key.
func identify(o Object) (string, error) {
	kind, _ := o["kind"].(string)
	meta, _ := o["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if kind == "" || name == "" {
		return "", fmt.Errorf("object without kind or metadata.name: %v", o)
	}
	if kind != "Node" && kind != "ServiceCIDR" && meta["namespace"] == nil {
		meta["namespace"] = "default"
	}
	namespace, ok := meta["namespace"].(string)
	if !ok {
		namespace = "default" // so that Kind/name also finds cluster-scoped objects
	}
	return kind + "/" + namespace + "/" + name, nil
}

// File returns the List of all objects as YAML, like `kubectl get -o yaml`.
func (s *Store) File() ([]byte, error) {
	items := make([]Object, len(s.keys))
	for i, key := range s.keys {
		items[i] = s.objects[key]
	}
	return yaml.Marshal(Object{"apiVersion": "v1", "kind": "List", "items": items})
}

// Each visits the stages of a case, numbered from 1, with the objects that the cluster then has.
func (c *Case) Each(t testing.TB, visit func(n int, stage Step, cluster []byte)) {
	t.Helper()
	objects, err := NewStore()
	if err != nil {
		t.Fatal(err)
	}
	for i, stage := range c.Stages() {
		if err := objects.Step(stage); err != nil {
			t.Fatal(err)
		}
		cluster, err := objects.File()
		if err != nil {
			t.Fatal(err)
		}
		visit(i+1, stage, cluster)
	}
}
