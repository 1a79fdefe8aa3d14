package ipvs

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/rendertest"
)

func TestRules(t *testing.T) {
	got := output(t, ir.NewPrograms(only(program(ir.IPv4), "ranges")), "iptables")
	want := `*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A KUBE-FORWARD -m mark --mark 0x004000/0x004000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN
-A KUBE-SOURCE-RANGES-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-SOURCE-IP dst,dst,src -j RETURN
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN
-A KUBE-IPVS-FILTER -p tcp -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
-A KUBE-IPVS-OUT-FILTER -m addrtype --src-type LOCAL -m ipvs --vaddr 203.0.113.14 --vproto tcp --vport 80 -j DROP
-I INPUT -j KUBE-NODE-PORT
-I INPUT -j KUBE-IPVS-FILTER
-I INPUT -j KUBE-PROXY-FIREWALL
-I FORWARD -j KUBE-FORWARD
-I FORWARD -j KUBE-PROXY-FIREWALL
-I OUTPUT -j KUBE-IPVS-OUT-FILTER
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES ! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -m addrtype --dst-type LOCAL -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -m addrtype --dst-type LOCAL -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x004000/0x004000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x004000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-LOCAL-TCP dst -j RETURN
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p udp -m set --match-set KUBE-NODE-PORT-LOCAL-UDP dst -j RETURN
-A KUBE-NODE-PORT -p udp -m set --match-set KUBE-NODE-PORT-UDP dst -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p sctp -m set --match-set KUBE-NODE-PORT-LOCAL-SCTP-HASH dst,dst -j RETURN
-A KUBE-NODE-PORT -p sctp -m set --match-set KUBE-NODE-PORT-SCTP-HASH dst,dst -j KUBE-MARK-MASQ
-A KUBE-LOAD-BALANCER -m set --match-set KUBE-LOAD-BALANCER-LOCAL dst,dst -j RETURN
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --or-mark 0x004000
-I OUTPUT -j KUBE-SERVICES
-I PREROUTING -j KUBE-SERVICES
-I POSTROUTING -j KUBE-POSTROUTING
COMMIT
`
	if diff := cmp.Diff(want, uncommented(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// uncommented removes the comments from rules.
func uncommented(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if before, after, ok := strings.Cut(line, ` -m comment --comment "`); ok {
			_, after, _ = strings.Cut(after, `"`)
			line = before + after
		}
		b.WriteString(line)
	}
	return b.String()
}

// Addresses of the node that a source range admits precede the rule that drops
// the others (PKT-11).
func TestOutFilter(t *testing.T) {
	p := only(program(ir.IPv4), "ranges")
	admit(p, netip.MustParsePrefix("192.0.2.0/24"))
	var got strings.Builder
	for line := range strings.Lines(output(t, ir.NewPrograms(p), "iptables")) {
		if rule, ok := strings.CutPrefix(line, "-A KUBE-IPVS-OUT-FILTER "); ok {
			got.WriteString(rule)
		}
	}
	want := `-s 203.0.113.14/32 -m ipvs --vaddr 203.0.113.14 --vproto tcp --vport 80 -j RETURN
-s 192.0.2.11/32 -m ipvs --vaddr 203.0.113.14 --vproto tcp --vport 80 -j RETURN
-m addrtype --src-type LOCAL -m ipvs --vaddr 203.0.113.14 --vproto tcp --vport 80 -j DROP
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOutputs(t *testing.T) {
	var got []string
	for _, o := range LowerAll(ir.NewPrograms(program(ir.IPv4), program(ir.IPv6))).Outputs() {
		got = append(got, o.Format+" "+o.File)
	}
	want := []string{"ipvsadm ipvsadm.rules", "ipset ipset.rules", "iptables iptables.rules", "ip6tables ip6tables.rules", "addresses kube-ipvs0.addresses"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Every part has an origin, and a consumer may stop at any.
func TestExplain(t *testing.T) {
	x := LowerAll(ir.NewPrograms(program(ir.IPv4), program(ir.IPv6)))
	rendertest.Explain(t, x, map[string]string{
		"ipvs 192.0.2.11:30080/tcp":                                                "node:30080/tcp default/web Service default/web",
		"ipvs 10.96.0.10:80/tcp -> 10.244.2.10:8080":                               "10.96.0.10:80/tcp default/web EndpointSlice default/web-1: endpoints[1] (ready)",
		"ipset KUBE-CLUSTER-IP 10.96.0.10,tcp:80":                                  "10.96.0.10:80/tcp default/web Service default/web",
		"ipset KUBE-6-LOAD-BALANCER-FW fd00::cb00:710e,tcp:80":                     "[fd00::cb00:710e]:80/tcp default/ranges Service default/ranges",
		"ipset KUBE-LOOP-BACK 10.244.1.10,tcp:8080,10.244.1.10":                    " default/local EndpointSlice default/local-1: endpoints[0] (ready)",
		"ipset KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.14,tcp:80,198.51.100.0/24": "203.0.113.14:80/tcp default/ranges Service default/ranges: spec.loadBalancerSourceRanges[0]",
	})
}

// The output does not depend on the order of Services.
func TestDeterministic(t *testing.T) {
	all := func(p *ir.Program) string {
		var b bytes.Buffer
		for _, o := range LowerAll(ir.NewPrograms(p)).Outputs() {
			if err := o.Write(&b); err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
	p, q := program(ir.IPv4), program(ir.IPv4)
	q.Services = slices.DeleteFunc(q.Services, func(s ir.Service) bool { return s.Name.Name == "ranges" })
	p.Services = slices.DeleteFunc(p.Services, func(s ir.Service) bool { return s.Name.Name == "ranges" })
	slices.Reverse(q.Services)
	if diff := cmp.Diff(all(p), all(q)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func manyServices(n int) *ir.Program {
	return rendertest.ManyServices(program(ir.IPv4), n, ir.Route{From: ir.Pods}, ir.Route{From: ir.Any, SNAT: true})
}
