package userspace

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/rendertest"
)

// program is irtest's Program with the routes of mode userspace: the Cluster
// pool, masqueraded, for all sources.
func program() *ir.Program {
	p := irtest.Program(ir.ModeUserspace)
	p.Node.Userspace = &ir.Userspace{PortMin: 20000, PortMax: 20099, UDPIdleTimeout: 250 * time.Millisecond}
	for i := range p.Services {
		s := &p.Services[i]
		s.Pools = slices.DeleteFunc(s.Pools, func(p ir.Pool) bool { return p.Policy == ir.Local })
		for j := range s.Frontends {
			f := &s.Frontends[j]
			f.SourceRanges, f.Fallback, f.Routes = nil, ir.Reject, nil
			if len(s.Pools) > 0 {
				f.Routes = []ir.Route{{From: ir.Any, SNAT: true}}
			}
		}
	}
	return p
}

func only(p *ir.Program, names ...string) *ir.Program {
	p.Services = slices.DeleteFunc(p.Services, func(s ir.Service) bool { return !slices.Contains(names, s.Name.Name) })
	return p
}

func output(t *testing.T, format string, programs ...*ir.Program) string {
	t.Helper()
	for _, o := range LowerAll(ir.NewPrograms(programs...)).Outputs() {
		if o.Format == format {
			var b bytes.Buffer
			if err := o.Write(&b); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
	}
	t.Fatalf("no output %s", format)
	return ""
}

// If the proxy listens at one address, all connections are redirected there.
func TestBindAddress(t *testing.T) {
	p := only(program(), "sticky")
	p.Node.Userspace.BindAddress = netip.MustParseAddr("192.0.2.12")
	got := output(t, "iptables", p)
	for _, want := range []string{
		"-A KUBE-PORTALS-CONTAINER -d 10.96.0.15/32 -p udp -m udp --dport 53 -m comment --comment \"default/sticky\" -j DNAT --to-destination 192.0.2.12:200",
		"-A KUBE-PORTALS-HOST -d 10.96.0.15/32 -p udp -m udp --dport 53 -m comment --comment \"default/sticky\" -j DNAT --to-destination 192.0.2.12:200",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in\n%s", want, got)
		}
	}
}

