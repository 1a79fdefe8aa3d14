package ipvs

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
)

// program is irtest's Program with the routes of mode ipvs.
func program(f ir.Family) *ir.Program {
	p := irtest.Program(ir.ModeIPVS)
	p.Node.IPVS = &ir.IPVS{Scheduler: "rr"}
	for i := range p.Services {
		for j := range p.Services[i].Frontends {
			fe := &p.Services[i].Frontends[j]
			fe.Fallback = ir.Reject
			if n := len(fe.Routes); fe.Kind.External() && fe.Policy == ir.Local && n > 0 {
				fe.Routes = []ir.Route{{From: ir.Any, Pool: fe.Routes[n-1].Pool, Origin: fe.Routes[n-1].Origin}}
			}
		}
	}
	if f == ir.IPv6 {
		translate(p)
	}
	return p
}

// six returns the IPv6 twin of an IPv4 address: fd00::a00:1 for 10.0.0.1.
func six(a netip.Addr) netip.Addr {
	if !a.Is4() {
		return a
	}
	b := [16]byte{0: 0xfd}
	copy(b[12:], a.AsSlice())
	return netip.AddrFrom16(b)
}

func sixPrefix(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(six(p.Addr()), p.Bits()+96) }

func translate(p *ir.Program) {
	p.Family = ir.IPv6
	p.Node.IP = six(p.Node.IP)
	for i, a := range p.Node.Addrs {
		p.Node.Addrs[i] = six(a)
	}
	p.Node.Detector.Prefix = sixPrefix(p.Node.Detector.Prefix)
	for i := range p.Services {
		s := &p.Services[i]
		for j := range s.Frontends {
			f := &s.Frontends[j]
			f.Match.Addr = six(f.Match.Addr)
			for k, r := range f.SourceRanges {
				f.SourceRanges[k].Prefix = sixPrefix(r.Prefix)
			}
		}
		for j := range s.Pools {
			for k, b := range s.Pools[j].Backends {
				s.Pools[j].Backends[k].AddrPort = netip.AddrPortFrom(six(b.AddrPort.Addr()), b.AddrPort.Port())
			}
		}
	}
}

func text(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func output(t *testing.T, programs ir.Programs, format string) string {
	t.Helper()
	for _, o := range LowerAll(programs).Outputs() {
		if o.Format == format {
			return text(t, o.Write)
		}
	}
	t.Fatalf("no output %s", format)
	return ""
}

// only removes all Services except one.
func only(p *ir.Program, name string) *ir.Program {
	p.Services = slices.DeleteFunc(p.Services, func(s ir.Service) bool { return s.Name.Name != name })
	return p
}

func TestVirtualServers(t *testing.T) {
	tests := []struct {
		service string
		change  func(*ir.Program)
		want    string
	}{
		{"web", nil, `
-A -t 10.96.0.10:80 -s rr
-a -t 10.96.0.10:80 -r 10.244.1.10:8080 -m -w 1
-a -t 10.96.0.10:80 -r 10.244.2.10:8080 -m -w 1
-A -t 10.244.1.1:30080 -s rr
-a -t 10.244.1.1:30080 -r 10.244.1.10:8080 -m -w 1
-a -t 10.244.1.1:30080 -r 10.244.2.10:8080 -m -w 1
-A -t 192.0.2.11:30080 -s rr
-a -t 192.0.2.11:30080 -r 10.244.1.10:8080 -m -w 1
-a -t 192.0.2.11:30080 -r 10.244.2.10:8080 -m -w 1
-A -t 198.18.0.10:80 -s rr
-a -t 198.18.0.10:80 -r 10.244.1.10:8080 -m -w 1
-a -t 198.18.0.10:80 -r 10.244.2.10:8080 -m -w 1
-A -t 203.0.113.10:80 -s rr
-a -t 203.0.113.10:80 -r 10.244.1.10:8080 -m -w 1
-a -t 203.0.113.10:80 -r 10.244.2.10:8080 -m -w 1
`},
		// The kernel rejects connections to a virtual server without real servers
		// (IPV-5).
		{"none", func(p *ir.Program) { p.Node.Addrs = nil }, `
-A -t 10.96.0.13:80 -s rr
-A -t 203.0.113.13:80 -s rr
`},
		{"sticky", nil, `
-A -u 10.96.0.15:53 -s rr -p 10800
-a -u 10.96.0.15:53 -r 10.244.1.10:8080 -m -w 1
-a -u 10.96.0.15:53 -r 10.244.2.10:8080 -m -w 1
`},
		{"sticky", func(p *ir.Program) { p.Node.IPVS.Scheduler = "mh" }, `
-A -u 10.96.0.15:53 -s mh -p 10800 -b mh-fallback,mh-port
-a -u 10.96.0.15:53 -r 10.244.1.10:8080 -m -w 1
-a -u 10.96.0.15:53 -r 10.244.2.10:8080 -m -w 1
`},
		{"sticky", func(p *ir.Program) {
			p.Node.IPVS.Scheduler = "lblcr"
			p.Services[0].Frontends[0].Match.Protocol = ir.SCTP
			p.Services[0].Pools[0].Affinity = nil
		}, `
-A --sctp-service 10.96.0.15:53 -s lblcr
-a --sctp-service 10.96.0.15:53 -r 10.244.1.10:8080 -m -w 1
-a --sctp-service 10.96.0.15:53 -r 10.244.2.10:8080 -m -w 1
`},
		{"ranges", translate, `
-A -t [fd00::cb00:710e]:80 -s rr
-a -t [fd00::cb00:710e]:80 -r [fd00::af4:10a]:8080 -m -w 1
`},
	}
	for _, tt := range tests {
		p := only(program(ir.IPv4), tt.service)
		if tt.change != nil {
			tt.change(p)
		}
		if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), output(t, ir.NewPrograms(p), "ipvsadm")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.service, diff)
		}
	}
}

