package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// HealthChecks serves the healthCheckNodePorts of Services, in one family. A load balancer asks
// there whether this node has ready endpoints of the Service. Each family has its own sockets, so
// both can use the same port. Set all fields before the first Sync.
type HealthChecks struct {
	Family ir.Family
	Health *Health
	// Failed is called with the error if a port cannot be opened, once for each distinct error. It is
	// called with nil when the port is open or no longer requested. kube-proxy reports
	// FailedToStartServiceHealthcheck on the Service.
	Failed func(service ir.Name, port uint16, err error)
	Log    *slog.Logger
	// Hosts are the names of this node, as in Server.
	Hosts []string

	changing sync.Mutex // held during a change until Failed has returned

	mu          sync.Mutex
	connections *connections // of all checks; created on first use
	addrs       []netip.Addr
	open        map[ir.Name]sockets
	listening   int                 // number of listening sockets
	failed      map[ir.Name]failure // checks with an address that could not be opened

	refused atomic.Pointer[map[ir.Name]bool] // of SetRefused
}

// failure is a check that does not serve on all its addresses.
type failure struct {
	*ir.HealthCheck
	err error
}

// sockets are the listeners of one Service's check.
type sockets map[netip.AddrPort]*check

// ListenAddrs returns the addresses on which health checks listen: the unspecified address, or the
// node's addresses within nodePortAddresses (SNAP-73). Unlike node ports, health checks include
// loopback addresses.
func ListenAddrs(f ir.Family, ports ir.NodePortAddrs, node []netip.Addr) []netip.Addr {
	if ports.All {
		return []netip.Addr{f.Any().Addr()}
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

// Sync makes exactly these checks listen on these addresses. Open ports that remain only have their
// endpoint count updated. Ports that could not be opened are retried by the next Sync or Change,
// and by Run.
func (c *HealthChecks) Sync(addrs []netip.Addr, checks map[ir.Name]ir.HealthCheck) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.mu.Lock()
	c.addrs = addrs
	changes := make(map[ir.Name]*ir.HealthCheck, len(checks))
	for name := range c.open {
		changes[name] = nil
	}
	for name, hc := range checks {
		changes[name] = &hc
	}
	reports := c.change(changes)
	c.mu.Unlock()
	c.report(reports)
}

// Change adds or updates checks on the addresses of the last Sync; a nil check is removed. Other
// checks are not touched, so the cost is proportional to the change.
func (c *HealthChecks) Change(changes map[ir.Name]*ir.HealthCheck) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.mu.Lock()
	all := make(map[ir.Name]*ir.HealthCheck, len(changes))
	for name, f := range c.failed {
		all[name] = f.HealthCheck
	}
	maps.Copy(all, changes)
	reports := c.change(all)
	c.mu.Unlock()
	c.report(reports)
}

// SetRefused sets the Services whose rules the kernel refuses. Without rules, this node has no endpoints
// of them.
func (c *HealthChecks) SetRefused(services []ir.Name) {
	refused := make(map[ir.Name]bool, len(services))
	for _, name := range services {
		refused[name] = true
	}
	c.refused.Store(&refused)
}

func (c *HealthChecks) isRefused(service ir.Name) bool {
	refused := c.refused.Load()
	return refused != nil && (*refused)[service]
}

// report is the arguments of a call of Failed.
type report struct {
	service ir.Name
	port    uint16
	err     error
}

// report calls Failed without mu, so that a blocked log does not block requests.
func (c *HealthChecks) report(all []report) {
	for _, t := range all {
		c.Failed(t.service, t.port, t.err)
	}
}

// Run retries failed ports every 5 s until ctx ends, since nothing reports that a port became free.
// after waits; time.After if nil.
func (c *HealthChecks) Run(ctx context.Context, after func(time.Duration) <-chan time.Time) {
	if after == nil {
		after = time.After
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-after(bindRetry):
		}
		if c.Failing() != "" {
			c.Change(nil)
		}
	}
}

// Failing describes the first health check, by name, that does not listen because of the node; "" if there
// is none. If two Services contest a port, the other one answers.
func (c *HealthChecks) Failing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(c.failed), ir.Name.Compare) {
		if _, ok := errors.AsType[*contested](c.failed[name].err); !ok {
			return fmt.Sprintf("healthCheckNodePort %d of Service %s does not answer: %v", c.failed[name].Port, name, c.failed[name].err)
		}
	}
	return ""
}

