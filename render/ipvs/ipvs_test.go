package ipvs

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

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
