package ipvs

import (
	"errors"
	"net/netip"

	kernel "github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// server is a virtual server of the kernel.
type server struct{ *kernel.Service }

// key is what the server takes; without an address if it goes by packet mark.
func (s server) key() ir.Match {
	addr, _ := netip.AddrFromSlice(s.Address)
	return ir.Match{Addr: addr.Unmap(), Protocol: ir.Protocol(s.Protocol), Port: s.Port}
}

func (s server) String() string { return s.key().String() }

// ownServers returns the virtual servers that are kube-proxy's.
func ownServers(device *bound, sets []set) ([]server, error) {
	// Asked first, as the library would load the module, and complains on
	// standard error about kernels without.
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		return nil, err
	}
	ports, err := nodePorts(sets)
	if err != nil {
		return nil, err
	}
	local, err := addresses(nil)
	if err != nil {
		return nil, err
	}
	h, err := kernel.New("")
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := h.GetServices()
	if err != nil {
		return nil, err
	}
	o := owned{local: local, nodePorts: ports}
	if device != nil {
		o.bound = device.addrs
	}
	return o.of(all), nil
}

// owned distinguishes kube-proxy's virtual servers from those of others: they are at
// addresses that kube-ipvs0 holds, or at addresses of the node and ports that
// the ipsets name as node ports. Others, such as keepalived, make virtual
// servers at addresses of the node too.
type owned struct {
	bound     map[netip.Addr]bool
	local     map[netip.Addr]bool
	nodePorts map[ir.Match]bool // without addresses
}

func (o *owned) of(all []*kernel.Service) []server {
	var own []server
	for _, svc := range all {
		if s := (server{svc}); o.has(s.key()) {
			own = append(own, s)
		}
	}
	return own
}

func (o *owned) has(key ir.Match) bool {
	nodePort := ir.Match{Protocol: key.Protocol, Port: key.Port}
	return o.bound[key.Addr] || o.local[key.Addr] && o.nodePorts[nodePort]
}

func removeServer(s server) error {
	h, err := kernel.New("")
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.DelService(s.Service); !isGone(err) {
		return err
	}
	return nil
}

// isGone reports whether there was nothing to remove.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}
