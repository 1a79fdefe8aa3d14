package redact

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
)

// random returns an address near others, sometimes in a well-known range.
func random(r *rand.Rand) netip.Addr {
	bases := []string{"10.96.0.0", "10.244.1.0", "192.0.2.0", "203.0.113.0", "127.0.0.0", "169.254.1.0", "224.0.0.0", "0.0.0.0", "172.20.3.0",
		"fd00:10:96::", "2001:db8::", "fe80::", "::", "::ffff:10.96.0.0", "ff02::"}
	bytes := netip.MustParseAddr(bases[r.IntN(len(bases))]).AsSlice()
	for range r.IntN(4) {
		bytes[len(bytes)-1-r.IntN(3)] ^= 1 << r.IntN(8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

func common(a, b netip.Addr) int {
	n := 0
	for n < a.BitLen() && bit(a.AsSlice(), n) == bit(b.AsSlice(), n) {
		n++
	}
	return n
}

// Stand-ins of addresses keep the family, the order, the number of shared leading
// bits, and well-known ranges. They reveal nothing else.
func TestAddresses(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var seen []netip.Prefix
		for range 1 + r.IntN(30) {
			a := random(r).Unmap()
			p, _ := a.Prefix(a.BitLen() - r.IntN(2)*r.IntN(a.BitLen()+1))
			seen = append(seen, p)
		}
		red := New(new(snapshot.Objects), nil, "", nil, seen...)
		again := make([]netip.Prefix, len(seen))
		for i, p := range seen {
			if again[i] = red.Prefix(p); again[i].Bits() != p.Bits() || again[i] != again[i].Masked() {
				t.Fatalf("seed %d: %s becomes %s", seed, p, again[i])
			}
		}
		same := New(new(snapshot.Objects), nil, "", nil, again...)
		for _, p := range again {
			if same.Prefix(p) != p {
				t.Errorf("seed %d: %s becomes %s: it is not known by its structure alone", seed, p, same.Prefix(p))
			}
		}
		for range 100 {
			a, b := random(r), random(r)
			if r.IntN(2) == 0 {
				a, b = seen[r.IntN(len(seen))].Addr(), seen[r.IntN(len(seen))].Addr()
				if x, y := red.Addr(a), red.Addr(b); a.BitLen() == b.BitLen() && isSingle(seen, a, b) && a.Compare(b) != x.Compare(y) {
					t.Errorf("seed %d: order of %s and %s: %s, %s", seed, a, b, x, y)
				}
			}
			x, y := red.Addr(a), red.Addr(b)
			if a.BitLen() == b.BitLen() && !a.Is4In6() && !b.Is4In6() && common(a, b) != common(x, y) || a.BitLen() != x.BitLen() || a.Is4In6() != x.Is4In6() {
				t.Errorf("seed %d: %s, %s become %s, %s", seed, a, b, x, y)
			}
			for _, special := range ranges {
				if special.Contains(a) != special.Contains(x) || special.itself && special.Contains(a) && a != x {
					t.Errorf("seed %d: %s becomes %s: %s", seed, a, x, special.Prefix)
				}
			}
		}
	}
}

// isSingle reports whether all addresses were in the input as addresses, not
// ranges.
func isSingle(seen []netip.Prefix, all ...netip.Addr) bool {
	return !slices.ContainsFunc(all, func(a netip.Addr) bool {
		return !slices.Contains(seen, netip.PrefixFrom(a, a.BitLen()))
	})
}

const objects = `{apiVersion: v1, kind: Service, metadata: {name: secret-b, namespace: secret, labels: {service.kubernetes.io/service-proxy-name: secret}, annotations: {preserve-destination: "true"}}, spec: {type: LoadBalancer, clusterIP: 010.99.7.1, clusterIPs: [010.99.7.1, "fd99::77"], ipFamilies: [IPv4, IPv6], externalIPs: [203.0.113.77, secret.example, "::ffff:10.99.7.1"], ports: [{name: secret-z, port: 80}, {name: secret-a, port: 81}], loadBalancerSourceRanges: [" 198.51.77.0/24 ", 198.51.77.128/24, secret, "::ffff:10.99.0.0/112", 0.0.0.0/0]}, status: {loadBalancer: {ingress: [{ip: 203.0.113.78}, {ip: 127.0.0.1}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: secret-a, namespace: secret}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: secret-a-1, namespace: secret, labels: {kubernetes.io/service-name: secret-b}}, addressType: IPv4, endpoints: [{addresses: [10.99.1.77], nodeName: secret-node, targetRef: {kind: Pod, name: secret-pod}, hints: {forZones: [{name: secret-zone}], forNodes: [{name: secret-node}]}}], ports: [{name: secret-a, port: 80}]}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: secret-a, namespace: secret}, subsets: [{addresses: [{ip: 10.99.1.77, nodeName: secret-node, targetRef: {kind: Pod, name: secret-pod}}], ports: [{name: secret-a, port: 80}]}]}
---
{apiVersion: v1, kind: Node, metadata: {name: secret-node, labels: {topology.kubernetes.io/zone: secret-zone}}, spec: {podCIDR: 10.99.1.0/24}, status: {addresses: [{type: InternalIP, address: 192.0.2.77}, {type: Hostname, address: secret-node}]}}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: secret}, spec: {cidrs: [10.99.0.0/16]}}
`

// Nothing of the originals remains, and equality and order are preserved.
func TestObjects(t *testing.T) {
	snap := snapshot.New()
	for _, d := range manifest.Decode(snap, "file", []byte(objects)) {
		if d.Severity == diag.Error {
			t.Fatal(d)
		}
	}
	o := snap.Document().Objects()
	// Invalid keywords.
	o.Services[0].Spec.Type, o.Services[0].Spec.IPFamilies = "secret-type", []corev1.IPFamily{"secret-family"}
	o.Services[0].Spec.Ports[0].Protocol, o.Services[1].Status.LoadBalancer.Ingress[0].IPMode = "secret-protocol", new(corev1.LoadBalancerIPMode("secret-mode"))
	o.Slices[0].AddressType, o.Slices[0].Ports[0].Protocol = "secret-addresses", new(corev1.Protocol("secret-protocol"))
	o.Endpoints[0].Subsets[0].Ports[0].Protocol, o.Nodes[0].Status.Addresses[0].Type = "secret-protocol", "secret-kind"
	o.Services[0].Annotations = map[string]string{snapshot.AnnotationBalance: "secret-balance"}
	o.Services[1].Spec.Selector = map[string]string{"secret": "secret-value"}
	o.Services[1].Labels = map[string]string{"secret": "secret-value", "secret-team": ""}
	for _, m := range []*metav1.ObjectMeta{&o.Services[1].ObjectMeta, &o.Slices[0].ObjectMeta, &o.Nodes[0].ObjectMeta, &o.ServiceCIDRs[0].ObjectMeta} {
		m.Annotations = map[string]string{snapshot.AnnotationIgnore: "PX604, secret,PX803 PX99secret"}
	}
	New(o, nil, "", nil).Objects(o)
	var out bytes.Buffer
	if err := o.Write(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, secret := range []string{"secret", "99", "77", "78", "198", "203", "192.0.2"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is still there: %s", secret, text)
		}
	}
	for _, want := range []string{
		`"name":"svc-2"`, `"kubernetes.io/service-name":"svc-2"`, `"selector":{"label-1":"label-3"}`, `"clusterIP":"None"`, `"clusterIP":"010.`,
		`"ports":[{"name":"port-2","port":80,"protocol":"TCP"},{"name":"port-1","port":81,"protocol":"TCP"}]`, `"externalIPs":["200.0.0.0","text-11","::ffff:10.0.4.0"]`,
		`"loadBalancerSourceRanges":[" 196.0.0.0/24 ","196.0.0.1/24","text-02","10.0.0.0/16","0.0.0.0/0"]`, `"forNodes":[{"name":"node-1"}]`, `"127.0.0.1"`,
		`"annotations":{"proxyc.dev/lint-ignore":"PX604, text-02,PX803 text-01"}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("has no %s: %s", want, text)
		}
	}
}

// A configuration has the same stand-ins as the objects, no access to the API
// server and no file patterns.
func TestConfig(t *testing.T) {
	c := &config.Config{HostnameOverride: "secret", BindAddress: "0.0.0.0", MetricsBindAddress: "192.0.2.77:10249", HealthzBindAddress: "[fd99::77]:1", ClusterCIDR: "10.99.0.0/16,fd99::/64",
		NodePortAddresses: []string{"primary", "192.0.2.0/24"}, IPVS: config.IPVS{ExcludeCIDRs: []string{"192.0.2.77/32"}}, Winkernel: config.Winkernel{SourceVip: "10.99.1.2"},
		ClientConnection: config.ClientConnection{Kubeconfig: "/secret"},
		Logging:          config.Logging{Format: "text", VModule: []config.VModule{{FilePattern: "secret", Verbosity: 4}}}}
	before := fmt.Sprintf("%+v", c)
	got := New(new(snapshot.Objects), c, "", nil).Config(c)
	if fmt.Sprintf("%+v", c) != before {
		t.Errorf("the configuration itself became %+v", c)
	}
	want := &config.Config{HostnameOverride: "node-1", BindAddress: "0.0.0.0", MetricsBindAddress: "192.0.0.0:10249", HealthzBindAddress: "[fd00::]:1", ClusterCIDR: "10.0.0.0/16,fd00::/64",
		NodePortAddresses: []string{"primary", "192.0.0.0/24"}, IPVS: config.IPVS{ExcludeCIDRs: []string{"192.0.0.0/32"}}, Winkernel: config.Winkernel{SourceVip: "10.0.0.0"},
		Logging: config.Logging{Format: "text"}}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// fill sets all strings of a value to a text.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), text)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, text)
		fill(value, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), text)
			}
		}
	}
}

// No text of an object remains, whatever its field.
func TestEveryFieldOfObjects(t *testing.T) {
	for _, o := range []any{&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Endpoints{}, &corev1.Node{}, &networkingv1.ServiceCIDR{}} {
		fill(reflect.ValueOf(o).Elem(), "hunter2")
		all := new(snapshot.Objects)
		all.Add(snapshot.Trim(o))
		New(all, nil, "", nil).Objects(all)
		var out bytes.Buffer
		if err := all.Write(&out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "hunter2") {
			t.Errorf("%T: %s", o, out.String())
		}
	}
}

// stringFields calls f for each string of a value, and for each that a list or map can contain.
func stringFields(v reflect.Value, path string, f func(path string, set func(string))) {
	switch v.Kind() {
	case reflect.String:
		f(path, v.SetString)
	case reflect.Struct:
		for i := range v.NumField() {
			stringFields(v.Field(i), path+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Slice, reflect.Map:
		f(path, func(text string) { fill(v, text) })
	}
}

// Each text of a configuration is replaced, unless the configuration would be invalid with other than
// some fixed words.
func TestEveryFieldOfConfig(t *testing.T) {
	for _, mode := range []string{"iptables", "ipvs", "kernelspace"} {
		c := func() *config.Config {
			c := &config.Config{APIVersion: config.APIVersion, Kind: config.Kind, Mode: mode, DetectLocalMode: "InterfaceNamePrefix"}
			c.DetectLocal.InterfaceNamePrefix = "if"
			config.SetDefaults(c)
			return c
		}
		var paths []string
		stringFields(reflect.ValueOf(c()).Elem(), "", func(path string, _ func(string)) { paths = append(paths, path) })
		free := 0
		for _, path := range paths {
			one := c()
			stringFields(reflect.ValueOf(one).Elem(), "", func(at string, set func(string)) {
				if at == path {
					set("hunter2")
				}
			})
			if config.Validate(one).HasErrors() || path == ".APIVersion" || path == ".Kind" { // Parse accepts only one
				continue
			}
			free++
			text, err := yaml.Marshal(New(new(snapshot.Objects), one, "", nil).Config(one))
			if err != nil || strings.Contains(string(text), "hunter2") {
				t.Errorf("%s remains: %v", path, err)
			}
		}
		if free < 5 {
			t.Errorf("mode %s: only %d fields accept any text", mode, free)
		}
	}
}
