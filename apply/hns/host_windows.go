package hns

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/Microsoft/hnslib"
	"github.com/Microsoft/hnslib/hcn"

	rules "github.com/proxyc/proxyc/render/hns"
)

// library accesses the node's service through computenetwork.dll.
type library struct{}

// Local returns the Host Networking Service of this machine.
func Local() Host { return library{} }

// failure converts an error of the library to an *Error if it is from the service.
func failure(call string, err error) error {
	var code syscall.Errno
	switch {
	case err == nil:
		return nil
	case hcn.IsNotFoundError(err):
		return &Error{Call: call, Code: ElementNotFound, Text: err.Error()}
	case errors.As(err, &code):
	default:
		var e *hcn.HcnError
		if !errors.As(err, &e) || e.HnsError == nil || !errors.As(e.HnsError.Err, &code) {
			return err
		}
	}
	return &Error{Call: call, Code: CodeOf(uint32(code)), Text: err.Error()}
}

// into copies the fields that both types have under the same JSON names.
func into(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

func (library) Version() (Version, error) {
	g, err := hcn.GetGlobals()
	if err != nil {
		return Version{}, failure("Version", err)
	}
	return Version{g.Version.Major, g.Version.Minor}, nil
}

func (library) Network(name string) (*Network, error) {
	found, err := hcn.GetNetworkByName(name)
	if missing := (hcn.NetworkNotFoundError{}); errors.As(err, &missing) {
		return nil, ErrNoNetwork
	}
	if err != nil {
		return nil, failure("Network", err)
	}
	n := &Network{ID: strings.ToLower(found.Id), Name: found.Name, Type: string(found.Type)}
	for _, p := range found.Policies {
		if p.Type != hcn.RemoteSubnetRoute {
			continue
		}
		var settings hcn.RemoteSubnetRoutePolicySetting
		if err := json.Unmarshal(p.Settings, &settings); err != nil {
			return nil, err
		}
		prefix, err := netip.ParsePrefix(settings.DestinationPrefix)
		provider, perr := netip.ParseAddr(settings.ProviderAddress)
		if err == nil && perr == nil {
			n.RemoteSubnets = append(n.RemoteSubnets, RemoteSubnet{prefix, provider})
		}
	}
	return n, nil
}

func endpointOf(e *hcn.HostComputeEndpoint) Endpoint {
	out := Endpoint{ID: strings.ToLower(e.Id), Name: e.Name, Network: strings.ToLower(e.HostComputeNetwork), MAC: e.MacAddress,
		Remote: e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0}
	for _, c := range e.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			out.Addrs = append(out.Addrs, a)
		}
	}
	for _, p := range e.Policies {
		var settings hcn.ProviderAddressEndpointPolicySetting
		if p.Type == hcn.NetworkProviderAddress && json.Unmarshal(p.Settings, &settings) == nil {
			out.Provider, _ = netip.ParseAddr(settings.ProviderAddress)
		}
	}
	return out
}

func (library) Endpoints(network string) ([]Endpoint, error) {
	found, err := hcn.ListEndpointsOfNetwork(network)
	if err != nil {
		return nil, failure("Endpoints", err)
	}
	all := make([]Endpoint, len(found))
	for i := range found {
		all[i] = endpointOf(&found[i])
	}
	return all, nil
}

func (library) LoadBalancers() ([]LoadBalancer, error) {
	found, err := hcn.ListLoadBalancers()
	if err != nil {
		return nil, failure("LoadBalancers", err)
	}
	all := make([]LoadBalancer, len(found))
	for i := range found {
		all[i].ID = strings.ToLower(found[i].Id)
		if err := into(&found[i], &all[i].HostComputeLoadBalancer); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (library) Summarize() (*Summary, error) {
	endpoints, err := hnslib.HNSListEndpointRequest()
	if err != nil {
		return nil, failure("Summarize", err)
	}
	balancers, err := hnslib.HNSListPolicyListRequest()
	if err != nil {
		return nil, failure("Summarize", err)
	}
	g := &Summary{}
	for i := range endpoints {
		e := &endpoints[i]
		x := Endpoint{ID: strings.ToLower(e.Id), Name: e.Name, Network: strings.ToLower(e.VirtualNetwork), MAC: e.MacAddress, Remote: e.IsRemoteEndpoint}
		for _, ip := range []net.IP{e.IPAddress, e.IPv6Address} {
			if a, ok := netip.AddrFromSlice(ip); ok {
				x.Addrs = append(x.Addrs, a.Unmap())
			}
		}
		g.Endpoints = append(g.Endpoints, x)
	}
	for _, l := range balancers {
		g.LoadBalancers = append(g.LoadBalancers, strings.ToLower(l.ID))
	}
	return g, nil
}

func (library) CreateEndpoint(network string, e *rules.HostComputeEndpoint) (Endpoint, error) {
	var want hcn.HostComputeEndpoint
	if err := into(e, &want); err != nil {
		return Endpoint{}, err
	}
	made, err := (&hcn.HostComputeNetwork{Id: network}).CreateEndpoint(&want)
	if err != nil {
		return Endpoint{}, failure("CreateEndpoint", err)
	}
	return endpointOf(made), nil
}

func (library) DeleteEndpoint(id string) error {
	return failure("DeleteEndpoint", (&hcn.HostComputeEndpoint{Id: id}).Delete())
}

func (library) CreateLoadBalancer(l *rules.HostComputeLoadBalancer) (string, error) {
	var want hcn.HostComputeLoadBalancer
	if err := into(l, &want); err != nil {
		return "", err
	}
	made, err := want.Create()
	if err != nil {
		return "", failure("CreateLoadBalancer", err)
	}
	return strings.ToLower(made.Id), nil
}

func (library) ModifyLoadBalancer(id string, l *rules.HostComputeLoadBalancer) error {
	var want hcn.HostComputeLoadBalancer
	if err := into(l, &want); err != nil {
		return err
	}
	_, err := want.Update(id)
	return failure("ModifyLoadBalancer", err)
}

func (library) DeleteLoadBalancer(id string) error {
	return failure("DeleteLoadBalancer", (&hcn.HostComputeLoadBalancer{Id: id}).Delete())
}

// Interfaces returns the MAC addresses of the host's interfaces, by their IP addresses.
func Interfaces() (map[netip.Addr]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	macs := map[netip.Addr]string{}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil || len(i.HardwareAddr) == 0 {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				macs[p.Addr().Unmap()] = i.HardwareAddr.String()
			}
		}
	}
	return macs, nil
}
