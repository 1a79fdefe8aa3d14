package hnstest_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/hns"
	"github.com/proxyc/proxyc/apply/hns/hnstest"
	rules "github.com/proxyc/proxyc/render/hns"
)

func newService(v hns.Version, kind string) (*hnstest.Service, hnstest.Host, string) {
	s := hnstest.New(v)
	n := s.AddNetwork(hnstest.Network{Name: "l2", Type: kind, Ipams: hnstest.Subnets("10.244.1.0/24", "fd00:10:244:1::/64")})
	return s, hnstest.Host{Service: s}, n
}

func endpoint(addr string, flags rules.EndpointFlags, mac string) *rules.HostComputeEndpoint {
	return &rules.HostComputeEndpoint{IpConfigurations: []rules.IpConfig{{IpAddress: addr}}, MacAddress: mac, Flags: flags,
		SchemaVersion: rules.SchemaVersion{Major: 2}}
}

func balancer(vip string, port uint16, flags rules.LoadBalancerFlags, endpoints ...string) *rules.HostComputeLoadBalancer {
	l := &rules.HostComputeLoadBalancer{HostComputeEndpoints: endpoints, Flags: flags, SchemaVersion: rules.SchemaVersion{Major: 2},
		PortMappings: []rules.LoadBalancerPortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: port, DistributionType: rules.SourceIP}}}
	if vip != "" {
		l.FrontendVIPs = []string{vip}
	}
	return l
}

// wantCode checks the code of an error; 0 for none.
func wantCode(t *testing.T, what string, err error, code hns.Code) {
	t.Helper()
	var e *hns.Error
	switch {
	case code == 0 && err == nil:
	case !errors.As(err, &e) || e.Code != code:
		t.Errorf("%s: %v, want code %#x", what, err, uint32(code))
	}
}

var server = hns.Version{Major: 15, Minor: 1}

func TestEndpoints(t *testing.T) {
	for _, row := range []struct {
		name string
		v    hns.Version
		kind string
		e    *rules.HostComputeEndpoint
		code hns.Code
	}{
		{"a remote one", server, "L2Bridge", endpoint("10.244.2.10", 1, "02-11-0a-f4-02-0a"), 0},
		{"a local one", server, "L2Bridge", endpoint("10.244.1.9", 0, ""), 0},
		{"a local one outside of the network", server, "L2Bridge", endpoint("10.244.2.10", 0, ""), 0x803b0005},
		{"no address", server, "L2Bridge", endpoint("web", 1, "02-11-0a-f4-02-0a"), 0x803b001e},
		{"no MAC address", server, "L2Bridge", endpoint("10.244.2.10", 1, ""), 0x803b000c},
		{"IPv6", server, "L2Bridge", endpoint("fd00::10", 1, "02-11-10-00-00-00"), 0},
		{"IPv6 too early", hns.Version{Major: 11, Minor: 9}, "L2Bridge", endpoint("fd00::10", 1, "02-11-10-00-00-00"), 0x803b0015},
		{"IPv6 on an overlay", server, "Overlay", endpoint("fd00::10", 1, "02-11-10-00-00-00"), 0x803b0015},
		{"no provider address on an overlay", server, "Overlay", endpoint("10.244.2.10", 1, "02-11-0a-f4-02-0a"), 0x803b000c},
		{"version 1 only", hns.Version{Major: 9, Minor: 1}, "L2Bridge", endpoint("10.244.1.9", 0, ""), hns.NotImplemented},
	} {
		_, h, n := newService(row.v, row.kind)
		_, err := h.CreateEndpoint(n, row.e)
		wantCode(t, row.name, err, row.code)
	}
	s, h, n := newService(server, "L2Bridge")
	remote := endpoint("10.244.2.10", 1, "02-11-0a-f4-02-0a")
	e, err := h.CreateEndpoint(n, remote)
	wantCode(t, "first", err, 0)
	_, err = h.CreateEndpoint(n, remote)
	wantCode(t, "the same again", err, hns.AlreadyExists)
	_, err = h.CreateEndpoint("00000000-0000-0000-0000-000000000001", remote)
	wantCode(t, "no such network", err, hns.NetworkNotFound)
	s.AddPod(n, netip.MustParseAddr("10.244.2.10"))
	list, err := h.Endpoints(n)
	if err != nil || len(list) != 2 {
		t.Errorf("a local and a remote one with one address: %v, %v", list, err)
	}
	wantCode(t, "delete", h.DeleteEndpoint(e.ID), 0)
	wantCode(t, "delete again", h.DeleteEndpoint(e.ID), hns.EndpointNotFound)
}

