package judge

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// A port is kube-proxy's view of one port of a Service.
type port struct {
	Port    string // ns/name:port/TCP
	Address string // ClusterIP:port/TCP

	NodePort, Affinity, HealthCheck          int
	ExternalIPs, LoadBalancers, SourceRanges []string
	ExternalLocal, InternalLocal             bool
}

// TestServices checks that every Service of kube-proxy's tests has the same frontends, with the
// same source ranges, traffic policies, session affinity and health check, alone and in a history
// of changes.
func TestServices(t *testing.T) {
	const table = "proxy"
	diffs := loadDifferences(t, "services")
	n := 0
	for _, test := range load(t, table) {
		w := newWorld(t, ir.ModeNFTables)
		i := 0
		for _, f := range test.Facts {
			if w.take(f) {
				continue
			}
			switch f.Kind {
			case "parsed":
				one := newWorld(t, ir.ModeNFTables)
				v := decode[struct {
					Family  string
					Service *corev1.Service
					Ports   []port
				}](t, f.Is)
				if one.family = family(v.Family); isHistory(test) {
					continue // repeated by "ports"
				}
				one.snap.SetService(snapshot.FromService(v.Service))
				i++
				n++
				diffs.compare(t, fmt.Sprintf("services %s: %d", test.Test, i), kubeProxyPorts(v.Ports), one.ports())
			case "ports":
				i++
				n++
				diffs.compare(t, fmt.Sprintf("services %s: %d", test.Test, i), kubeProxyPorts(decode[[]port](t, f.Is)), w.ports())
			}
		}
	}
	if n < 25 {
		t.Errorf("only %d cases", n)
	}
}

func isHistory(test taped) bool {
	return slices.ContainsFunc(test.Facts, func(f fact) bool { return f.Kind == "ports" })
}

// ports returns the frontends of the world's Services. Each port has one endpoint on this node,
// so that affinity is visible.
func (w *world) ports() string {
	for _, s := range w.snap.Services() {
		slice := &snapshot.EndpointSlice{Name: s.Name, Object: "EndpointSlice " + s.Name.String(), Service: s.Name, AddressType: w.family.String()}
		addr := netip.MustParseAddr("10.180.0.1")
		if w.family == ir.IPv6 {
			addr = netip.MustParseAddr("fd00:10:180::1")
		}
		slice.Endpoints = []snapshot.Endpoint{{Address: addr.String(), Addr: addr, NodeName: w.nodeName(), Ready: true, Serving: true}}
		for _, p := range s.Ports {
			slice.Ports = append(slice.Ports, snapshot.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: 8080, HasName: true, HasPort: true})
		}
		w.dirty = append(w.dirty, w.snap.SetSlice(slice)...)
	}
	var out []string
	for _, s := range w.program().Services {
		for _, f := range s.Frontends {
			affinity := 0
			for _, p := range s.Pools {
				if p.Port == f.Port && p.Affinity != nil {
					affinity = int(p.Affinity.Timeout.Seconds())
				}
			}
			health := 0
			if s.Health != nil {
				health = int(s.Health.Port)
			}
			var ranges []string
			for _, r := range f.SourceRanges {
				ranges = append(ranges, r.Prefix.String())
			}
			out = append(out, portText(f.Port.String(), f.Kind, f.Match.String(), f.Policy == ir.Local, ranges, affinity, health))
		}
	}
	return sorted(out)
}

// kubeProxyPorts returns the ports of Services in the form of frontends.
func kubeProxyPorts(ports []port) string {
	var out []string
	for _, p := range ports {
		name, protocol, _ := cutLast(p.Port, "/")
		number, _, _ := strings.Cut(p.Address[strings.LastIndex(p.Address, ":")+1:], "/")
		add := func(kind ir.Kind, addr, port string, local bool, ranges []string) {
			match := "node:" + port
			if addr != "" {
				ip := netip.MustParseAddr(addr)
				match = netip.AddrPortFrom(ip, mustPort(port)).String()
			}
			out = append(out, portText(name, kind, match+"/"+strings.ToLower(protocol), local, ranges, p.Affinity, p.HealthCheck))
		}
		add(ir.ClusterIP, p.Address[:strings.LastIndex(p.Address, ":")], number, p.InternalLocal, nil)
		for _, ip := range p.ExternalIPs {
			add(ir.ExternalIP, ip, number, p.ExternalLocal, nil)
		}
		for _, ip := range p.LoadBalancers {
			add(ir.LoadBalancer, ip, number, p.ExternalLocal, p.SourceRanges)
		}
		if p.NodePort != 0 {
			add(ir.NodePort, "", fmt.Sprint(p.NodePort), p.ExternalLocal, nil)
		}
	}
	return sorted(out)
}

func mustPort(s string) (p uint16) {
	if err := json.Unmarshal([]byte(s), &p); err != nil {
		panic(err)
	}
	return p
}

func portText(port string, kind ir.Kind, match string, local bool, ranges []string, affinity, health int) string {
	s := fmt.Sprintf("%s %s %s", port, kind, match)
	if local {
		s += " Local"
	}
	if len(ranges) > 0 {
		s += " from" + list(ranges)
	}
	if affinity > 0 {
		s += fmt.Sprintf(" affinity %ds", affinity)
	}
	if health > 0 {
		s += fmt.Sprintf(" health %d", health)
	}
	return s
}

func sorted(out []string) string {
	slices.Sort(out)
	return lines(out)
}
