package hnstest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/apply/hns"
)

// Results, as computenetwork.dll returns them [results].
const (
	ok                = 0
	networkNotFound   = uint32(hns.NetworkNotFound)
	endpointNotFound  = uint32(hns.EndpointNotFound)
	subnetNotFound    = 0x803b0005
	policyNotFound    = uint32(hns.PolicyNotFound)
	invalidEndpoint   = 0x803b000c
	invalidPolicy     = 0x803b000d
	portAlreadyExists = uint32(hns.PortAlreadyExists)
	unsupported       = 0x803b0015
	invalidJSON       = 0x803b001b
	invalidIP         = 0x803b001e
	hasReferences     = uint32(hns.EntityHasReference)
	alreadyExists     = 0x80070000 | uint32(hns.AlreadyExists)
	invalidHandle     = 0x80070006
	invalidArgument   = 0x80070057
	notImplemented    = uint32(hns.NotImplemented)
	unavailable       = 0x80070000 | uint32(hns.ServerUnavailable)
	callFailed        = 0x80070000 | uint32(hns.CallFailed)
	failed            = 0x80004005 // E_FAIL
)

// Network is a network of the service.
type Network struct {
	ID            string
	Name          string
	Type          string // L2Bridge, Overlay
	Policies      []Policy
	Ipams         []Ipam
	SchemaVersion hns.Version
}

// Ipam has the addresses of a Network.
type Ipam struct{ Subnets []Subnet }

// Subnet is a range of addresses of a Network.
type Subnet struct {
	IpAddressPrefix string
	Routes          []Route
}

// Route is a route of a Subnet.
type Route struct{ NextHop, DestinationPrefix string }

// Policy is a policy of a network or an endpoint.
type Policy struct {
	Type     string
	Settings json.RawMessage
}

// Endpoint is an endpoint of the service.
type Endpoint struct {
	ID                 string
	Name               string `json:",omitempty"`
	HostComputeNetwork string
	Policies           []Policy   `json:",omitempty"`
	IpConfigurations   []IPConfig `json:",omitempty"`
	MacAddress         string     `json:",omitempty"`
	Flags              uint32     `json:",omitempty"`
	SchemaVersion      hns.Version
	made               bool // created through the API, not by the test
}

// IPConfig is an address of an Endpoint.
type IPConfig struct {
	IpAddress    string
	PrefixLength uint8 `json:",omitempty"`
}

func (e *Endpoint) remote() bool { return e.Flags&1 != 0 }

func (e *Endpoint) addrs() (addrs []netip.Addr) {
	for _, c := range e.IpConfigurations {
		a, _ := netip.ParseAddr(c.IpAddress)
		addrs = append(addrs, a)
	}
	return addrs
}

// LoadBalancer is a load balancer of the service.
type LoadBalancer struct {
	ID                   string
	HostComputeEndpoints []string      `json:",omitempty"`
	SourceVIP            string        `json:",omitempty"`
	FrontendVIPs         []string      `json:",omitempty"`
	PortMappings         []PortMapping `json:",omitempty"`
	SchemaVersion        hns.Version
	Flags                uint32 `json:",omitempty"`
}

// PortMapping is a port of a LoadBalancer.
type PortMapping struct {
	Protocol         uint32 `json:",omitempty"`
	InternalPort     uint16 `json:",omitempty"`
	ExternalPort     uint16 `json:",omitempty"`
	DistributionType uint32 `json:",omitempty"`
	Flags            uint32 `json:",omitempty"`
}

// Call is a call of computenetwork.dll, without the prefix Hcn.
type Call struct {
	Name   string // "CreateLoadBalancer", "HNSCall"
	ID     string // of the object; empty if the call has none
	Handle int64
	Text   string // the settings or the query; HNSCall: the path
	Method string // HNSCall only
}

// Service is a Host Networking Service. Its methods are safe for concurrent use.
type Service struct {
	// Before is called before each call; optional. A result other than 0 makes the call fail with it.
	// The service is locked meanwhile.
	Before func(Call) (result uint32)
	// After is called after each executed call; optional. A result other than 0 replaces that of the
	// call, as if its reply were lost.
	After func(Call) (result uint32)

	mu        sync.Mutex
	version   hns.Version
	networks  map[string]*Network
	endpoints map[string]*Endpoint
	balancers map[string]*LoadBalancer
	handles   map[int64]handle
	next      uint64 // number of assigned ids and handles
	stopped   bool
	stuck     map[string]bool // objects whose deletion fails
	calls     int
	log       []string // refusals
}

type handle struct{ kind, id string }

// New returns a service without objects.
func New(v hns.Version) *Service {
	return &Service{version: v, networks: map[string]*Network{}, endpoints: map[string]*Endpoint{},
		balancers: map[string]*LoadBalancer{}, handles: map[int64]handle{}, stuck: map[string]bool{}}
}

// id returns a new id.
func (s *Service) id() string {
	s.next++
	return fmt.Sprintf("%08x-5e11-4c00-8000-%012x", uint32(s.next*2654435761), s.next)
}

var schema2 = hns.Version{Major: 2}

// AddNetwork adds a network, like an administrator, and returns its id.
func (s *Service) AddNetwork(n Network) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.ID, n.SchemaVersion = s.id(), schema2
	s.networks[n.ID] = &n
	return n.ID
}

// Subnets returns the Ipams of a network with these prefixes.
func Subnets(prefixes ...string) []Ipam {
	var all []Subnet
	for _, p := range prefixes {
		all = append(all, Subnet{IpAddressPrefix: p})
	}
	return []Ipam{{Subnets: all}}
}

