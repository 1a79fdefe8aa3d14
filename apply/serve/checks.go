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

// HealthChecks answers load balancers at the healthCheckNodePort of each
// Service: whether this node has endpoints of it, in one family. Each family
// has sockets of its own, so that both can have the same port. Fields are set
// before the first Sync.
type HealthChecks struct {
	Family ir.Family
	Health *Health
	// Failed is told why a port cannot be opened, once for each reason, and nil when
	// it is open, or not wanted any more. kube-proxy reports
	// FailedToStartServiceHealthcheck on the Service.
	Failed func(service ir.Name, port uint16, err error)
	Log    *slog.Logger
	// Hosts are the names of this node, as those of a Server.
	Hosts []string

	changing sync.Mutex // held by who changes, until what came of it is told

	mu          sync.Mutex
	connections *connections // of all checks; nil: there was none yet
	addrs       []netip.Addr
	open        map[ir.Name]sockets
	listening   int                 // sockets
	failed      map[ir.Name]failure // of which some address could not be opened
}

// failure is a check that does not answer everywhere.
type failure struct {
	*ir.HealthCheck
	err error
}

// sockets are where one Service's check answers.
type sockets map[netip.AddrPort]*check

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
// still wanted is not touched but for its count. A port that could not be
// opened is tried again at the next Sync or Change, and by Run.
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
	told := c.change(changes)
	c.mu.Unlock()
	c.tell(told)
}

// Change makes these checks answer, where the last Sync said; those that are
// nil no longer. The others stay, so that the cost follows the change.
func (c *HealthChecks) Change(changes map[ir.Name]*ir.HealthCheck) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.mu.Lock()
	all := make(map[ir.Name]*ir.HealthCheck, len(changes))
	for name, f := range c.failed {
		all[name] = f.HealthCheck
	}
	maps.Copy(all, changes)
	told := c.change(all)
	c.mu.Unlock()
	c.tell(told)
}

// telling is what Failed is told of a check.
type telling struct {
	service ir.Name
	port    uint16
	err     error
}

// tell comes without mu, so that a log that is blocked keeps nobody from asking.
func (c *HealthChecks) tell(all []telling) {
	for _, t := range all {
		c.Failed(t.service, t.port, t.err)
	}
}

// Run tries every 5 s what could not be opened, until ctx ends: who held a port
// tells nobody that it is free. after waits; nil is time.After.
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

// Failing says which health check does not answer, the first of them, and why; "": all do.
func (c *HealthChecks) Failing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failed) == 0 {
		return ""
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(c.failed)), ir.Name.Compare)
	return fmt.Sprintf("healthCheckNodePort %d of Service %s does not answer: %v", c.failed[first].Port, first, c.failed[first].err)
}

// change closes ports that go before it opens others, so that a Service can
// take over another's. All that failed before is among the changes. It returns
// what fails otherwise than before.
func (c *HealthChecks) change(changes map[ir.Name]*ir.HealthCheck) (told []telling) {
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
			told = append(told, telling{name, before[name].Port, nil})
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.failed), ir.Name.Compare) {
		was, now := before[name], c.failed[name]
		if was.HealthCheck == nil || was.Port != now.Port || was.err.Error() != now.err.Error() {
			told = append(told, telling{name, now.Port, now.err})
		}
	}
	return told
}

// closeBut closes the sockets of a Service that are not wanted or ended by
// themselves.
func (c *HealthChecks) closeBut(name ir.Name, hc *ir.HealthCheck) {
	for at, check := range c.open[name] {
		wanted := hc != nil && hc.Port == at.Port() && slices.Contains(c.addrs, at.Addr())
		if !wanted || check.ended() {
			check.close()
			delete(c.open[name], at)
			c.listening--
		}
	}
	if len(c.open[name]) == 0 {
		delete(c.open, name)
	}
}

// serve opens what is missing of one Service and sets its count.
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
			if err != nil {
				errs = append(errs, err)
				continue
			}
			open[at] = check
		}
		open[at].local.Store(int64(hc.Local))
	}
	if len(open) > 0 {
		set(&c.open, name, open)
	}
	if len(errs) > 0 {
		set(&c.failed, name, failure{hc, errors.Join(errs...)})
	}
}

// set sets an entry of a map, which is made if there is none.
func set[M ~map[K]V, K comparable, V any](m *M, key K, v V) {
	if *m == nil {
		*m = M{}
	}
	(*m)[key] = v
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

func (c *HealthChecks) listen(service ir.Name, at netip.AddrPort) (*check, error) {
	if most := within(math.MaxInt, socketPart); c.listening >= most {
		return nil, fmt.Errorf("no more than %d health checks listen, as the process may open %d files only: raise its limit", most, openFiles())
	}
	network := "tcp4"
	if c.Family == ir.IPv6 {
		network = "tcp6" // which leaves IPv4 out, also at the unspecified address
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), network, at.String())
	if err != nil {
		return nil, err
	}
	c.listening++
	check := &check{service: service, health: c.Health, done: make(chan struct{})}
	if c.connections == nil {
		c.connections = newConnections(within(maxChecks, checksPart))
	}
	check.server = newHTTPServer(onlyOurs(check, c.Hosts), c.Log, c.connections)
	go func() {
		defer close(check.done)
		if err := check.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.Log.Error("health check ended", "service", service.String(), "address", at, "err", err)
		}
	}()
	return check, nil
}

// ended notes that the server gave up by itself.
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
