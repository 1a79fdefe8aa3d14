package hnstest

import (
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/apply/hns"
	rules "github.com/proxyc/proxyc/render/hns"
)

// Host accesses the service like hnslib: with the same calls in the same order. It also leaves
// handles open after the same errors.
type Host struct{ *Service }

var _ hns.Host = Host{}

// call executes a call, and converts its result to an error.
func (h Host) call(c Call) (int64, string, error) {
	result, handle, text := h.Call(c)
	if result != ok {
		return 0, "", &hns.Error{Call: c.Name, Code: hns.CodeOf(result)}
	}
	return handle, text, nil
}

// query opens an object if handle is 0, queries its properties, and closes it.
func (h Host) query(kind, id string, handle int64, into any) error {
	if handle == 0 {
		var err error
		if handle, _, err = h.call(Call{Name: "Open" + kind, ID: id}); err != nil {
			return err
		}
	}
	_, text, err := h.call(Call{Name: "Query" + kind, Handle: handle, Text: "{}"})
	if err != nil {
		return err
	}
	if _, _, err := h.call(Call{Name: "Close" + kind, Handle: handle}); err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

// list enumerates objects and queries each.
func list[T any](h Host, kind string, filter map[string]string) ([]T, error) {
	query := map[string]any{"SchemaVersion": schema2}
	if filter != nil {
		query["Filter"] = encode(filter)
	}
	_, text, err := h.call(Call{Name: "Enumerate" + kind, Text: encode(query)})
	if err != nil {
		return nil, err
	}
	var ids []string
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return nil, err
	}
	all := make([]T, len(ids))
	for i, id := range ids {
		if err := h.query(kind, id, 0, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// get queries the version 1 API.
func (h Host) get(path string, into any) error {
	_, text, err := h.call(Call{Name: "HNSCall", Method: "GET", Text: path})
	if err != nil {
		return err
	}
	answer := struct{ Output any }{into}
	return json.Unmarshal([]byte(text), &answer)
}

// Version implements hns.Host.
func (h Host) Version() (v hns.Version, err error) {
	err = h.get("/globals/version", &v)
	return v, err
}

// Network implements hns.Host.
func (h Host) Network(name string) (*hns.Network, error) {
	all, err := list[Network](h, "Network", map[string]string{"Name": name})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, hns.ErrNoNetwork
	}
	n := &hns.Network{ID: all[0].ID, Name: all[0].Name, Type: all[0].Type}
	for _, p := range all[0].Policies {
		var settings struct{ DestinationPrefix, ProviderAddress string }
		if p.Type != "RemoteSubnetRoute" || json.Unmarshal(p.Settings, &settings) != nil {
			continue
		}
		prefix, err := netip.ParsePrefix(settings.DestinationPrefix)
		provider, perr := netip.ParseAddr(settings.ProviderAddress)
		if err == nil && perr == nil {
			n.RemoteSubnets = append(n.RemoteSubnets, hns.RemoteSubnet{Prefix: prefix, Provider: provider})
		}
	}
	return n, nil
}

func endpointOf(e *Endpoint) hns.Endpoint {
	out := hns.Endpoint{ID: e.ID, Name: e.Name, Network: e.HostComputeNetwork, Addrs: e.addrs(), MAC: e.MacAddress, Remote: e.remote()}
	for _, p := range e.Policies {
		var settings struct{ ProviderAddress string }
		if p.Type == "ProviderAddress" && json.Unmarshal(p.Settings, &settings) == nil {
			out.Provider, _ = netip.ParseAddr(settings.ProviderAddress)
		}
	}
	return out
}

// Endpoints implements hns.Host.
func (h Host) Endpoints(network string) ([]hns.Endpoint, error) {
	all, err := list[Endpoint](h, "Endpoint", map[string]string{"VirtualNetwork": network})
	out := make([]hns.Endpoint, len(all))
	for i := range all {
		out[i] = endpointOf(&all[i])
	}
	return out, err
}

// LoadBalancers implements hns.Host.
func (h Host) LoadBalancers() ([]hns.LoadBalancer, error) {
	all, err := list[json.RawMessage](h, "LoadBalancer", nil)
	if err != nil {
		return nil, err
	}
	out := make([]hns.LoadBalancer, len(all))
	for i, text := range all {
		if err := json.Unmarshal(text, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Summarize implements hns.Host.
func (h Host) Summarize() (*hns.Summary, error) {
	var endpoints []struct {
		ID, Name, VirtualNetwork, IPAddress, IPv6Address string
		IsRemoteEndpoint                                 bool
	}
	if err := h.get("/endpoints/", &endpoints); err != nil {
		return nil, err
	}
	var balancers []struct{ ID string }
	if err := h.get("/policylists/", &balancers); err != nil {
		return nil, err
	}
	g := &hns.Summary{}
	for _, e := range endpoints {
		x := hns.Endpoint{ID: strings.ToLower(e.ID), Name: e.Name, Network: strings.ToLower(e.VirtualNetwork), Remote: e.IsRemoteEndpoint}
		for _, text := range []string{e.IPAddress, e.IPv6Address} {
			if a, err := netip.ParseAddr(text); err == nil {
				x.Addrs = append(x.Addrs, a)
			}
		}
		g.Endpoints = append(g.Endpoints, x)
	}
	for _, l := range balancers {
		g.LoadBalancers = append(g.LoadBalancers, strings.ToLower(l.ID))
	}
	return g, nil
}

// CreateEndpoint implements hns.Host.
func (h Host) CreateEndpoint(network string, e *rules.HostComputeEndpoint) (hns.Endpoint, error) {
	n, _, err := h.call(Call{Name: "OpenNetwork", ID: network})
	if err != nil {
		return hns.Endpoint{}, err
	}
	handle, _, err := h.call(Call{Name: "CreateEndpoint", Handle: n, Text: encode(e)})
	if err != nil {
		return hns.Endpoint{}, err
	}
	var made Endpoint
	if err := h.query("Endpoint", "", handle, &made); err != nil {
		return hns.Endpoint{}, err
	}
	if _, _, err := h.call(Call{Name: "CloseNetwork", Handle: n}); err != nil {
		return hns.Endpoint{}, err
	}
	return endpointOf(&made), nil
}

// DeleteEndpoint implements hns.Host.
func (h Host) DeleteEndpoint(id string) error {
	_, _, err := h.call(Call{Name: "DeleteEndpoint", ID: id})
	return err
}

// CreateLoadBalancer implements hns.Host.
func (h Host) CreateLoadBalancer(l *rules.HostComputeLoadBalancer) (string, error) {
	handle, _, err := h.call(Call{Name: "CreateLoadBalancer", Text: encode(l)})
	if err != nil {
		return "", err
	}
	var made LoadBalancer
	err = h.query("LoadBalancer", "", handle, &made)
	return made.ID, err
}

// ModifyLoadBalancer implements hns.Host.
func (h Host) ModifyLoadBalancer(id string, l *rules.HostComputeLoadBalancer) error {
	handle, _, err := h.call(Call{Name: "OpenLoadBalancer", ID: id})
	if err != nil {
		return err
	}
	if _, _, err := h.call(Call{Name: "ModifyLoadBalancer", Handle: handle, Text: encode(l)}); err != nil {
		return err
	}
	var made LoadBalancer
	return h.query("LoadBalancer", "", handle, &made)
}

// DeleteLoadBalancer implements hns.Host.
func (h Host) DeleteLoadBalancer(id string) error {
	_, _, err := h.call(Call{Name: "DeleteLoadBalancer", ID: id})
	return err
}