// Frontends with an address take precedence over node ports (PKT-18). Node ports
// do not use link-local addresses (IPV-3).
func TestNodePortAddresses(t *testing.T) {
	keys := func(change func(*ir.Program)) string {
		p := only(program(ir.IPv4), "web")
		change(p)
		var got []string
		for _, v := range Lower(p).VirtualServers {
			if v.Key.Port == 30080 {
				got = append(got, fmt.Sprint(v.Key.Addr, " ", v.Kind))
			}
		}
		return strings.Join(got, ", ")
	}
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	tests := []struct {
		name   string
		change func(*ir.Program)
		want   string
	}{
		{"all", func(*ir.Program) {}, "10.244.1.1 NodePort, 192.0.2.11 NodePort"},
		{"none known", func(p *ir.Program) { p.Node.Addrs = nil }, ""},
		{"prefix", func(p *ir.Program) {
			p.Node.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: prefix("192.0.2.0/24"), Assigned: true}}}
		}, "192.0.2.11 NodePort"},
		{"primary, address not known otherwise", func(p *ir.Program) {
			p.Node.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: prefix("192.0.2.99/32")}}}
		}, "192.0.2.99 NodePort"},
		{"link-local", func(p *ir.Program) { p.Node.Addrs = []netip.Addr{addr("fe80::1")} }, ""},
		{"external IP at the same address and port", func(p *ir.Program) {
			f := &p.Services[0].Frontends[1]
			f.Match.Addr, f.Match.Port = addr("192.0.2.11"), 30080
		}, "10.244.1.1 NodePort, 192.0.2.11 ExternalIP"},
	}
	for _, tt := range tests {
		if got := keys(tt.change); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// If nodePortAddresses contains none of the node's addresses, no set contains the
// numbers of node ports. Otherwise packets of other programs would be
// masqueraded.
func TestNodePortNowhere(t *testing.T) {
	p := program(ir.IPv4)
	p.Node.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: netip.MustParsePrefix("198.18.0.0/15"), Assigned: true}}}
	for _, e := range Lower(p).Elements {
		if e.Match.IsNodePort() && e.Match.Port != 0 {
			t.Errorf("%s has %s", e.Set, e.ElementKey)
		}
	}
}