func TestNodePortAddresses(t *testing.T) {
	p := only(program(), "web")
	p.Node.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{
		{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Assigned: true},
		{Prefix: netip.MustParsePrefix("192.0.2.11/32")},
	}}
	var got []string
	for line := range strings.Lines(output(t, "iptables", p)) {
		if strings.HasPrefix(line, "-I OUTPUT -d") {
			got = append(got, strings.SplitN(line, " -m comment", 2)[0])
		}
	}
	want := []string{"-I OUTPUT -d 192.0.2.11/32", "-I OUTPUT -d 192.0.2.0/24 -m addrtype --dst-type LOCAL"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestListeners(t *testing.T) {
	p := only(program(), "none", "sticky", "web")
	p.Node.Addrs = append(p.Node.Addrs, netip.MustParseAddr("198.18.0.10"))
	want := `{
  "dialTimeouts": [
    "250ms",
    "500ms",
    "1s",
    "2s"
  ],
  "udpIdleTimeout": "250ms",
  "listeners": [
    {
      "servicePort": "default/none",
      "protocol": "tcp",
      "listen": "0.0.0.0:20001",
      "backends": [],
      "hold": [
        "0.0.0.0:30083"
      ]
    },
    {
      "servicePort": "default/sticky",
      "protocol": "udp",
      "listen": "0.0.0.0:20072",
      "backends": [
        "10.244.1.10:8080",
        "10.244.2.10:8080"
      ],
      "affinityTimeout": "3h0m0s"
    },
    {
      "servicePort": "default/web",
      "protocol": "tcp",
      "listen": "0.0.0.0:20091",
      "backends": [
        "10.244.1.10:8080",
        "10.244.2.10:8080"
      ],
      "hold": [
        "198.18.0.10:80",
        "0.0.0.0:30080"
      ]
    }
  ]
}
`
	if diff := cmp.Diff(want, output(t, "listeners", p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := output(t, "listeners"); !strings.Contains(got, `"listeners": []`) {
		t.Errorf("without Programs: %s", got)
	}
}

func TestAssignPorts(t *testing.T) {
	p := program()
	all, unserved := AssignPorts(p, nil)
	if len(all) != len(p.Services) || len(unserved) != 0 {
		t.Fatalf("%d ports and %d without for %d Services", len(all), len(unserved), len(p.Services))
	}
	// The other ports are unchanged after one is removed.
	some, _ := AssignPorts(only(program(), "local", "ranges", "remote", "sticky", "web"), nil)
	for name, port := range some {
		if all[name] != port {
			t.Errorf("%s moved from %d to %d", name, all[name], port)
		}
	}
	// A range that is too small, and partly used by node ports.
	p.Node.Userspace.PortMin, p.Node.Userspace.PortMax = 30080, 30085 // web, local, remote and none have 30080 to 30083
	ports, unserved := AssignPorts(p, nil)
	var got []uint16
	for _, n := range ports {
		got = append(got, n)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]uint16{30084, 30085}, got); diff != "" || len(unserved) != 4 {
		t.Errorf("%d unserved, ports (-want +got):\n%s", len(unserved), diff)
	}
	if got := output(t, "listeners", p); !strings.Contains(got, `"IPv4 default/`) {
		t.Errorf("unserved is not reported:\n%s", got)
	}
	// The kernel's choice, offline.
	p.Node.Userspace.PortMin, p.Node.Userspace.PortMax = 0, 0
	ports, _ = AssignPorts(p, nil)
	for name, n := range ports {
		if n < FirstEphemeral || n > LastEphemeral {
			t.Errorf("%s has port %d", name, n)
		}
	}
}

func TestExplain(t *testing.T) {
	p := only(program(), "none", "web")
	x := LowerAll(ir.NewPrograms(p))
	rendertest.Explain(t, x, map[string]string{
		"iptables nat KUBE-NODEPORT-HOST 3":              "node:30080/tcp default/web Service default/web",
		"listener 0.0.0.0:20001/tcp":                     " default/none Service default/none",
		"listener 0.0.0.0:20091/tcp -> 10.244.2.10:8080": " default/web EndpointSlice default/web-1: endpoints[1] (ready)",
		"iptables nat OUTPUT 2":                          " / config: nodePortAddresses",
		"iptables filter KUBE-NODEPORT-NON-LOCAL 1":      "node:30083/tcp default/none Service default/none",
	})
}

// Existing proxy ports are kept if portRange contains them.
func TestKeptPorts(t *testing.T) {
	p := only(program(), "web", "sticky")
	first, _ := AssignPorts(p, nil)
	kept, want := Ports{}, Ports{}
	for name, n := range first {
		kept[name], want[name] = 19999, n // outside portRange
	}
	for name := range kept {
		if name.Service.Name == "web" {
			kept[name], want[name] = 20050, 20050
		}
	}
	got, unserved := AssignPorts(p, kept)
	if diff := cmp.Diff(want, got); diff != "" || len(unserved) > 0 {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if read := PortsOf(rulesAt(p, got)); !cmp.Equal(read, got) {
		t.Errorf("of the rules that lead to %v: %v", got, read)
	}
}

// rulesAt returns the rules for the given proxy ports.
func rulesAt(p *ir.Program, ports Ports) *iptables.Ruleset {
	n := LowerNode(p.Family, &p.Node)
	var all Fragment
	for i := range p.Services {
		all.Append(n.LowerService(&p.Services[i], ports))
	}
	return n.Rules(&all)
}

// A range returns each free number once and wraps around.
func TestPortRange(t *testing.T) {
	r := NewPortRange(100, 104)
	r.Take(103)
	r.Take(99)
	var got []uint16
	for n, ok := r.Next(102); ok; n, ok = r.Next(n) {
		got = append(got, n)
	}
	if want := []uint16{102, 104, 100, 101}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if n, ok := NewPortRange(1, 0).Next(5); ok {
		t.Errorf("an empty range gives %d", n)
	}
}
