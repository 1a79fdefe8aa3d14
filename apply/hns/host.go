package hns

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	rules "github.com/proxyc/proxyc/render/hns"
)

// Host is the Host Networking Service of a node. Its errors are *Error, unless
// the service was not asked at all.
type Host interface {
	// Version returns the version of the service.
	Version() (Version, error)
	// Network returns a network by its name; ErrNoNetwork if there is none.
	Network(name string) (*Network, error)
	// Endpoints returns the endpoints of a network. It takes three calls for each.
	Endpoints(network string) ([]Endpoint, error)
	// LoadBalancers returns all load balancers. It takes three calls for each.
	LoadBalancers() ([]LoadBalancer, error)
	// Glance returns in two calls what there is, in less detail.
	Glance() (*Glance, error)
	// CreateEndpoint makes an endpoint in a network and returns it with its id.
	CreateEndpoint(network string, e *rules.HostComputeEndpoint) (Endpoint, error)
	DeleteEndpoint(id string) error
	// CreateLoadBalancer makes a load balancer and returns its id.
	CreateLoadBalancer(l *rules.HostComputeLoadBalancer) (id string, err error)
	ModifyLoadBalancer(id string, l *rules.HostComputeLoadBalancer) error
	DeleteLoadBalancer(id string) error
}

// ErrNoNetwork is the error of a network that is not there.
var ErrNoNetwork = errors.New("HNS has no such network")

// Version is a version of the service.
type Version struct{ Major, Minor int }

// AtLeast reports whether v is not before another one.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Features are what a version of the service can do, by the ranges of hnslib
// (hcn/hcnglobals.go).
type Features struct {
	API             bool // version 2 of the API, and remote subnets
	DSR             bool // direct server return
	SessionAffinity bool // distribution by source address
	DualStack       bool
	Modify          bool // of load balancers
}

// FeaturesOf returns what a version can do.
func FeaturesOf(v Version) Features {
	return Features{
		API:             v.AtLeast(9, 2),
		DSR:             v.Major == 9 && v.Minor >= 3 || v.AtLeast(10, 2),
		SessionAffinity: v.AtLeast(12, 0),
		DualStack:       v.AtLeast(11, 10),
		Modify:          v.AtLeast(15, 5),
	}
}

// Network is a network of the host.
type Network struct {
	ID, Name, Type string
	RemoteSubnets  []RemoteSubnet
}

// Overlay reports whether the network encapsulates what it sends to other nodes.
func (n *Network) Overlay() bool { return strings.EqualFold(n.Type, rules.Overlay) }

// RemoteSubnet is a range of addresses on another node of an overlay network.
type RemoteSubnet struct {
	Prefix   netip.Prefix
	Provider netip.Addr // of that node
}

// ProviderOf returns the address of the node behind which an address is; the
// address itself where it is a node's. It is not valid for those of no node.
func (n *Network) ProviderOf(a netip.Addr) (provider netip.Addr) {
	for _, s := range n.RemoteSubnets {
		if s.Prefix.Contains(a) || s.Provider == a {
			provider = s.Provider // the last one counts, as for kube-proxy
		}
	}
	return provider
}

// Endpoint is an endpoint of the host.
type Endpoint struct {
	ID, Name, Network string
	Addrs             []netip.Addr
	MAC               string
	Remote            bool
	Provider          netip.Addr // its ProviderAddress policy; not valid: none
}

// LoadBalancer is a load balancer of the host; its endpoints are ids.
type LoadBalancer struct {
	ID string
	rules.HostComputeLoadBalancer
}

// Glance is what the host has, without what only a long list tells.
type Glance struct {
	Endpoints     []Endpoint // ID, Name, Network, Addrs, Remote
	LoadBalancers []string   // ids
}

// Error is an error of the service.
type Error struct {
	Call string // "CreateLoadBalancer"
	Code Code
	Text string // what the service says, may be empty
}

func (e *Error) Error() string {
	text := e.Text
	if text == "" {
		text = e.Code.String()
	}
	return fmt.Sprintf("HNS: %s: %s (%#x)", e.Call, text, uint32(e.Code))
}

// Code is a code of Windows: of HCN (HRESULT), or of the system.
type Code uint32

// Codes that are told apart here. Those of HCN are documented with its API
// (HcnHResult), the others with Windows.
const (
	NetworkNotFound    Code = 0x803b0001
	EndpointNotFound   Code = 0x803b0002
	PolicyNotFound     Code = 0x803b0008
	PortAlreadyExists  Code = 0x803b0013
	ManagerStopped     Code = 0x803b0020
	EntityHasReference Code = 0x803b002c
	AlreadyExists      Code = 0xb7
	ElementNotFound    Code = 0x490
	AccessDenied       Code = 0x5
	NotImplemented     Code = 0x80004001
	ServiceDisabled    Code = 0x422
	ServiceNotActive   Code = 0x426
	ServerUnavailable  Code = 0x6ba // RPC
	ServerTooBusy      Code = 0x6bb // RPC
	CallFailed         Code = 0x6be // RPC
	CallDidNotExecute  Code = 0x6bf // RPC
	Timeout            Code = 0x5b4
)

var codeTexts = map[Code]string{
	NetworkNotFound: "the network was not found", EndpointNotFound: "the endpoint was not found",
	PolicyNotFound: "the policy was not found", PortAlreadyExists: "the port already exists",
	ManagerStopped: "the manager is stopped", EntityHasReference: "the object has references",
	AlreadyExists: "it already exists", ElementNotFound: "it was not found", AccessDenied: "access is denied",
	NotImplemented: "not implemented", ServiceDisabled: "the service is disabled", ServiceNotActive: "the service is not started",
	ServerUnavailable: "the service is not there", ServerTooBusy: "the service is too busy",
	CallFailed: "the call failed", CallDidNotExecute: "the call failed and did not execute", Timeout: "it took too long",
}

func (c Code) String() string {
	if t, ok := codeTexts[c]; ok {
		return t
	}
	return "it failed"
}

// CodeOf returns the code of a HRESULT: those of Windows itself are told by
// their last sixteen bits.
func CodeOf(hresult uint32) Code {
	if hresult&0x1fff0000 == 0x00070000 {
		return Code(hresult & 0xffff)
	}
	return Code(hresult)
}

// has reports whether err is one of the service with one of the codes.
func has(err error, codes ...Code) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range codes {
		if e.Code == c {
			return true
		}
	}
	return false
}

// gone reports whether err tells that an object is not there.
func gone(err error) bool {
	return has(err, EndpointNotFound, PolicyNotFound, ElementNotFound)
}

// exists reports whether err tells that there is such an object already.
func exists(err error) bool { return has(err, AlreadyExists, PortAlreadyExists) }

// refused reports whether the service looked at a request and did not take it:
// not, where it could not be reached or did not say why.
func refused(err error) bool {
	var e *Error
	return errors.As(err, &e) && !has(err, NetworkNotFound, ManagerStopped, AccessDenied, ServiceDisabled, ServiceNotActive,
		ServerUnavailable, ServerTooBusy, CallFailed, CallDidNotExecute, Timeout)
}
