package nftables

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/proxy/tape"
	"sigs.k8s.io/knftables"
)

// After each sync of a test with few Services, the tests' own tracer traces packets to each of
// their addresses through the rules.
func init() {
	tapeSynced = func(p *Proxier) {
		fake, ok := p.nftables.(*knftables.Fake)
		if !ok || len(p.svcPortMap) > 50 {
			return
		}
		sources, nodeIP := []string{"10.200.0.9", testExternalClient, testExternalClientBlocked}, testNodeIP
		if p.ipFamily == v1.IPv6Protocol {
			sources, nodeIP = []string{"fd00:10::9", "2001:db8:f00::2"}, testNodeIPv6
		}
		var out []string
		one := func(from, protocol, to string, port int) {
			// If the tracer does not support a rule it fails its test, which is an empty one
			// here.
			defer func() { recover() }()
			_, output, masq := tracePacket(&testing.T{}, fake, from, protocol, to, fmt.Sprint(port), testNodeIPs)
			line := fmt.Sprintf("%s %s %d/%s = %s", from, to, port, protocol, output)
			if masq {
				line += " masqueraded"
			}
			out = append(out, line)
		}
		trace := func(protocol v1.Protocol, to string, port int) {
			for _, from := range sources {
				one(from, strings.ToLower(string(protocol)), to, port)
			}
		}
		for _, s := range p.svcPortMap {
			addrs := []string{s.ClusterIP().String()}
			for _, ip := range append(s.ExternalIPs(), s.LoadBalancerVIPs()...) {
				addrs = append(addrs, ip.String())
			}
			for _, addr := range addrs {
				trace(s.Protocol(), addr, s.Port())
				trace(s.Protocol(), addr, 7)
			}
			if s.NodePort() != 0 {
				trace(s.Protocol(), nodeIP, s.NodePort())
			}
		}
		slices.Sort(out)
		tape.Say("local", testNodeIPs)
		tape.Say("trace", slices.Compact(out))
	}
}
