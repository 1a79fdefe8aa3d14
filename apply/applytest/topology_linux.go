package applytest

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Topology is the cluster of the conformance cases, in both families:
//
//	           lan 192.0.2.0/24, 2001:db8:0:1::/64          198.51.100.0/24, 2001:db8:0:2::/64
//	  +----------------------+-------------------+                +------------+
//	node1 .11              node2 .12          ext .200 .201 .202  node1 .11   ext .200
//	  cni0 10.244.1.1        cni0 10.244.2.1
//	pod1a .10 pod1b .11    pod2a .10 pod2b .11
//	pod1c .12 .100-.109    pod2c .12 .100-.109
//
// The rules under test are on node1; no other namespace has any. There is no route to the outside.
type Topology struct {
	ns    map[string]*Namespace
	echos []*Echo
	names map[netip.Addr]string
}

// clusterRanges are the ranges that only node1's rules handle: cluster IPs, load balancer addresses
// and external addresses.
var clusterRanges = []string{
	"10.96.0.0/16", "203.0.113.0/24", "198.18.0.0/24",
	"fd00:10:96::/112", "2001:db8:203::/64", "2001:db8:198::/64",
}

// An iface is an address of an interface of the topology: the n-th host of two networks, one per
// family. name is its name in outcomes.
type iface struct {
	ns, link string
	nets     [2]string // without the host part: "192.0.2.%s/24"
	host     string
	name     string
	extra    bool // in addition to the interface's own address
}

var (
	lan    = [2]string{"192.0.2.%s/24", "2001:db8:0:1::%s/64"}
	second = [2]string{"198.51.100.%s/24", "2001:db8:0:2::%s/64"}
	pods1  = [2]string{"10.244.1.%s/24", "fd00:10:244:1::%s/64"}
	pods2  = [2]string{"10.244.2.%s/24", "fd00:10:244:2::%s/64"}
)

// ifaces returns every address of the topology. Pods have host addresses (/32, /128), so that they
// reach each other only through their node.
func ifaces() []iface {
	host := func(nets [2]string) [2]string {
		return [2]string{strings.Replace(nets[0], "/24", "/32", 1), strings.Replace(nets[1], "/64", "/128", 1)}
	}
	list := []iface{
		{ns: "node1", link: "eth0", nets: lan, host: "11", name: "node1"},
		{ns: "node1", link: "eth1", nets: second, host: "11", name: "node1.eth1"},
		{ns: "node1", link: "cni0", nets: pods1, host: "1", name: "node1.cni0"},
		{ns: "node2", link: "eth0", nets: lan, host: "12", name: "node2"},
		{ns: "node2", link: "cni0", nets: pods2, host: "1", name: "node2.cni0"},
		{ns: "ext", link: "eth0", nets: lan, host: "200", name: "ext"},
		{ns: "ext", link: "eth0", nets: lan, host: "201", name: "ext.201", extra: true},
		{ns: "ext", link: "eth0", nets: lan, host: "202", name: "ext.202", extra: true},
		{ns: "ext", link: "eth1", nets: second, host: "200", name: "ext.eth1"},
	}
	for node, nets := range map[string][2]string{"1": host(pods1), "2": host(pods2)} {
		for i, letter := range []string{"a", "b", "c"} {
			pod := "pod" + node + letter
			list = append(list, iface{ns: pod, link: "eth0", nets: nets, host: strconv.Itoa(10 + i), name: pod})
		}
		for n := 100; n < 110; n++ {
			pod := "pod" + node + "c"
			list = append(list, iface{
				ns: pod, link: "eth0", nets: nets, host: strconv.Itoa(n), name: fmt.Sprintf("%s.%d", pod, n), extra: true,
			})
		}
	}
	return list
}

