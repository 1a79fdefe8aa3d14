package peer

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// Addresses of a lab. The client is in the pods' range, so that its packets
// keep their source; the node has the address of Node node1.
const (
	podRange   = "10.128.0.0/9"  // clusterCIDR
	endpoints  = "10.128.0.0/10" // within it
	nodeName   = "node1"
	targetPort = 8080
)

var (
	nodeToClient  = netip.MustParsePrefix("10.254.0.1/30")
	client        = netip.MustParsePrefix("10.254.0.2/30")
	nodeToBackend = netip.MustParsePrefix("192.0.2.11/24")
	backend       = netip.MustParsePrefix("192.0.2.254/24")
	everywhere    = netip.MustParsePrefix("0.0.0.0/0")
)

// Endpoints that a probe can distinguish. All addresses of pods answer; this one does so with
// small segments.
var (
	home   = netip.MustParseAddr("10.190.0.1")
	abroad = netip.MustParseAddr("10.190.0.2")
)

const smallSegment = 600 // bytes; Ethernet's are more than twice that

// A lab is an empty node between a client and a namespace that has the addresses of all
// endpoints.
type lab struct {
	client, node, backend *applytest.Namespace
	gate                  *kube.Gate
	closers               []func() error
}

// newLab makes a lab whose backend owns, and answers at, the addresses of a prefix.
func newLab(c *kube.Cluster, owned string) (*lab, error) {
	l := &lab{}
	if err := errors.Join(l.connect(owned), l.listen(), l.openGate(c)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Close removes the lab, once the node's processes have ended.
func (l *lab) Close() (err error) {
	for i := len(l.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, l.closers[i]())
	}
	return err
}

// connect makes the namespaces, and routes between them.
func (l *lab) connect(owned string) error {
	for name, ns := range map[string]**applytest.Namespace{"client": &l.client, "node": &l.node, "backend": &l.backend} {
		var err error
		if *ns, err = applytest.NewNamespace(name); err != nil {
			return err
		}
		l.closers = append(l.closers, (*ns).Close)
	}
	if err := errors.Join(l.node.Connect("client", l.client, "node"), l.node.Connect("backend", l.backend, "node")); err != nil {
		return err
	}
	if err := errors.Join(
		l.node.AddAddr("client", nodeToClient, false), l.client.AddAddr("node", client, false),
		l.node.AddAddr("backend", nodeToBackend, false), l.backend.AddAddr("node", backend, false)); err != nil {
		return err
	}
	return errors.Join(
		l.client.AddRoute(everywhere, "node", nodeToClient.Addr()),
		l.backend.AddRoute(client.Masked(), "node", nodeToBackend.Addr()),
		l.node.AddRoute(netip.MustParsePrefix(endpoints), "backend", backend.Addr()),
		// Refusals must not be limited to one a second, and closed connections must not fill the
		// table of connections.
		l.node.Sysctl("ipv4/ip_forward=1", "ipv4/icmp_ratelimit=0", "netfilter/nf_conntrack_tcp_timeout_close=1"),
		l.ownAll(owned))
}

// ownAll gives all addresses of a range to the backend.
func (l *lab) ownAll(prefix string) error {
	lo, err := l.backend.Netlink().LinkByName("lo")
	if err != nil {
		return err
	}
	_, dst, err := net.ParseCIDR(prefix)
	if err != nil {
		return err
	}
	return l.backend.Netlink().RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst,
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST})
}

// listen accepts connections at all addresses of endpoints.
func (l *lab) listen() error {
	return l.backend.Do(func() error {
		return errors.Join(l.listenAt(netip.IPv4Unspecified(), 0), l.listenAt(abroad, smallSegment))
	})
}

// listenAt makes the kernel answer at an address, with segments of at most segment bytes (0 for
// the default). No process has to be scheduled: the kernel would pass on a connection with its
// first data, which never comes.
func (l *lab) listenAt(addr netip.Addr, segment int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	l.closers = append(l.closers, func() error { return unix.Close(fd) })
	if segment > 0 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, segment)
	}
	const forLong, backlog = 3600, 4096
	return errors.Join(err,
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, forLong),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), // one has all addresses, the other one of them
		unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.As4(), Port: targetPort}),
		unix.Listen(fd, backlog))
}

func (l *lab) openGate(c *kube.Cluster) (err error) {
	if l.gate, err = c.Gate(l.node); err == nil {
		l.closers = append(l.closers, l.gate.Close)
	}
	return err
}