func elements(s string) string {
	var adds []string
	for line := range strings.Lines(s) {
		if rest, ok := strings.CutPrefix(line, "add KUBE-"); ok {
			adds = append(adds, rest)
		}
	}
	return strings.Join(adds, "")
}

func TestSets(t *testing.T) {
	tests := []struct {
		service string
		change  func(*ir.Program)
		want    string
	}{
		{"web", nil, `LOOP-BACK 10.244.1.10,tcp:8080,10.244.1.10
CLUSTER-IP 10.96.0.10,tcp:80
EXTERNAL-IP 198.18.0.10,tcp:80
LOAD-BALANCER 203.0.113.10,tcp:80
NODE-PORT-TCP 30080
IPVS-IPS 10.96.0.10
IPVS-IPS 198.18.0.10
IPVS-IPS 203.0.113.10
`},
		// A VIP that the node has on another interface remains there; a ClusterIP
		// is always added to kube-ipvs0 (IPV-1).
		{"local", func(p *ir.Program) {
			p.Node.Addrs = append(p.Node.Addrs, netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("10.96.0.11"))
			p.Services[0].Health = &ir.HealthCheck{Port: 32000, Local: 1}
		}, `LOOP-BACK 10.244.1.10,tcp:8080,10.244.1.10
CLUSTER-IP 10.96.0.11,tcp:80
LOAD-BALANCER 203.0.113.11,tcp:80
LOAD-BALANCER-LOCAL 203.0.113.11,tcp:80
NODE-PORT-TCP 30081
NODE-PORT-LOCAL-TCP 30081
HEALTH-CHECK-NODE-PORT 32000
IPVS-IPS 10.96.0.11
`},
		{"ranges", func(p *ir.Program) {
			f := &p.Services[0].Frontends[0]
			f.SourceRanges = append(f.SourceRanges, ir.SourceRange{Prefix: netip.MustParsePrefix("203.0.113.14/32")},
				ir.SourceRange{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, ir.SourceRange{Prefix: netip.MustParsePrefix("192.0.2.7/32")})
		}, `LOOP-BACK 10.244.1.10,tcp:8080,10.244.1.10
LOAD-BALANCER 203.0.113.14,tcp:80
LOAD-BALANCER-FW 203.0.113.14,tcp:80
LOAD-BALANCER-SOURCE-IP 203.0.113.14,tcp:80,203.0.113.14
LOAD-BALANCER-SOURCE-CIDR 203.0.113.14,tcp:80,0.0.0.0/1
LOAD-BALANCER-SOURCE-CIDR 203.0.113.14,tcp:80,128.0.0.0/1
LOAD-BALANCER-SOURCE-CIDR 203.0.113.14,tcp:80,192.0.2.7
LOAD-BALANCER-SOURCE-CIDR 203.0.113.14,tcp:80,198.51.100.0/24
IPVS-IPS 203.0.113.14
`},
		{"ranges", func(p *ir.Program) {
			translate(p)
			p.Services[0].Frontends[0].SourceRanges[0].Prefix = netip.MustParsePrefix("::/0")
		}, `6-LOOP-BACK fd00::af4:10a,tcp:8080,fd00::af4:10a
6-LOAD-BALANCER fd00::cb00:710e,tcp:80
6-LOAD-BALANCER-FW fd00::cb00:710e,tcp:80
6-LOAD-BALANCER-SOURCE-CID fd00::cb00:710e,tcp:80,::/1
6-LOAD-BALANCER-SOURCE-CID fd00::cb00:710e,tcp:80,8000::/1
6-IPVS-IPS fd00::cb00:710e
`},
		// SCTP node ports are stored by address.
		{"remote", func(p *ir.Program) {
			f := &p.Services[0].Frontends[1]
			f.Match.Protocol = ir.SCTP
		}, `CLUSTER-IP 10.96.0.12,tcp:80
NODE-PORT-SCTP-HASH 10.244.1.1,sctp:30082
NODE-PORT-SCTP-HASH 192.0.2.11,sctp:30082
NODE-PORT-LOCAL-SCTP-HASH 10.244.1.1,sctp:30082
NODE-PORT-LOCAL-SCTP-HASH 192.0.2.11,sctp:30082
IPVS-IPS 10.96.0.12
`},
	}
	for _, tt := range tests {
		p := only(program(ir.IPv4), tt.service)
		if tt.change != nil {
			tt.change(p)
		}
		if diff := cmp.Diff(tt.want, elements(output(t, ir.NewPrograms(p), "ipset"))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.service, diff)
		}
	}
}