// hostSettings disable kernel behavior that would affect outcomes: redirects to another path,
// tentative addresses, and rate limits of ICMP errors.
var hostSettings = []string{
	"ipv4/conf/all/accept_redirects=0", "ipv4/conf/default/accept_redirects=0",
	"ipv4/conf/all/send_redirects=0", "ipv4/conf/default/send_redirects=0",
	"ipv4/conf/all/rp_filter=0", "ipv4/conf/default/rp_filter=0",
	"ipv4/icmp_ratelimit=0", "ipv4/icmp_ratemask=0",
	"ipv6/conf/all/disable_ipv6=0", "ipv6/conf/default/disable_ipv6=0",
	"ipv6/conf/all/accept_redirects=0", "ipv6/conf/default/accept_redirects=0",
	"ipv6/conf/all/accept_ra=0", "ipv6/conf/default/accept_ra=0",
	"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0",
	"ipv6/icmp/ratelimit=0", "ipv6/icmp/ratemask=127", // a mask of one type that no host sends
}

var nodeSettings = []string{"ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1"}

// NewTopology builds the cluster and starts its echo servers.
func NewTopology() (*Topology, error) {
	t := &Topology{ns: map[string]*Namespace{}, names: map[netip.Addr]string{
		netip.MustParseAddr("127.0.0.1"): "loopback",
		netip.IPv6Loopback():             "loopback",
	}}
	for _, step := range []func() error{t.addNamespaces, t.addLinks, t.addAddrs, t.addRoutes, t.awaitAddrs, t.serve} {
		if err := step(); err != nil {
			t.Close()
			return nil, err
		}
	}
	return t, nil
}

// Close stops the servers and closes the namespaces.
func (t *Topology) Close() error {
	var errs []error
	for _, e := range t.echos {
		errs = append(errs, e.Close())
	}
	for _, ns := range t.ns {
		errs = append(errs, ns.Close())
	}
	return errors.Join(errs...)
}

// Namespace returns a host of the topology by name ("node1", "pod2b", "ext"), or nil.
func (t *Topology) Namespace(name string) *Namespace { return t.ns[name] }

// Name returns the name of an address in outcomes, or the address if it is unknown.
func (t *Topology) Name(a netip.Addr) string {
	if name, ok := t.names[a.Unmap()]; ok {
		return name
	}
	return a.String()
}

// TopologyFor returns a topology that exists until the test ends.
func TopologyFor(t testing.TB) *Topology {
	t.Helper()
	RequireRoot(t)
	topo, err := NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := topo.Close(); err != nil {
			t.Error(err)
		}
	})
	return topo
}

// Source returns the namespace of a flow's source ("pod1a", "ext.201") and, for names of extra
// addresses, the source address in the family of to.
func (t *Topology) Source(name string, to netip.Addr) (*Namespace, netip.Addr, error) {
	if ns := t.ns[name]; ns != nil {
		return ns, netip.Addr{}, nil
	}
	host, _, _ := strings.Cut(name, ".")
	for addr, n := range t.names {
		if n == name && addr.Is4() == to.Is4() && t.ns[host] != nil {
			return t.ns[host], addr, nil
		}
	}
	return nil, netip.Addr{}, fmt.Errorf("no host %q in the topology", name)
}

// Try makes one try from a host of the topology; with sport 0 the kernel selects the source port.
func (t *Topology) Try(from, proto string, sport uint16, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	ns, addr, err := t.Source(from, to.Addr())
	if err != nil {
		return Answer{}, err
	}
	return ns.Try(proto, netip.AddrPortFrom(addr, sport), to, timeout)
}

func (t *Topology) addNamespaces() error {
	for _, name := range []string{
		"lan", "ext", "node1", "node2", "pod1a", "pod1b", "pod1c", "pod2a", "pod2b", "pod2c",
	} {
		ns, err := NewNamespace(name)
		if err != nil {
			return err
		}
		t.ns[name] = ns
		settings := hostSettings
		if strings.HasPrefix(name, "node") {
			settings = append(nodeSettings[:len(nodeSettings):len(nodeSettings)], settings...)
		}
		if err := ns.Sysctl(settings...); err != nil {
			return err
		}
	}
	return nil
}

