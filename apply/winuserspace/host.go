package winuserspace

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Host is the interface to the addresses of a node.
type Host interface {
	// Addresses returns the unicast addresses of all interfaces.
	Addresses() ([]Address, error)
	// Add adds an address to the service interface, with a prefix of full length. Sockets can use it
	// when Addresses reports it as Ready. If the interface does not exist, the error is a
	// *NoInterface.
	Add(netip.Addr) error
	// Remove removes an address from the service interface. A missing address is no error.
	Remove(netip.Addr) error
}

// Address is an address of the node.
type Address struct {
	Addr       netip.Addr
	Service    bool // on the service interface
	FullPrefix bool // its prefix has full length, as added by Add
	State      State
}

// State reports whether sockets can use an address.
type State uint8

const (
	Ready     State = iota
	Tentative       // the system checks whether another machine has it
	Duplicate       // another machine has it
)

// DefaultInterface is the service interface if the environment names none. It is kube-proxy's
// default (pkg/util/netsh).
const DefaultInterface = "vEthernet (HNS Internal NIC)"

// InterfaceVariable is the environment variable with the name of the service interface.
const InterfaceVariable = "INTERFACE_TO_ADD_SERVICE_IP"

// NoInterface is the error for a service interface that does not exist.
type NoInterface struct {
	Name string
	Have []string // names of the existing interfaces
}

func (e *NoInterface) Error() string {
	return fmt.Sprintf("interface %q, for the addresses of Services, does not exist: set %s to one of %s", e.Name, InterfaceVariable, strings.Join(e.Have, ", "))
}

// errUnread is the error of a commit before the first Read.
var errUnread = errors.New("the node's addresses are unknown: read them first")

// searchList are the suffixes for names that a DNS service cannot resolve, before the node's own: none, and the cluster
// domains that kube-proxy assumed until 1.21 (USR-21).
var searchList = []string{"", "default.svc.cluster.local", "svc.cluster.local", "cluster.local"}
