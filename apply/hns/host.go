package hns

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	rules "github.com/proxyc/proxyc/render/hns"
)

// Host is the Host Networking Service of a node. Errors from the service are *Error.
type Host interface {
	// Version returns the version of the service.
	Version() (Version, error)
	// Network returns a network by its name, or ErrNoNetwork.
	Network(name string) (*Network, error)
	// Endpoints returns the endpoints of a network. It makes three calls for each.
	Endpoints(network string) ([]Endpoint, error)
	// LoadBalancers returns all load balancers. It makes three calls for each.
	LoadBalancers() ([]LoadBalancer, error)
	// Summarize returns all objects in less detail. It makes two calls.
	Summarize() (*Summary, error)
	// CreateEndpoint creates an endpoint in a network, and returns it with its id.
	CreateEndpoint(network string, e *rules.HostComputeEndpoint) (Endpoint, error)
	DeleteEndpoint(id string) error
	// CreateLoadBalancer creates a load balancer and returns its id.
	CreateLoadBalancer(l *rules.HostComputeLoadBalancer) (id string, err error)
	ModifyLoadBalancer(id string, l *rules.HostComputeLoadBalancer) error
	DeleteLoadBalancer(id string) error
}

// ErrNoNetwork is the error for a network that does not exist.
var ErrNoNetwork = errors.New("HNS has no such network")

// Version is a version of the service.
type Version struct{ Major, Minor int }

// AtLeast reports whether v is at least major.minor.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Features are the features of a version of the service. The version ranges are those of hnslib
// (hcn/hcnglobals.go).
type Features struct {
	API             bool // version 2 of the API, with remote subnets
	DSR             bool // direct server return
	SessionAffinity bool // distribution by source address
	DualStack       bool
	Modify          bool // modification of load balancers
}

// FeaturesOf returns the features of a version.
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

// Overlay reports whether the network encapsulates traffic to other nodes.
func (n *Network) Overlay() bool { return strings.EqualFold(n.Type, rules.Overlay) }

// RemoteSubnet is an address range on another node of an overlay network.
type RemoteSubnet struct {
	Prefix   netip.Prefix
	Provider netip.Addr // address of that node
}

// ProviderOf returns the address of the node that hosts an address. For the address of a node it
// returns that address. The result is invalid if there is no such node.
func (n *Network) ProviderOf(a netip.Addr) (provider netip.Addr) {
	for _, s := range n.RemoteSubnets {
		if s.Prefix.Contains(a) || s.Provider == a {
			provider = s.Provider // the last match counts, as in kube-proxy
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
	Provider          netip.Addr // from the ProviderAddress policy; invalid without one
}

// LoadBalancer is a load balancer of the host. Its endpoints are ids.
type LoadBalancer struct {
	ID string
	rules.HostComputeLoadBalancer
}

// Summary is the content of the host in the detail of short lists.
type Summary struct {
	Endpoints     []Endpoint // ID, Name, Network, Addrs, Remote
	LoadBalancers []string   // ids
}

// Error is an error of the service.
type Error struct {
	Call string // "CreateLoadBalancer"
	Code Code
	Text string // text from the service; may be empty
}

func (e *Error) Error() string {
	return fmt.Sprintf("HNS: %s: %s (%#x)", e.Call, cmp.Or(e.Text, "failed"), uint32(e.Code))
}

// Code is a Windows error code: an HRESULT of HCN, or a system error.
type Code uint32

// Codes that this package distinguishes. HCN documents its own as HcnHResult; the others are
// Windows system errors.
const (
	NetworkNotFound    Code = 0x803b0001
	EndpointNotFound   Code = 0x803b0002
	PolicyNotFound     Code = 0x803b0008
	PortAlreadyExists  Code = 0x803b0013
	InvalidIP          Code = 0x803b001e
	ManagerStopped     Code = 0x803b0020
	EntityHasReference Code = 0x803b002c
	AlreadyExists      Code = 0xb7
	ElementNotFound    Code = 0x490
	AccessDenied       Code = 0x5
	NotImplemented     Code = 0x80004001
	ServiceDisabled    Code = 0x422
	ServiceNotActive   Code = 0x426
	UnknownInterface   Code = 0x6b5 // RPC: the service does not run yet
	ServerUnavailable  Code = 0x6ba // RPC
	ServerTooBusy      Code = 0x6bb // RPC
	CallFailed         Code = 0x6be // RPC
	CallDidNotExecute  Code = 0x6bf // RPC
	Timeout            Code = 0x5b4
)

// CodeOf returns the code of an HRESULT. For system errors it is the low 16 bits.
func CodeOf(hresult uint32) Code {
	if hresult&0x1fff0000 == 0x00070000 {
		return Code(hresult & 0xffff)
	}
	return Code(hresult)
}

// hasCode reports whether err is an error of the service with one of codes.
func hasCode(err error, codes ...Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.Contains(codes, e.Code)
}

// isNotFound reports whether err means that an object does not exist.
func isNotFound(err error) bool {
	return hasCode(err, EndpointNotFound, PolicyNotFound, ElementNotFound)
}

// isAlreadyExists reports whether err means that an object already exists.
func isAlreadyExists(err error) bool { return hasCode(err, AlreadyExists, PortAlreadyExists) }

// isRefused reports whether the service processed a request and refused it. It is false if the
// service was not reachable, or did not state a reason.
func isRefused(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok && !hasCode(err, NetworkNotFound, ManagerStopped, AccessDenied, ServiceDisabled, ServiceNotActive,
		UnknownInterface, ServerUnavailable, ServerTooBusy, CallFailed, CallDidNotExecute, Timeout)
}
