package packets

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
)

// worldPods are the pods that Services of a world use as endpoints.
var worldPods = []string{"pod1a", "pod1b", "pod1c", "pod2a", "pod2b", "pod2c"}

// podAddr returns the address of a pod: the third of node 2 is 10.244.2.12.
func podAddr(pod, family string) string {
	addr := fmt.Sprintf("10.244.%c.1%d", pod[3], pod[4]-'a')
	if family == applytest.IPv6 {
		return applytest.Twin(addr)
	}
	return addr
}

// A world is the Services of a cluster on the topology.
type world map[int]*worldService

// A worldService is the Service with a number, which determines its addresses and node ports.
type worldService struct {
	Type          string // as in the API
	Families      []string
	Protocols     []string // of its ports: "TCP" at 80, "UDP" at 53
	Endpoints     []string // pods
	Draining      []string // serving and terminating endpoints
	ExternalLocal bool
	InternalLocal bool
	Affinity      bool
	Ranges        []string // loadBalancerSourceRanges
}

// portOf are the ports of a Service and of its endpoints, by protocol.
var portOf = map[string]struct{ port, target int }{"TCP": {80, 8080}, "UDP": {53, 5353}}

func worldAddr(network, i int, family string) string {
	addr := map[int]string{96: "10.96.%d.%d", 203: "203.0.%[1]d.%[2]d"}[network]
	low, high := i%200+1, i/200
	if network == 203 {
		high = 113 // only the first Services are queried there
	}
	if family == applytest.IPv6 {
		return fmt.Sprintf(map[int]string{96: "fd00:10:96::%x", 203: "2001:db8:203::%x"}[network], 0x100+i)
	}
	return fmt.Sprintf(addr, high, low)
}

func clusterIP(i int, family string) string { return worldAddr(96, i, family) }

// vip returns the load balancer address of a Service.
func vip(i int, family string) string { return worldAddr(203, i, family) }

func nodePort(i int, proto string) int { return 30000 + 2*i + portOf[proto].port%2 }

// apiName returns IPv4 for ipv4.
func apiName(family string) string { return "IP" + family[2:] }

func (s *worldService) objects(i int) []applytest.Object {
	name := fmt.Sprintf("s%d", i)
	spec := applytest.Object{"type": s.Type, "internalTrafficPolicy": policy(s.InternalLocal)}
	var ips, families, ports, ingress []any
	for _, f := range s.Families {
		ips, families = append(ips, clusterIP(i, f)), append(families, apiName(f))
		ingress = append(ingress, applytest.Object{"ip": vip(i, f), "ipMode": "VIP"})
	}
	for _, proto := range s.Protocols {
		p := applytest.Object{"name": strings.ToLower(proto), "protocol": proto, "port": portOf[proto].port, "targetPort": portOf[proto].target}
		if s.Type != "ClusterIP" {
			p["nodePort"] = nodePort(i, proto)
		}
		ports = append(ports, p)
	}
	spec["clusterIP"], spec["clusterIPs"], spec["ipFamilies"], spec["ports"] = ips[0], ips, families, ports
	if s.Affinity {
		spec["sessionAffinity"] = "ClientIP"
		spec["sessionAffinityConfig"] = applytest.Object{"clientIP": applytest.Object{"timeoutSeconds": 600}}
	}
	status := applytest.Object{}
	if s.Type != "ClusterIP" {
		spec["externalTrafficPolicy"] = policy(s.ExternalLocal)
	}
	if s.Type == "LoadBalancer" {
		status["loadBalancer"] = applytest.Object{"ingress": ingress}
		if s.ExternalLocal {
			spec["healthCheckNodePort"] = 32000 + i
		}
		if len(s.Ranges) > 0 {
			spec["loadBalancerSourceRanges"] = s.Ranges
		}
	}
	objects := []applytest.Object{{
		"apiVersion": "v1", "kind": "Service",
		"metadata": applytest.Object{"namespace": "default", "name": name}, "spec": spec, "status": status,
	}}
	for _, f := range s.Families {
		objects = append(objects, s.slice(name, f))
	}
	return objects
}

func policy(local bool) string {
	if local {
		return "Local"
	}
	return "Cluster"
}

func (s *worldService) slice(name, family string) applytest.Object {
	var ports []any
	for _, proto := range s.Protocols {
		ports = append(ports, applytest.Object{"name": strings.ToLower(proto), "protocol": proto, "port": portOf[proto].target})
	}
	endpoints := []any{}
	add := func(pods []string, conditions applytest.Object) {
		for _, pod := range pods {
			endpoints = append(endpoints, applytest.Object{
				"addresses": []any{podAddr(pod, family)}, "nodeName": "node" + pod[3:4], "conditions": conditions,
			})
		}
	}
	add(s.Endpoints, applytest.Object{"ready": true})
	add(s.Draining, applytest.Object{"ready": false, "serving": true, "terminating": true})
	return applytest.Object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
		"metadata":    applytest.Object{"namespace": "default", "name": name + "-" + family, "labels": applytest.Object{"kubernetes.io/service-name": name}},
		"addressType": apiName(family), "ports": ports, "endpoints": endpoints,
	}
}

// snapshot returns the output of kubectl get -o json.
func (w world) snapshot(t testing.TB) string {
	t.Helper()
	var items []applytest.Object
	if err := yaml.Unmarshal([]byte(applytest.ClusterObjects), &items); err != nil {
		t.Fatal(err)
	}
	for _, i := range slices.Sorted(maps.Keys(w)) {
		items = append(items, w[i].objects(i)...)
	}
	text, err := json.Marshal(applytest.Object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// to returns the target of a probe.
func to(addr string, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port))
}

// worldRandom generates and changes worlds. Equal seeds give equal histories.
type worldRandom struct{ *rand.Rand }

func newWorldRandom(seed uint64) worldRandom { return worldRandom{rand.New(rand.NewPCG(seed, seed))} }

func (r worldRandom) chance(n int) bool { return r.IntN(n) == 0 }

func oneOf[T any](r worldRandom, from ...T) T { return from[r.IntN(len(from))] }

func (r worldRandom) service() *worldService {
	s := &worldService{
		Type:          oneOf(r, "ClusterIP", "NodePort", "LoadBalancer"),
		Families:      oneOf(r, []string{applytest.IPv4}, []string{applytest.IPv6}, []string{applytest.IPv4, applytest.IPv6}, []string{applytest.IPv6, applytest.IPv4}),
		Protocols:     oneOf(r, []string{"TCP"}, []string{"UDP"}, []string{"TCP", "UDP"}),
		ExternalLocal: r.chance(3), InternalLocal: r.chance(4), Affinity: r.chance(3),
		Endpoints: r.pods(r.IntN(len(worldPods) + 1)),
	}
	if r.chance(3) {
		s.Ranges = []string{"192.0.2.0/24", "2001:db8:0:1::/64"}
	}
	return s
}

func (r worldRandom) pods(n int) []string {
	pods := slices.Clone(worldPods)
	r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	return pods[:n]
}

// move returns the endpoints of a Service that keeps at least one: one more, one less, or one
// replaced.
func (r worldRandom) move(endpoints []string) []string {
	var others []string
	for _, pod := range worldPods {
		if !slices.Contains(endpoints, pod) {
			others = append(others, pod)
		}
	}
	out := slices.Clone(endpoints)
	at := r.IntN(len(out))
	switch what := r.IntN(3); {
	case what == 0 && len(out) > 1 || len(others) == 0:
		return slices.Delete(out, at, at+1)
	case what == 1:
		return append(out, oneOf(r, others...))
	}
	out[at] = oneOf(r, others...)
	return out
}
