package main

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// target is the --to of a trace where it names a Service: NAMESPACE/NAME:PORT or a
// DNS name, PORT by name or number.
type target struct {
	service  ir.Name
	port     string
	protocol string // "tcp"; empty: any
}

// parseTarget reads a target; ok is false for what begins with an address. namespace
// is that of names without one, of a pod that asks.
func parseTarget(to, namespace string) (t target, ok bool, err error) {
	host, rest := to, ""
	if i := strings.LastIndexByte(to, ':'); i >= 0 {
		host, rest = to[:i], to[i+1:]
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || strings.ContainsAny(host, "[]:") {
		return t, false, nil
	}
	t.port, t.protocol, _ = strings.Cut(rest, "/")
	if ns, name, ok := strings.Cut(host, "/"); ok {
		t.service = ir.Name{Namespace: ns, Name: name}
	} else {
		labels := strings.Split(strings.TrimSuffix(host, "."), ".")
		if t.service = (ir.Name{Namespace: namespace, Name: labels[0]}); len(labels) > 1 {
			t.service.Namespace = labels[1]
		}
		if len(labels) > 2 && labels[2] != "svc" {
			t.service.Namespace = ""
		}
	}
	if _, known := ir.ParseProtocol(t.protocol); t.protocol != "" && !known {
		return t, true, fmt.Errorf("--to: %q: protocol must be tcp, udp or sctp", to)
	}
	if t.service.Namespace == "" || t.service.Name == "" {
		return t, true, fmt.Errorf("--to: must be IP:PORT[/PROTO], NAMESPACE/NAME:PORT or the DNS name of a Service, NAME.NAMESPACE.svc:PORT, got %q", to)
	}
	return t, true, nil
}

// resolve returns what a name stands for: the ClusterIP of a Service, as DNS has it.
// Of two families it is the one of the client, or else the first.
func (s *scene) resolve(to, from string) (string, error) {
	pod, _ := strings.CutPrefix(from, "pod:")
	namespace := ""
	if pod != from {
		namespace, _, _ = strings.Cut(pod, "/")
	}
	t, ok, err := parseTarget(to, namespace)
	if !ok || err != nil {
		return to, err
	}
	client, _, _ := strings.Cut(from, "@")
	addr, _ := netip.ParseAddr(strings.Trim(client, "[]"))
	var has, protocols []string // of all ports; of those that are the one asked for
	found := map[ir.Match]bool{}
	var first *ir.Frontend
	for _, f := range s.clusterIPs(t.service) {
		name := strconv.Itoa(int(f.Match.Port))
		has = append(has, cmp.Or(f.Port.Port, name))
		if t.port != "" && t.port != name && t.port != f.Port.Port {
			continue
		}
		protocols = append(protocols, f.Match.Protocol.String())
		if t.protocol != "" && t.protocol != f.Match.Protocol.String() {
			continue
		}
		found[ir.Match{Protocol: f.Match.Protocol, Port: f.Match.Port}] = true
		if first == nil || addr.IsValid() && first.Match.Addr.Is4() != addr.Is4() {
			first = f
		}
	}
	slices.Sort(has)
	has = slices.Compact(has)
	switch {
	case first == nil && len(has) == 0:
		return to, fmt.Errorf("--to: %s", s.noClusterIP(t.service))
	case first == nil && t.port != "" && len(protocols) > 0:
		slices.Sort(protocols)
		return to, fmt.Errorf("--to: port %s of Service %s is for %s, got %q", t.port, t.service, strings.Join(slices.Compact(protocols), " and "), t.protocol)
	case first == nil:
		why := ""
		if left := s.left.of(t.service, ""); left != "" {
			why = ": of " + left
		}
		return to, fmt.Errorf("--to: Service %s has the ports %s, got %q%s", t.service, strings.Join(has, ", "), strings.TrimSuffix(t.port+"/"+t.protocol, "/"), why)
	case len(found) > 1 && t.port == "":
		return to, fmt.Errorf("--to: Service %s has the ports %s: say which, as in %s:%s", t.service, strings.Join(has, ", "), t.service, has[0])
	}
	return net.JoinHostPort(first.Match.Addr.String(), strconv.Itoa(int(first.Match.Port))) + "/" + first.Match.Protocol.String(), nil
}

// clusterIPs returns the frontends of a Service at its ClusterIPs, in the node's order
// of families.
func (s *scene) clusterIPs(name ir.Name) (all []*ir.Frontend) {
	for _, p := range s.programs.All() {
		i, ok := slices.BinarySearchFunc(p.Services, name, func(svc ir.Service, name ir.Name) int { return svc.Name.Compare(name) })
		if !ok {
			continue
		}
		for j := range p.Services[i].Frontends {
			if f := &p.Services[i].Frontends[j]; f.Kind == ir.ClusterIP {
				all = append(all, f)
			}
		}
	}
	return all
}

// noClusterIP says why a Service has no ClusterIP on this node.
func (s *scene) noClusterIP(name ir.Name) string {
	if left := s.left.of(name, ""); left != "" {
		return left
	}
	return fmt.Sprintf("there is no Service %s%s", name, nearestService(s.programs, name))
}
