package trace

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// target is a --to that names a Service: NAMESPACE/NAME:PORT or a DNS name. PORT is a name or a
// number. "KIND of " before it selects another frontend than the ClusterIP.
type target struct {
	kind     ir.Kind
	Service  ir.Name
	Port     string
	protocol string // "tcp"; "" for any
}

// ParseTarget parses a target. ok is false for a text that begins with an address. namespace is the
// default namespace, that of the client pod.
func ParseTarget(to, namespace string) (t target, ok bool, err error) {
	host, rest := to, ""
	t.kind = ir.ClusterIP
	if kind, of, ok := strings.Cut(to, " of "); ok {
		i := slices.IndexFunc(kinds, func(k ir.Kind) bool { return strings.EqualFold(k.String(), kind) })
		if i < 0 {
			return t, true, fmt.Errorf("--to: %q: must begin with the kind of a frontend: %s, %s, %s, %s", to, kinds[0], kinds[1], kinds[2], kinds[3])
		}
		t.kind, host = kinds[i], of
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host, rest = host[:i], host[i+1:]
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || strings.ContainsAny(host, "[]:") {
		return t, false, nil
	}
	t.Port, t.protocol, _ = strings.Cut(rest, "/")
	if ns, name, ok := strings.Cut(host, "/"); ok {
		t.Service = ir.Name{Namespace: ns, Name: name}
	} else {
		labels := strings.Split(strings.TrimSuffix(host, "."), ".")
		if t.Service = (ir.Name{Namespace: namespace, Name: labels[0]}); len(labels) > 1 {
			t.Service.Namespace = labels[1]
		}
		if len(labels) > 2 && labels[2] != "svc" {
			t.Service.Namespace = ""
		}
	}
	if _, known := ir.ParseProtocol(t.protocol); t.protocol != "" && !known {
		return t, true, fmt.Errorf("--to: %q: protocol must be tcp, udp or sctp", to)
	}
	if t.Service.Namespace == "" || t.Service.Name == "" {
		return t, true, fmt.Errorf("--to: must be IP:PORT[/PROTO], NAMESPACE/NAME:PORT, NodePort of NAMESPACE/NAME:PORT, or the DNS name of a Service, NAME.NAMESPACE.svc:PORT, got %q", to)
	}
	return t, true, nil
}

// NearestName returns a hint that lists the Services with a name in any namespace, for a text that
// names no namespace, with the requested port. It returns "" if there are none.
func NearestName(text string, programs ir.Programs) string {
	const anywhere = "*"
	t, ok, err := ParseTarget(text, anywhere)
	if !ok || err != nil {
		return ""
	}
	var names []string
	for svc := range review.Services(programs) {
		if svc.Name.Name == t.Service.Name && (t.Service.Namespace == anywhere || t.Service.Namespace == svc.Name.Namespace) {
			names = append(names, strings.TrimSuffix(svc.Name.String()+":"+t.Port, ":"))
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	const shown = 3
	if names = slices.Compact(names); len(names) > shown {
		names = append(names[:shown], "one of another namespace")
	}
	return fmt.Sprintf(" (did you mean %s?)", strings.Join(names, " or "))
}

// kinds are the kinds of frontends that a target can name.
var kinds = []ir.Kind{ir.ClusterIP, ir.ExternalIP, ir.LoadBalancer, ir.NodePort}

// resolve returns the address of a name: the ClusterIP of the Service, as DNS returns it, or the
// first address of the named kind. That of a node port is the primary address of this node. For a
// dual-stack Service, resolve prefers the client's family, then the first family.
func (s *Tracer) resolve(to, from string) (string, error) {
	pod, _ := strings.CutPrefix(from, "pod:")
	namespace := ""
	if pod != from {
		namespace, _, _ = strings.Cut(pod, "/")
	}
	t, ok, err := ParseTarget(to, namespace)
	if err != nil {
		return to, fmt.Errorf("%w%s", err, NearestName(to, s.Programs))
	}
	if !ok {
		return to, nil
	}
	client, _, _ := strings.Cut(from, "@")
	addr, _ := netip.ParseAddr(strings.Trim(client, "[]"))
	var has, protocols []string // all ports; protocols of the requested port
	found := map[ir.Match]bool{}
	var first *ir.Match
	numbers := map[ir.ServicePort]string{} // of the Service, also those behind node ports
	for _, f := range s.frontends(t.Service, ir.ClusterIP) {
		numbers[f.Port] = strconv.Itoa(int(f.Match.Port))
	}
	for _, f := range s.frontends(t.Service, t.kind) {
		name := strconv.Itoa(int(f.Match.Port))
		has = append(has, cmp.Or(f.Port.Port, name))
		if t.Port != "" && t.Port != name && t.Port != f.Port.Port && t.Port != numbers[f.Port] {
			continue
		}
		protocols = append(protocols, f.Match.Protocol.String())
		if t.protocol != "" && t.protocol != f.Match.Protocol.String() {
			continue
		}
		found[ir.Match{Protocol: f.Match.Protocol, Port: f.Match.Port}] = true
		if first == nil || addr.IsValid() && first.Addr.Is4() != addr.Is4() {
			first = &f.Match
		}
	}
	slices.Sort(has)
	has = slices.Compact(has)
	switch {
	case first == nil && len(has) == 0:
		return to, fmt.Errorf("--to: %s", s.noFrontend(t))
	case first == nil && t.Port != "" && len(protocols) > 0:
		slices.Sort(protocols)
		return to, fmt.Errorf("--to: port %s of Service %s is for %s, got %q", t.Port, t.Service, strings.Join(slices.Compact(protocols), " and "), t.protocol)
	case first == nil:
		why := ""
		if left := s.ignored.Of(t.Service, ""); left != "" {
			why = "; " + left
		}
		return to, fmt.Errorf("--to: Service %s has the ports %s, got %q%s", t.Service, strings.Join(has, ", "), strings.TrimSuffix(t.Port+"/"+t.protocol, "/"), cmp.Or(why, diag.Meant(t.Port, has)))
	case len(found) > 1 && t.Port == "":
		return to, fmt.Errorf("--to: Service %s has several ports, %s: add one, as in %s:%s", t.Service, strings.Join(has, ", "), t.Service, has[0])
	}
	return net.JoinHostPort(first.Addr.String(), strconv.Itoa(int(first.Port))) + "/" + first.Protocol.String(), nil
}

// frontends returns the frontends of a kind of a Service, in the node's order of families. Those of
// node ports have the primary address of the node.
func (s *Tracer) frontends(name ir.Name, kind ir.Kind) (all []ir.Frontend) {
	for _, p := range s.Programs.All() {
		i, ok := p.Find(name)
		if !ok {
			continue
		}
		for _, f := range p.Services[i].Frontends {
			if f.Kind != kind {
				continue
			}
			if kind == ir.NodePort {
				if f.Match.Addr = p.Node.IP; !f.Match.Addr.IsValid() {
					continue
				}
			}
			all = append(all, f)
		}
	}
	return all
}

// noFrontend returns the reason why a Service has no frontend of a kind on this node.
func (s *Tracer) noFrontend(t target) string {
	if left := s.ignored.Of(t.Service, ""); left != "" {
		return left
	}
	if t.kind != ir.ClusterIP && len(s.frontends(t.Service, ir.ClusterIP)) > 0 {
		return fmt.Sprintf("Service %s has no %s on node %s", t.Service, t.kind, s.Node)
	}
	return fmt.Sprintf("there is no Service %s%s", t.Service, review.NearestService(s.Programs, t.Service))
}

// checkPort returns an error if the port of an address is invalid.
func checkPort(to string) error {
	text, _, _ := strings.Cut(to, "/")
	host, port, err := net.SplitHostPort(text)
	if _, notAddr := netip.ParseAddr(host); err != nil || notAddr != nil {
		return nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("--to: port must be 1-65535, got %q", port)
	}
	return nil
}