func TestSetsAreCreated(t *testing.T) {
	p4, p6 := only(program(ir.IPv4), ""), only(program(ir.IPv6), "")
	got := output(t, ir.NewPrograms(p4, p6), "ipset")
	for _, want := range []string{
		"create KUBE-LOOP-BACK hash:ip,port,ip family inet hashsize 1024 maxelem 65536\nflush KUBE-LOOP-BACK\n",
		"create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net family inet hashsize 1024 maxelem 65536\n",
		"create KUBE-NODE-PORT-LOCAL-SCTP-HASH hash:ip,port family inet hashsize 1024 maxelem 65536\n",
		"create KUBE-HEALTH-CHECK-NODE-PORT bitmap:port range 0-65535\n",
		"create KUBE-6-IPVS-IPS hash:ip family inet6 hashsize 1024 maxelem 65536\n",
		"create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6 hashsize 1024 maxelem 65536\n",
		"create KUBE-6-NODE-PORT-LOCAL-SCTP-HAS hash:ip,port family inet6 hashsize 1024 maxelem 65536\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "create "); n != 2*len(Sets()) {
		t.Errorf("%d sets created, want %d", n, 2*len(Sets()))
	}
	names := make(map[string]bool)
	for _, s := range Sets() {
		for _, f := range []ir.Family{ir.IPv4, ir.IPv6} {
			if name := s.Name(f); len(name) > 31 || names[name] {
				t.Errorf("set name %s is too long or used twice", name)
			}
			names[s.Name(f)] = true
		}
	}
}

func TestMaxElem(t *testing.T) {
	for n, want := range map[int]int{0: 65536, 65536: 65536, 65537: 131072, 131073: 262144} {
		if got := MaxElem(n); got != want {
			t.Errorf("%d elements: got %d, want %d", n, got, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	got := output(t, ir.NewPrograms(only(program(ir.IPv4), "web"), only(program(ir.IPv6), "ranges")), "addresses")
	want := "10.96.0.10/32\n198.18.0.10/32\n203.0.113.10/32\nfd00::cb00:710e/128\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func routeClusterIPs(p *ir.Program, routes ...ir.Route) {
	for i := range p.Services {
		for j := range p.Services[i].Frontends {
			f := &p.Services[i].Frontends[j]
			if f.Kind != ir.ClusterIP || len(f.Routes) == 0 {
				continue
			}
			pool := f.Routes[0].Pool
			f.Routes = slices.Clone(routes)
			for k := range f.Routes {
				f.Routes[k].Pool = pool
			}
		}
	}
}

func noDetector(p *ir.Program) {
	p.Node.Detector = ir.Detector{}
	routeClusterIPs(p, ir.Route{From: ir.Any})
}

func onePrefix(p *ir.Program) {
	p.Node.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{
		{Prefix: netip.PrefixFrom(p.Node.IP, p.Node.IP.BitLen()), Assigned: true}}}
}

// admit adds a range, and the VIP, to all frontends with source ranges.
func admit(p *ir.Program, prefix netip.Prefix) {
	for i := range p.Services {
		for j := range p.Services[i].Frontends {
			if f := &p.Services[i].Frontends[j]; len(f.SourceRanges) > 0 {
				vip := netip.PrefixFrom(f.Match.Addr, f.Match.Addr.BitLen())
				f.SourceRanges = append(f.SourceRanges, ir.SourceRange{Prefix: prefix}, ir.SourceRange{Prefix: vip})
			}
		}
	}
}