func TestLoadBalancers(t *testing.T) {
	s, h, n := newService(server, "L2Bridge")
	pod := s.AddPod(n, netip.MustParseAddr("10.244.1.10"), netip.MustParseAddr("fd00:10:244:1::10"))
	four := s.AddPod(n, netip.MustParseAddr("10.244.1.11"))
	id, err := h.CreateLoadBalancer(balancer("10.96.0.10", 80, 0, pod))
	wantCode(t, "first", err, 0)
	for _, row := range []struct {
		name string
		l    *rules.HostComputeLoadBalancer
		code hns.Code
	}{
		{"the same again", balancer("10.96.0.10", 80, 0, pod), hns.AlreadyExists},
		{"its address and port for others", balancer("10.96.0.10", 80, 0, four), hns.PortAlreadyExists},
		{"another port", balancer("10.96.0.10", 81, 0, pod), 0},
		{"a node port", balancer("", 80, 0, pod), 0},
		{"a node port of IPv6", balancer("", 80, rules.IPv6LB, pod), 0},
		{"an endpoint that is not there", balancer("10.96.0.11", 80, 0, "00000000-0000-0000-0000-000000000001"), hns.EndpointNotFound},
		{"an endpoint without IPv6", balancer("fd00::1", 80, rules.IPv6LB, four), 0x803b000d},
		{"no endpoint", balancer("10.96.0.11", 80, 0), 0x803b000d},
		{"no port", balancer("10.96.0.11", 0, 0, pod), 0x803b000d},
		{"an address of the other family", balancer("10.96.0.11", 80, rules.IPv6LB, pod), 0x803b001e},
	} {
		_, err := h.CreateLoadBalancer(row.l)
		wantCode(t, row.name, err, row.code)
	}
	wantCode(t, "an endpoint in use", h.DeleteEndpoint(pod), hns.EntityHasReference)
	wantCode(t, "modify too early", h.ModifyLoadBalancer(id, balancer("10.96.0.10", 80, 0, four)), hns.NotImplemented)
	s.Stick(id, true)
	wantCode(t, "stuck", h.DeleteLoadBalancer(id), 0x80004005)
	s.Stick(id, false)
	wantCode(t, "delete", h.DeleteLoadBalancer(id), 0)
	wantCode(t, "delete again", h.DeleteLoadBalancer(id), hns.PolicyNotFound)

	for v, dsr := range map[hns.Version]hns.Code{{Major: 9, Minor: 5}: 0, {Major: 10, Minor: 1}: 0x803b0015, {Major: 16}: 0} {
		s, h, n := newService(v, "L2Bridge")
		pod := s.AddPod(n, netip.MustParseAddr("10.244.1.10"))
		_, err := h.CreateLoadBalancer(balancer("10.96.0.10", 80, rules.DSR, pod))
		wantCode(t, "DSR in "+v.String(), err, dsr)
	}
	s, h, n = newService(hns.Version{Major: 15, Minor: 5}, "L2Bridge")
	pod, four = s.AddPod(n, netip.MustParseAddr("10.244.1.10")), s.AddPod(n, netip.MustParseAddr("10.244.1.11"))
	id, _ = h.CreateLoadBalancer(balancer("10.96.0.10", 80, 0, pod))
	wantCode(t, "modify", h.ModifyLoadBalancer(id, balancer("10.96.0.10", 80, 0, four)), 0)
	wantCode(t, "modify to another address", h.ModifyLoadBalancer(id, balancer("10.96.0.11", 80, 0, four)), 0x803b000d)
	if l := s.LoadBalancers(); len(l) != 1 || l[0].HostComputeEndpoints[0] != four {
		t.Errorf("after modifying: %v", l)
	}
}