func (t *Topology) addLinks() error {
	lan, ext, node1 := t.ns["lan"], t.ns["ext"], t.ns["node1"]
	errs := []error{lan.AddBridge("br0")}
	for _, host := range []string{"node1", "node2", "ext"} {
		errs = append(errs, lan.Connect(host, t.ns[host], "eth0"), lan.AddPort("br0", host))
	}
	errs = append(errs, node1.Connect("eth1", ext, "eth1"))
	for _, n := range []string{"1", "2"} {
		node := t.ns["node"+n]
		errs = append(errs, node.AddBridge("cni0"))
		for _, letter := range []string{"a", "b", "c"} {
			pod := "pod" + n + letter
			errs = append(errs, node.Connect("veth"+letter, t.ns[pod], "eth0"), node.AddPort("cni0", "veth"+letter))
		}
	}
	return errors.Join(errs...)
}

func (t *Topology) addAddrs() error {
	for _, i := range ifaces() {
		for _, net := range i.nets {
			p := netip.MustParsePrefix(fmt.Sprintf(net, i.host))
			t.names[p.Addr()] = i.name
			if err := t.ns[i.ns].AddAddr(i.link, p, i.extra); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitAddrs waits for the local routes of the IPv6 addresses, which the kernel adds later. Until
// then, a node sends packets for itself to others.
func (t *Topology) awaitAddrs() error {
	for _, i := range ifaces() {
		addr := netip.MustParsePrefix(fmt.Sprintf(i.nets[1], i.host)).Addr()
		local := func() bool {
			routes, err := t.ns[i.ns].nl.RouteGet(addr.AsSlice())
			return err == nil && routes[0].Type == unix.RTN_LOCAL
		}
		if !Within(30*time.Second, local) {
			return fmt.Errorf("%s has no local route to %s", i.ns, addr)
		}
	}
	return nil
}

// addRoutes makes ext the default gateway of the nodes, and the nodes those of their pods. ext and
// node2 route the ranges of the Services to node1.
func (t *Topology) addRoutes() error {
	type route struct{ ns, dst, gateway string }
	routes := []route{
		{"node1", "10.244.2.0/24", "192.0.2.12"}, {"node1", "fd00:10:244:2::/64", "2001:db8:0:1::12"},
		{"node2", "10.244.1.0/24", "192.0.2.11"}, {"node2", "fd00:10:244:1::/64", "2001:db8:0:1::11"},
		{"ext", "10.244.1.0/24", "192.0.2.11"}, {"ext", "fd00:10:244:1::/64", "2001:db8:0:1::11"},
		{"ext", "10.244.2.0/24", "192.0.2.12"}, {"ext", "fd00:10:244:2::/64", "2001:db8:0:1::12"},
	}
	for _, node := range []string{"node1", "node2"} {
		routes = append(routes, route{node, "0.0.0.0/0", "192.0.2.200"}, route{node, "::/0", "2001:db8:0:1::200"})
	}
	for _, host := range []string{"node2", "ext"} {
		for _, dst := range clusterRanges {
			gateway := "192.0.2.11"
			if strings.Contains(dst, ":") {
				gateway = "2001:db8:0:1::11"
			}
			routes = append(routes, route{host, dst, gateway})
		}
	}
	for _, n := range []string{"1", "2"} {
		for _, letter := range []string{"a", "b", "c"} {
			pod, v4, v6 := "pod"+n+letter, "10.244."+n+".1", "fd00:10:244:"+n+"::1"
			routes = append(routes,
				route{pod, v4 + "/32", ""}, route{pod, "0.0.0.0/0", v4},
				route{pod, v6 + "/128", ""}, route{pod, "::/0", v6})
		}
	}
	for _, r := range routes {
		var gateway netip.Addr
		if r.gateway != "" {
			gateway = netip.MustParseAddr(r.gateway)
		}
		if err := t.ns[r.ns].AddRoute(netip.MustParsePrefix(r.dst), "eth0", gateway); err != nil {
			return err
		}
	}
	return nil
}

func (t *Topology) serve() error {
	for name, ns := range t.ns {
		if name == "lan" {
			continue
		}
		echo, err := ns.ServeEcho()
		if err != nil {
			return err
		}
		t.echos = append(t.echos, echo)
	}
	return nil
}
