package reviewtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A Manifest is the spec of a Service as a person writes it.
type Manifest map[string]any

// ServicePair is two versions of a Service, which has the number N. Fixed numbers and addresses follow
// from N, so that 40 Services in sequence have different ones.
type ServicePair struct {
	N        int
	Old, New Manifest
}

// ServicePairs returns random pairs, with every combination of the fields that an API server completes,
// and of those that decide who is served. Most versions are valid, and most pairs differ in few fields.
func ServicePairs(seed uint64, n int) (pairs []ServicePair) {
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range n {
		p := pairOf{r, i%40 + 1}
		old := p.choices(nil)
		next := p.choices(nil)
		if r.IntN(4) > 0 {
			next = p.choices(old)
		}
		pairs = append(pairs, ServicePair{p.n, p.manifest(old), p.manifest(next)})
	}
	return pairs
}

type pairOf struct {
	r *rand.Rand
	n int
}

// options are the fields of a Service with the number of their values. The first one is: not set.
var options = []struct {
	field  string
	values int
}{
	{"type", 4}, {"clusterIP", 3}, {"ports", 5}, {"nodePorts", 3}, {"external", 3}, {"internal", 3}, {"ranges", 2},
	{"externalIPs", 3}, {"families", 5}, {"policy", 4}, {"health", 2}, {"allocate", 3}, {"second", 2}, {"tidy", 6},
}

// choices returns the values of a new version: random ones, or those of old with one to three others.
func (p pairOf) choices(old map[string]int) map[string]int {
	out := maps.Clone(old)
	if old != nil {
		for range 1 + p.r.IntN(3) {
			o := options[p.r.IntN(len(options))]
			out[o.field] = p.r.IntN(o.values)
		}
		return out
	}
	out = map[string]int{}
	for _, o := range options {
		if out[o.field] = p.r.IntN(o.values); o.field != "type" && o.field != "ports" && o.field != "tidy" && p.r.IntN(2) == 0 {
			out[o.field] = 0
		}
	}
	return out
}

// manifest returns the spec. Unless tidy is 0, it has no fields that its type does not allow.
func (p pairOf) manifest(c map[string]int) Manifest {
	kind := []string{"", "NodePort", "LoadBalancer", "ExternalName"}[c["type"]]
	exposed, balanced := c["type"] == 1 || c["type"] == 2, c["type"] == 2
	tidy := c["tidy"] > 0
	m := Manifest{}
	set := func(field string, allowed bool, value any) {
		if value != nil && value != "" && (allowed || !tidy) {
			m[field] = value
		}
	}
	set("type", true, kind)
	if kind == "ExternalName" {
		m["externalName"] = "example.com"
	}
	six := c["families"] == 2 || c["families"] == 4
	ip, other := fmt.Sprintf("10.96.0.%d", p.n+10), fmt.Sprintf("fd00:10:96::%x", p.n+10)
	if six {
		ip, other = other, ip
	}
	dual := c["policy"] > 1
	switch c["clusterIP"] {
	case 1:
		set("clusterIP", kind != "ExternalName", ip)
		if c["second"] == 1 && dual && kind != "ExternalName" {
			m["clusterIPs"] = []any{ip, other}
		}
	case 2:
		set("clusterIP", kind == "", "None")
	}
	families := [][]any{nil, {"IPv4"}, {"IPv6"}, {"IPv4", "IPv6"}, {"IPv6", "IPv4"}}[c["families"]]
	if tidy && len(families) == 2 && !dual {
		families = families[:1]
	}
	if families != nil {
		set("ipFamilies", kind != "ExternalName", families)
	}
	set("ipFamilyPolicy", kind != "ExternalName", []any{nil, "SingleStack", "PreferDualStack", "RequireDualStack"}[c["policy"]])
	m["ports"] = p.ports(c, exposed || !tidy)
	var externals []any
	for i := range c["externalIPs"] {
		externals = append(externals, []any{fmt.Sprintf("203.0.113.%d", p.n), fmt.Sprintf("2001:db8:113::%x", p.n)}[i])
	}
	if externals != nil {
		set("externalIPs", true, externals)
	}
	set("externalTrafficPolicy", exposed || kind == "" && externals != nil, []any{nil, "Cluster", "Local"}[c["external"]])
	set("internalTrafficPolicy", true, []any{nil, "Cluster", "Local"}[c["internal"]])
	if c["ranges"] == 1 {
		set("loadBalancerSourceRanges", balanced, []any{"198.51.100.0/24"})
	}
	if c["health"] == 1 {
		set("healthCheckNodePort", balanced && c["external"] == 2, 3*p.n)
	}
	set("allocateLoadBalancerNodePorts", balanced, []any{nil, true, false}[c["allocate"]])
	return m
}