// A filter returns the objects with the property; none has an empty id.
func TestEnumerate(t *testing.T) {
	s, h, n := newService(server, "L2Bridge")
	pod := s.AddPod(n, netip.MustParseAddr("10.244.1.10"))
	id, _ := h.CreateLoadBalancer(balancer("10.96.0.10", 80, 0, pod))
	for _, row := range []struct{ kind, filter, want string }{
		{"LoadBalancer", `{}`, id}, {"LoadBalancer", `{"ID":"` + strings.ToUpper(id) + `"}`, id}, {"LoadBalancer", `{"ID":""}`, ""},
		{"Endpoint", `{"VirtualNetwork":"` + n + `"}`, pod}, {"Endpoint", `{"VirtualNetwork":""}`, ""}, {"Endpoint", `{"Name":"pod"}`, pod},
		{"Endpoint", `{"Name":"cbr0"}`, ""}, {"Network", `{"Name":"l2"}`, n},
	} {
		text, _ := json.Marshal(map[string]string{"Filter": row.filter})
		_, _, found := s.Call(hnstest.Call{Name: "Enumerate" + row.kind, Text: string(text)})
		want := "[]"
		if row.want != "" {
			want = `["` + row.want + `"]`
		}
		if found != want {
			t.Errorf("%s %s: %s, want %s", row.kind, row.filter, found, want)
		}
	}
}

func TestAwayAndBack(t *testing.T) {
	s, h, n := newService(server, "L2Bridge")
	pod := s.AddPod(n, netip.MustParseAddr("10.244.1.10"))
	_, _ = h.CreateLoadBalancer(balancer("10.96.0.10", 80, 0, pod))
	_, _ = h.CreateEndpoint(n, endpoint("10.244.2.10", 1, "02-11-0a-f4-02-0a"))
	s.Stop()
	_, err := h.LoadBalancers()
	wantCode(t, "away", err, hns.ServerUnavailable)
	s.Start(hnstest.Nothing)
	if len(s.LoadBalancers()) != 1 || len(s.Endpoints()) != 2 {
		t.Error("what was there did not come back")
	}
	s.Start(hnstest.Identity)
	now, err := h.Network("l2")
	if err != nil || now.ID == n || len(s.LoadBalancers()) != 0 || len(s.Endpoints()) != 1 {
		t.Errorf("network %v (%v), %d load balancers, %d endpoints", now, err, len(s.LoadBalancers()), len(s.Endpoints()))
	}
	if _, err := h.Network("l3"); !errors.Is(err, hns.ErrNoNetwork) {
		t.Errorf("no such network: %v", err)
	}
}

// Replies to calls from the DLLs have the format that they read.
func TestServe(t *testing.T) {
	s, _, _ := newService(server, "L2Bridge")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	text := func(s string) string { return string([]byte{byte(len(s)), 0, 0, 0}) + s }
	if _, err := c.Write([]byte(text("HNSCall") + text("") + strings.Repeat("\x00", 8) + text("/globals/version") + text("GET"))); err != nil {
		t.Fatal(err)
	}
	want := `{"Output":{"Major":15,"Minor":1},"Success":true}`
	got := make([]byte, 16+len(want))
	if _, err := c.Read(got); err != nil || string(got) != strings.Repeat("\x00", 12)+text(want) {
		t.Errorf("%q (%v)", got, err)
	}
	c.Close()
	l.Close()
	<-done
}