// change closes removed ports before it opens others, so that a Service can reuse another's port.
// changes includes all checks that failed before. It returns the calls of Failed for results that
// differ from before.
func (c *HealthChecks) change(changes map[ir.Name]*ir.HealthCheck) (reports []report) {
	before := c.failed
	c.failed = nil
	for name, hc := range changes {
		c.closeBut(name, hc)
	}
	for _, name := range slices.SortedFunc(maps.Keys(changes), ir.Name.Compare) {
		if hc := changes[name]; hc != nil {
			c.serve(name, hc)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(before), ir.Name.Compare) {
		if now, still := c.failed[name]; !still || now.Port != before[name].Port {
			reports = append(reports, report{name, before[name].Port, nil})
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.failed), ir.Name.Compare) {
		was, now := before[name], c.failed[name]
		if was.HealthCheck == nil || was.Port != now.Port || was.err.Error() != now.err.Error() {
			reports = append(reports, report{name, now.Port, now.err})
		}
	}
	return reports
}

// closeBut closes the sockets of a Service that are not in hc.
func (c *HealthChecks) closeBut(name ir.Name, hc *ir.HealthCheck) {
	for at, check := range c.open[name] {
		if hc == nil || hc.Port != at.Port() || !slices.Contains(c.addrs, at.Addr()) {
			check.close()
			delete(c.open[name], at)
			c.listening--
		}
	}
	if len(c.open[name]) == 0 {
		delete(c.open, name)
	}
}

// serve opens the missing sockets of a Service and sets its endpoint count.
func (c *HealthChecks) serve(name ir.Name, hc *ir.HealthCheck) {
	open := c.open[name]
	if open == nil {
		open = sockets{}
	}
	var errs []error
	for _, a := range c.addrs {
		at := netip.AddrPortFrom(a, hc.Port)
		if open[at] == nil {
			check, err := c.listen(name, at)
			if other, ok := c.owner(at); err != nil && ok {
				err = &contested{other}
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			open[at] = check
		}
		open[at].local.Store(int64(hc.Local))
	}
	if len(open) > 0 {
		ir.SetIn(&c.open, name, open)
	}
	if len(errs) > 0 {
		ir.SetIn(&c.failed, name, failure{hc, errors.Join(errs...)})
	}
}

// contested is the error of a port that another Service has, too.
type contested struct{ by ir.Name }

func (e *contested) Error() string {
	return fmt.Sprintf("Service %s has the same healthCheckNodePort: set another one", e.by)
}

// owner returns the Service whose check listens at an address.
func (c *HealthChecks) owner(at netip.AddrPort) (ir.Name, bool) {
	for name, open := range c.open {
		if open[at] != nil {
			return name, true
		}
	}
	return ir.Name{}, false
}

// Close closes all checks. A Sync starts them again.
func (c *HealthChecks) Close() { c.Sync(nil, nil) }

// check is one listening socket.
type check struct {
	service ir.Name
	of      *HealthChecks
	local   atomic.Int64 // ready endpoints on this node
	server  *http.Server
	done    chan struct{} // closed when the server has ended
}

func (c *HealthChecks) listen(service ir.Name, at netip.AddrPort) (*check, error) {
	if most := within(math.MaxInt, socketPart); c.listening >= most {
		return nil, fmt.Errorf("at most %d health checks can listen, since the process may open only %d files: raise its limit", most, openFiles())
	}
	network := ir.Pick(c.Family, "tcp4", "tcp6") // tcp6 excludes IPv4, even on the unspecified address
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), network, at.String())
	if err != nil {
		return nil, err
	}
	c.listening++
	check := &check{service: service, of: c, done: make(chan struct{})}
	if c.connections == nil {
		c.connections = newConnections(within(maxChecks, checksPart))
	}
	check.server = newHTTPServer(rejectForeignHosts(check, c.Hosts), c.Log, c.connections)
	go func() {
		defer close(check.done)
		if err := check.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.Log.Error("a health check server ended", "service", service.String(), "address", at, "err", err)
		}
	}()
	return check, nil
}

func (c *check) close() {
	c.server.Close()
	<-c.done
}

// checkBody is the response of a health check to any path and method.
type checkBody struct {
	Service      ir.Name `json:"service"`
	Local        int64   `json:"localEndpoints"`
	ProxyHealthy bool    `json:"serviceProxyHealthy"`
}

func (c *check) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body := checkBody{
		Service:      c.service,
		Local:        c.local.Load(),
		ProxyHealthy: c.of.Health.Status().Healthy, // the node's eligibility does not count
	}
	if c.of.isRefused(c.service) {
		body.Local = 0
	}
	text, err := json.MarshalIndent(body, "", "\t")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(body.Local, 10))
	writeBody(w, probeCode(body.Local > 0 && body.ProxyHealthy), "application/json", text)
}