// ports returns the ports, whose names are those of the endpoints' ports.
func (p pairOf) ports(c map[string]int, nodePorts bool) (ports []any) {
	type port = map[string]any
	all := [][]port{
		{{"name": "p", "port": 80}},
		{{"name": "p", "port": 80}, {"name": "u", "port": 80, "protocol": "UDP"}},
		{{"name": "p", "port": 80}, {"name": "q", "port": 81}},
		{{"name": "p", "port": 8080}},
		{{"name": "q", "port": 81}, {"name": "p", "port": 80}},
	}[c["ports"]]
	for i, one := range all {
		switch {
		case !nodePorts || c["nodePorts"] == 0 || c["nodePorts"] == 1 && i > 0:
		case one["name"] == "q" || one["name"] == "u" && c["second"] == 0:
			one["nodePort"] = 3*p.n - 1
		default:
			one["nodePort"] = 3*p.n - 2
		}
		ports = append(ports, one)
	}
	return ports
}

// admissionNodes are node1, which has the endpoints of each Service, and node2, which has none.
var admissionNodes = []string{"node1", "node2"}

// outsiders are clients outside the cluster, the first one inside the source ranges of ServicePairs.
var outsiders = map[string][]string{"IPv4": {"198.51.100.9", "8.8.8.8"}, "IPv6": {"2001:db8:51::9", "2620::9"}}

// AdmissionCluster returns the Nodes, and the EndpointSlices of Services of namespace default.
func AdmissionCluster(services ...string) string {
	var b strings.Builder
	for i, node := range admissionNodes {
		fmt.Fprintf(&b, "---\n{apiVersion: v1, kind: Node, metadata: {name: %s, uid: u}, spec: {podCIDRs: [10.244.%d.0/24, 'fd00:10:%d::/64']}, status: {addresses: [{type: InternalIP, address: 192.0.2.%d}, {type: InternalIP, address: '2001:db8::%d'}]}}\n",
			node, i+1, i+1, i+11, i+11)
	}
	for _, name := range services {
		for family, addr := range map[string]string{"IPv4": "10.244.1.5", "IPv6": "fd00:10:1::5"} {
			fmt.Fprintf(&b, "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s-%s, namespace: default, labels: {kubernetes.io/service-name: %s}}, addressType: %s, "+
				"ports: [{name: p, port: 8080}, {name: q, port: 8081}, {name: u, port: 8082, protocol: UDP}], endpoints: [{addresses: ['%s'], nodeName: node1, conditions: {ready: true}}]}\n",
				name, strings.ToLower(family), name, family, addr)
		}
	}
	return b.String()
}

// Reached returns what clients outside reach of a Service of an API server on the nodes of
// AdmissionCluster, by identity, with the same description as Opened. A nil Service has nothing.
func Reached(s *corev1.Service) map[string]string {
	out := map[string]string{}
	if s == nil || s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return out
	}
	add := func(family, kind, addr string, local bool, ranges []netip.Prefix) {
		for _, p := range s.Spec.Ports {
			port := fmt.Sprintf("%d/%s", p.Port, strings.ToLower(string(p.Protocol)))
			id := addr + " " + port
			if kind == "NodePort" {
				if id = fmt.Sprintf("%d/%s", p.NodePort, p.Protocol); p.NodePort == 0 {
					continue
				}
			}
			for i, node := range admissionNodes {
				for _, client := range outsiders[family] {
					admitted := len(ranges) == 0 || slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(netip.MustParseAddr(client)) })
					if admitted && (i == 0 || !local) {
						out[strings.Join([]string{family, node, kind, id, client}, " ")] = strings.Join([]string{family, node, kind, port, client}, " ")
					}
				}
			}
		}
	}
	externalLocal := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	internalLocal := s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	for i, of := range s.Spec.IPFamilies {
		family := string(of)
		in := func(text string) bool { return netip.MustParseAddr(text).Is4() == (of == corev1.IPv4Protocol) }
		var ranges []netip.Prefix
		for _, text := range s.Spec.LoadBalancerSourceRanges {
			if p := netip.MustParsePrefix(text); in(p.Addr().String()) {
				ranges = append(ranges, p)
			}
		}
		add(family, "ClusterIP", s.Spec.ClusterIPs[i], internalLocal, nil)
		add(family, "NodePort", "", externalLocal, nil)
		for _, text := range s.Spec.ExternalIPs {
			if in(text) {
				add(family, "ExternalIP", text, externalLocal, nil)
			}
		}
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			if in(ingress.IP) {
				add(family, "LoadBalancer", ingress.IP, externalLocal, ranges)
			}
		}
	}
	return out
}