// RemoteSubnet returns the policy of an overlay network that assigns a range of addresses to a
// node.
func RemoteSubnet(prefix, provider string) Policy {
	settings, _ := json.Marshal(map[string]any{"DestinationPrefix": prefix, "ProviderAddress": provider, "IsolationId": 4096,
		"DistributedRouterMacAddress": "00-15-5D-00-00-01"})
	return Policy{Type: "RemoteSubnetRoute", Settings: settings}
}

// AddPod adds a local endpoint, like a CNI plugin, and returns its id.
func (s *Service) AddPod(network string, addrs ...netip.Addr) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &Endpoint{ID: s.id(), Name: "pod", HostComputeNetwork: network, SchemaVersion: schema2}
	for _, a := range addrs {
		e.IpConfigurations = append(e.IpConfigurations, IPConfig{IpAddress: a.String()})
	}
	e.MacAddress = s.mac()
	s.endpoints[e.ID] = e
	return e.ID
}

func (s *Service) mac() string {
	return fmt.Sprintf("00-15-5d-%02x-%02x-%02x", byte(s.next>>16), byte(s.next>>8), byte(s.next))
}

// SetPolicies replaces the policies of a network.
func (s *Service) SetPolicies(network string, policies ...Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.networks[network].Policies = policies
}

// Rename sets the name of an endpoint.
func (s *Service) Rename(endpoint, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints[endpoint].Name = name
}

// Stop stops the service: all calls fail until Start, and all handles are lost.
func (s *Service) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	clear(s.handles)
}

// Loss is the loss caused by a restart.
type Loss int

const (
	Nothing  Loss = iota // everything is restored [139519]
	Made                 // objects created through the API: load balancers and remote endpoints
	Identity             // in addition, networks get other ids (kube-proxy checks for this)
)

// Start restarts the service.
func (s *Service) Start(l Loss) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = false
	if l == Nothing {
		return
	}
	clear(s.balancers)
	maps.DeleteFunc(s.endpoints, func(_ string, e *Endpoint) bool { return e.made })
	if l == Identity {
		for id, n := range maps.Clone(s.networks) {
			delete(s.networks, id)
			n.ID = s.id()
			s.networks[n.ID] = n
			for _, e := range s.endpoints {
				if e.HostComputeNetwork == id {
					e.HostComputeNetwork = n.ID
				}
			}
		}
	}
}

// Stick makes the deletion of an object fail, or succeed again [113524].
func (s *Service) Stick(id string, stuck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck[id] = stuck
}

// Remove removes an object, like a user of hnsdiag [135802].
func (s *Service) Remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.balancers, id)
	delete(s.endpoints, id)
}

// Calls returns the number of calls.
func (s *Service) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// OpenHandles returns the number of open handles.
func (s *Service) OpenHandles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handles)
}

// Refusals returns the rejected calls, except those that a test made fail.
func (s *Service) Refusals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// LoadBalancers returns the load balancers.
func (s *Service) LoadBalancers() []LoadBalancer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []LoadBalancer
	for _, id := range slices.Sorted(maps.Keys(s.balancers)) {
		all = append(all, *s.balancers[id])
	}
	return all
}

// Endpoints returns the endpoints.
func (s *Service) Endpoints() []Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Endpoint
	for _, id := range slices.Sorted(maps.Keys(s.endpoints)) {
		all = append(all, *s.endpoints[id])
	}
	return all
}

// State returns the objects of the service in the format of the records: load balancers, and
// endpoints created through the API, with the MAC address of the host as "host".
func (s *Service) State(hostMAC string) (balancers, endpoints []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	balancers, endpoints = []string{}, []string{}
	for _, l := range s.balancers {
		balancers = append(balancers, s.line(l))
	}
	for _, e := range s.endpoints {
		if !e.made {
			continue
		}
		mac := e.MacAddress
		if hostMAC != "" && strings.EqualFold(strings.ReplaceAll(mac, "-", ":"), strings.ReplaceAll(hostMAC, "-", ":")) {
			mac = "host"
		}
		line := fmt.Sprintf("%s mac %s flags %d", e.IpConfigurations[0].IpAddress, mac, e.Flags)
		for _, p := range e.Policies {
			var settings map[string]any
			_ = json.Unmarshal(p.Settings, &settings)
			line += fmt.Sprintf(` {"Settings": {"ProviderAddress": %q}, "Type": %q}`, settings["ProviderAddress"], p.Type)
		}
		endpoints = append(endpoints, line)
	}
	slices.Sort(balancers)
	slices.Sort(endpoints)
	return balancers, endpoints
}

func (s *Service) line(l *LoadBalancer) string {
	var backends []string
	ipv6 := l.Flags&2 != 0
	for _, id := range l.HostComputeEndpoints {
		backends = append(backends, s.backend(id, ipv6))
	}
	slices.Sort(backends)
	vips, source := "node", "-"
	if len(l.FrontendVIPs) > 0 {
		vips = strings.Join(l.FrontendVIPs, ",")
	}
	if l.SourceVIP != "" {
		source = l.SourceVIP
	}
	m := l.PortMappings[0]
	return fmt.Sprintf("%s %d %d->%d flags %d distribution %d flags %d source %s -> %s", vips, m.Protocol, m.ExternalPort, m.InternalPort,
		m.Flags, m.DistributionType, l.Flags, source, strings.Join(backends, " "))
}

// backend returns the address of an endpoint in the family of a load balancer.
func (s *Service) backend(id string, ipv6 bool) string {
	e := s.endpoints[id]
	if e == nil {
		return "missing"
	}
	for _, a := range e.addrs() {
		if a.Is6() == ipv6 {
			return a.String()
		}
	}
	return "of the other family"
}
