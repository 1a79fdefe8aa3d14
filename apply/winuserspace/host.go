package winuserspace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Host is a node, as far as its addresses go.
type Host interface {
	// Addresses returns the unicast addresses of all interfaces.
	Addresses() ([]Address, error)
	// Add gives the service interface an address, alone in its prefix. It can be
	// listened at when Addresses tells that it is ready. Where there is no such interface, the error is a
	// *NoInterface.
	Add(netip.Addr) error
	// Remove takes an address from the service interface. That it is not there is no error.
	Remove(netip.Addr) error
}

// Address is an address that a node has.
type Address struct {
	Addr    netip.Addr
	Service bool // it is on the service interface
	Alone   bool // in its prefix, as Add makes them
	State   State
}

// State is whether an address can be listened at.
type State uint8

const (
	Ready     State = iota
	Tentative       // the system asks whether another machine has it
	Duplicate       // another machine has it
)

// DefaultInterface is the service interface where the environment names none, as
// kube-proxy had it (pkg/util/netsh).
const DefaultInterface = "vEthernet (HNS Internal NIC)"

// InterfaceVariable names the service interface in the environment.
const InterfaceVariable = "INTERFACE_TO_ADD_SERVICE_IP"

// NoInterface is the error of a service interface that is not there.
type NoInterface struct {
	Name string
	Have []string // the names of those that are
}

func (e *NoInterface) Error() string {
	return fmt.Sprintf("interface %q, for the addresses of Services, is not there: set %s to one of %s", e.Name, InterfaceVariable, strings.Join(e.Have, ", "))
}

// errUnread is the error of a commit before anything was read.
var errUnread = errors.New("the node's addresses are not known: they have to be read first")

// searchList returns what is tried with names that a DNS service does not know: nothing, what
// kube-proxy took for the cluster's domains until 1.21, and the node's own suffixes (USR-21).
func searchList(node []string) []string {
	return slices.Concat([]string{"", "default.svc.cluster.local", "svc.cluster.local", "cluster.local"}, node)
}