// Symbolic returns a Service with other identities for what its manifest does not fix, which are the same
// in all its versions.
func Symbolic(s *corev1.Service, m Manifest) *corev1.Service {
	if s == nil {
		return nil
	}
	s = s.DeepCopy()
	text, _ := json.Marshal(m)
	var fixed corev1.ServiceSpec
	_ = json.Unmarshal(text, &fixed)
	for i, ip := range s.Spec.ClusterIPs {
		if ip != fixed.ClusterIP && !slices.Contains(fixed.ClusterIPs, ip) && ip != corev1.ClusterIPNone {
			s.Spec.ClusterIPs[i] = "of " + string(s.Spec.IPFamilies[i])
		}
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort != 0 && !slices.ContainsFunc(fixed.Ports, func(f corev1.ServicePort) bool { return f.NodePort == p.NodePort && f.Name == p.Name }) {
			p.NodePort = -p.Port
		}
	}
	return s
}

// Opens returns what clients outside reach of a new version, and not of the old one, sorted.
func Opens(before, after *corev1.Service) (out []string) {
	was := Reached(before)
	for id, what := range Reached(after) {
		if was[id] == "" {
			out = append(out, what)
		}
	}
	slices.Sort(out)
	return out
}

// destination matches a destination in the output of proxyc diff.
var destination = regexp.MustCompile(`^(\w+) .*?(\d+)/(tcp|udp)( |$)`)

// Opened returns what the output of proxyc diff -o json opens to clients outside, by Service. ports
// returns the number of a port by its node port, such as 30080/tcp, or by what that stands for, such as "of 80/tcp".
func Opened(output []byte, ports func(service, nodePort string) int32) (map[string][]string, error) {
	var found struct {
		Services []struct {
			Effect, Name string
			Flows        []struct {
				Family string
				To     []string
				From   []struct {
					Kind     string
					All      bool
					Prefixes []netip.Prefix
				}
				Nodes []string
			}
		}
	}
	out := map[string][]string{}
	if err := json.Unmarshal(output, &found); err != nil {
		return nil, err
	}
	for _, s := range found.Services {
		for _, f := range s.Flows {
			if s.Effect != "opens" {
				continue
			}
			for _, to := range f.To {
				m := destination.FindStringSubmatch(to)
				if m == nil || strings.Contains(to, "127.0.0.0/8") {
					continue
				}
				kind, port := m[1], m[2]
				if kind == "NodePort" {
					of := ""
					if strings.Contains(to, " of ") {
						of = "of "
					}
					port = strconv.Itoa(int(ports(s.Name, of+port+"/"+m[3])))
				}
				for _, client := range outsiders[f.Family] {
					if !slices.ContainsFunc(f.From, func(c struct {
						Kind     string
						All      bool
						Prefixes []netip.Prefix
					}) bool {
						return c.Kind == "outside" && (c.All || slices.ContainsFunc(c.Prefixes, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(client)) }))
					}) {
						continue
					}
					for _, node := range f.Nodes {
						out[s.Name] = append(out[s.Name], strings.Join([]string{f.Family, node, kind, port + "/" + m[3], client}, " "))
					}
				}
			}
		}
	}
	for name := range out {
		slices.Sort(out[name])
		out[name] = slices.Compact(out[name])
	}
	return out, nil
}
