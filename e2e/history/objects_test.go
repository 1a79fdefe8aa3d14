package history

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/proxyc/proxyc/e2e/kube"
)

// A cluster is random Services and their EndpointSlices in an api.
type cluster struct {
	*api
	r        *rand.Rand
	services [40]kube.Object // nil if it does not exist
	changes  int
}

// step changes a Service or its endpoints.
func (c *cluster) step() string {
	c.changes++
	n := c.r.IntN(len(c.services))
	name := fmt.Sprintf("s%d", n)
	switch {
	case c.services[n] != nil && c.r.IntN(6) == 0:
		c.delete(c.services[n], c.slice(n, "IPv4"), c.slice(n, "IPv6"))
		c.services[n] = nil
		return name + " is deleted"
	case c.services[n] == nil || c.r.IntN(4) == 0:
		c.services[n] = c.service(n)
		c.apply(c.services[n])
		if c.r.IntN(2) == 0 {
			return name + " is new, without endpoints as yet"
		}
	}
	family := []string{"IPv4", "IPv4", "IPv6"}[c.r.IntN(3)]
	if c.r.IntN(8) == 0 {
		c.delete(c.slice(n, family))
		return name + " loses a slice of " + family
	}
	c.apply(c.slice(n, family))
	return name + " has other endpoints of " + family
}

// chance is true with probability 1/n.
func (c *cluster) chance(n int) bool { return c.r.IntN(n) == 0 }

func (c *cluster) service(n int) kube.Object {
	port := func(name, protocol string, number int) kube.Object {
		return kube.Object{"name": name, "protocol": protocol, "port": number, "targetPort": 8000 + number}
	}
	ports := []any{port("tcp", "TCP", 80)}
	if c.chance(3) {
		ports = append(ports, port("udp", "UDP", 53))
	}
	ips, families := []any{fmt.Sprintf("10.96.1.%d", n+1), fmt.Sprintf("fd00:10:96::1:%x", n+1)}, []any{"IPv4", "IPv6"}
	if c.chance(2) {
		ips, families = ips[:1], families[:1]
	}
	spec := kube.Object{"type": "ClusterIP", "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families, "ports": ports}
	object := kube.Object{"apiVersion": "v1", "kind": "Service", "metadata": kube.Object{"name": fmt.Sprintf("s%d", n), "namespace": "default"}, "spec": spec}
	if c.chance(4) {
		spec["sessionAffinity"] = "ClientIP"
		spec["sessionAffinityConfig"] = kube.Object{"clientIP": kube.Object{"timeoutSeconds": 60}}
	}
	if c.chance(4) {
		spec["internalTrafficPolicy"] = "Local"
	}
	if c.chance(5) { // only this Service claims it: in files, which apply --check reads, no claim would win
		spec["externalIPs"] = []any{fmt.Sprintf("198.51.100.%d", n+1)}
	}
	if c.chance(3) {
		spec["type"] = "NodePort"
		for i, p := range ports {
			p.(kube.Object)["nodePort"] = 30000 + 2*n + i
		}
		if c.chance(2) {
			spec["externalTrafficPolicy"] = "Local"
		}
		if c.chance(2) {
			spec["type"] = "LoadBalancer"
			object["status"] = kube.Object{"loadBalancer": kube.Object{"ingress": []any{kube.Object{"ip": fmt.Sprintf("203.0.113.%d", n+1)}}}}
			if c.chance(2) {
				spec["loadBalancerSourceRanges"] = []any{"198.51.100.0/24", fmt.Sprintf("192.0.2.%d/32", n)}
			}
			if spec["externalTrafficPolicy"] != nil {
				spec["healthCheckNodePort"] = 31000 + n
			}
		}
	}
	return object
}

// slice returns an EndpointSlice of a Service, with random endpoints.
func (c *cluster) slice(n int, family string) kube.Object {
	name := fmt.Sprintf("s%d", n)
	address := map[string]string{"IPv4": "10.244.%d.%d", "IPv6": "fd00:244:%d::%x"}[family]
	endpoints := []any{}
	for range c.r.IntN(6) {
		node := 1 + c.r.IntN(2)
		conditions := kube.Object{"ready": true}
		switch c.r.IntN(6) {
		case 0:
			conditions = kube.Object{"ready": false}
		case 1:
			conditions = kube.Object{"ready": false, "serving": true, "terminating": true}
		}
		endpoints = append(endpoints, kube.Object{"addresses": []any{fmt.Sprintf(address, node, 10+c.r.IntN(20))}, "nodeName": fmt.Sprintf("node%d", node),
			"conditions": conditions})
	}
	return kube.Object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
		"metadata":  kube.Object{"name": name + "-" + strings.ToLower(family), "namespace": "default", "labels": kube.Object{"kubernetes.io/service-name": name}},
		"ports":     []any{kube.Object{"name": "tcp", "protocol": "TCP", "port": 8080}, kube.Object{"name": "udp", "protocol": "UDP", "port": 8053}},
		"endpoints": endpoints}
}

// node returns the daemon's Node.
func node(zone, address string) kube.Object {
	return kube.Object{"apiVersion": "v1", "kind": "Node",
		"metadata": kube.Object{"name": "node1", "labels": kube.Object{"topology.kubernetes.io/zone": zone}},
		"spec":     kube.Object{"podCIDR": "10.244.1.0/24", "podCIDRs": []any{"10.244.1.0/24"}},
		"status":   kube.Object{"addresses": []any{kube.Object{"type": "InternalIP", "address": address}}}}
}

// serviceCIDR returns the ServiceCIDR with a name.
func serviceCIDR(name string, ranges ...any) kube.Object {
	return kube.Object{"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": kube.Object{"name": name}, "spec": kube.Object{"cidrs": ranges}}
}
