package serve

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/proxyc/proxyc/ir"
)

// HealthChecks answers load balancers at the healthCheckNodePort of each
// Service: whether this node has endpoints of it, in one family. Each family
// has sockets of its own, so that both can have the same port. Fields are set
// before the first Sync.
type HealthChecks struct {
	Family ir.Family
	Health *Health
	// Failed is told of a port that could not be opened, at each Sync that
	// tries. kube-proxy reports FailedToStartServiceHealthcheck on the Service.
	Failed func(service ir.Name, port uint16, err error)
	Log    *slog.Logger

	mu   sync.Mutex
	open map[checkSocket]*check
}

// checkSocket is one address on which a Service's check answers.
type checkSocket struct {
	service ir.Name
	at      netip.AddrPort
}

// ListenAddrs says on which addresses health checks answer: on all, or on
// those of the node's addresses that nodePortAddresses holds (SNAP-73). Unlike
// node ports they answer on loopback addresses too.
func ListenAddrs(f ir.Family, ports ir.NodePortAddrs, node []netip.Addr) []netip.Addr {
	if ports.All {
		if f == ir.IPv6 {
			return []netip.Addr{netip.IPv6Unspecified()}
		}
		return []netip.Addr{netip.IPv4Unspecified()}
	}
	var addrs []netip.Addr
	for _, a := range node {
		held := func(p ir.NodePortPrefix) bool { return p.Prefix.Contains(a) }
		if f.Has(a) && slices.ContainsFunc(ports.Prefixes, held) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Sync makes exactly these checks answer, on these addresses. What is open and
// still wanted is not touched but for its count. Ports that go are closed
// before others open, so that a Service can take over another's. A port that
// could not be opened is tried again at the next Sync.
func (c *HealthChecks) Sync(addrs []netip.Addr, checks map[ir.Name]ir.HealthCheck) {
	c.mu.Lock()
	defer c.mu.Unlock()
	want := map[checkSocket]bool{}
	for name, hc := range checks {
		for _, a := range addrs {
			want[checkSocket{name, netip.AddrPortFrom(a, hc.Port)}] = true
		}
	}
	for socket, check := range c.open {
		if !want[socket] || check.ended() {
			check.close()
			delete(c.open, socket)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(checks), ir.Name.Compare) {
		if err := c.serve(name, addrs, checks[name]); err != nil {
			c.Failed(name, checks[name].Port, err)
		}
	}
}

// serve opens what is missing of one Service and sets its count.
func (c *HealthChecks) serve(name ir.Name, addrs []netip.Addr, hc ir.HealthCheck) error {
	if c.open == nil {
		c.open = map[checkSocket]*check{}
	}
	var errs []error
	for _, a := range addrs {
		socket := checkSocket{name, netip.AddrPortFrom(a, hc.Port)}
		check := c.open[socket]
		if check == nil {
			var err error
			if check, err = c.listen(socket); err != nil {
				errs = append(errs, err)
				continue
			}
			c.open[socket] = check
		}
		check.local.Store(int64(hc.Local))
	}
	return errors.Join(errs...)
}

// Close ends all checks. A Sync starts them again.
func (c *HealthChecks) Close() { c.Sync(nil, nil) }

// check is one listening socket.
type check struct {
	service ir.Name
	health  *Health
	local   atomic.Int64 // endpoints
	server  *http.Server
	done    chan struct{} // closed when the server has ended
}

func (c *HealthChecks) listen(socket checkSocket) (*check, error) {
	network := "tcp4"
	if c.Family == ir.IPv6 {
		network = "tcp6" // which leaves IPv4 out, also at the unspecified address
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), network, socket.at.String())
	if err != nil {
		return nil, err
	}
	check := &check{service: socket.service, health: c.Health, done: make(chan struct{})}
	check.server = newHTTPServer(check, c.Log)
	go func() {
		defer close(check.done)
		if err := check.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.Log.Error("health check ended", "service", socket.service, "address", socket.at, "err", err)
		}
	}()
	return check, nil
}

// ended tells that the server gave up by itself.
func (c *check) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *check) close() {
	c.server.Close()
	<-c.done
}

// checkBody is what a health check answers, whatever path or method is asked.
type checkBody struct {
	Service      ir.Name `json:"service"`
	Local        int64   `json:"localEndpoints"`
	ProxyHealthy bool    `json:"serviceProxyHealthy"`
}

func (c *check) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body := checkBody{
		Service:      c.service,
		Local:        c.local.Load(),
		ProxyHealthy: c.health.Status().Healthy, // whether the node is eligible does not count
	}
	text, err := json.MarshalIndent(body, "", "\t")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(body.Local, 10))
	writeBody(w, probeCode(body.Local > 0 && body.ProxyHealthy), "application/json", text)
}
