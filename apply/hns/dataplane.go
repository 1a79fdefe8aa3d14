package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Dataplane is the Host Networking Service of one node.
type Dataplane struct {
	host Host
	o    Options

	can       atomic.Pointer[Features] // nil until the version was requested
	state     *state                   // nil if unknown
	desired   *desired                 // desired content of state
	applied   apply.Applied
	unremoved map[string]*refusedRemoval // load balancers that HNS refused to remove, by id
	expected  expected
	apply.Poll
}

var _ apply.Dataplane = (*Dataplane)(nil)

// Options configure a Dataplane.
type Options struct {
	Network      string // name of the cluster's network (winkernel.networkName)
	RootEndpoint string // name of the host's own endpoint (winkernel.rootHnsEndpointName)
	// HostMACs returns the MAC addresses of the host's interfaces, by their IP addresses.
	HostMACs func() (map[netip.Addr]string, error)
	// Local, if set, is called with the pod addresses that HNS reports on this node, each time they
	// are read.
	Local func(map[netip.Addr]struct{})
	Log   *slog.Logger
	// Tick returns a channel that receives a value after a duration; time.After if nil.
	Tick func(time.Duration) <-chan time.Time
}

// errTooOld is the error of a service without schema 2. It is permanent.
var errTooOld = errors.New("must be 9.2 or newer (Windows Server 2019)")

// New returns the Dataplane of a host. It fails if the service is too old. If the service does not
// respond yet, each Read tries again.
func New(host Host, o Options) (*Dataplane, error) {
	if o.Network == "" {
		return nil, errors.New("winkernel.networkName: must be the name of the HNS network, as KUBE_NETWORK is not set")
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Tick == nil {
		o.Tick = time.After
	}
	d := &Dataplane{host: host, o: o, unremoved: map[string]*refusedRemoval{}}
	if _, err := d.features(); errors.Is(err, errTooOld) {
		return nil, err
	}
	return d, nil
}

// Read lists the objects of the host.
func (d *Dataplane) Read(ctx context.Context, _ ir.Programs) error {
	s, err := d.read(ctx)
	if err != nil {
		return err
	}
	d.state = s
	d.expected.set(s.objects)
	return nil
}

func (d *Dataplane) read(ctx context.Context) (*state, error) {
	can, err := d.features()
	if err != nil {
		return nil, err
	}
	n, err := d.network()
	if err != nil {
		return nil, err
	}
	macs, err := d.o.HostMACs()
	if err != nil {
		return nil, err
	}
	g, err := d.host.Summarize()
	if err != nil {
		return nil, err
	}
	endpoints, err := d.host.Endpoints(n.ID)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	balancers, err := d.host.LoadBalancers()
	if err != nil {
		return nil, err
	}
	d.reportLocal(endpoints)
	s := newState(*n, can, macs, d.o.RootEndpoint, endpoints, balancers, g)
	s.objects = objectsOf(g, n)
	return s, nil
}

func (d *Dataplane) network() (*Network, error) {
	n, err := d.host.Network(d.o.Network)
	if errors.Is(err, ErrNoNetwork) {
		return nil, fmt.Errorf("winkernel.networkName: must be an HNS network: %q does not exist yet; the container network creates it", d.o.Network)
	}
	return n, err
}

// features returns the features of the service. It requests the version once.
func (d *Dataplane) features() (Features, error) {
	if can := d.can.Load(); can != nil {
		return *can, nil
	}
	v, err := d.host.Version()
	if err != nil {
		return Features{}, err
	}
	can := FeaturesOf(v)
	if !can.API {
		return can, fmt.Errorf("HNS %s: %w", v, errTooOld)
	}
	d.can.Store(&can)
	d.o.Log.Debug("host networking service", "version", v.String())
	return can, nil
}

// cannotModify records that the service refused a modification as not implemented, whatever its
// version.
func (d *Dataplane) cannotModify() {
	can := *d.can.Load()
	can.Modify = false
	d.can.Store(&can)
}

func (d *Dataplane) reportLocal(endpoints []Endpoint) {
	if d.o.Local == nil {
		return
	}
	local := map[netip.Addr]struct{}{}
	for i := range endpoints {
		if e := &endpoints[i]; !e.Remote {
			for _, a := range e.Addrs {
				local[a] = struct{}{}
			}
		}
	}
	d.o.Local(local)
}

// Plan compares the state that was read with the Programs.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	s := d.state
	if s == nil { // nothing is known, and Commit returns an error
		s = newState(Network{}, Features{}, nil, "", nil, nil, &Summary{})
	}
	p := compare(s, newDesired(want, &s.network, s.can))
	p.desired = apply.Desired{Full: true, Programs: want}
	return p
}

// PlanChanges plans the changed Services, and those that share an endpoint with them that changes. It
// first requests missing pods from HNS.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	p := &Plan{want: d.desired, endpointNames: map[string]string{}, desired: apply.Desired{Changes: changes}}
	if d.desired == nil || d.state == nil {
		return p
	}
	keys, addrs := sets.Set[key]{}, sets.Set[netip.Addr]{}
	uses := map[netip.Addr]int{} // by changed Services
	for f, of := range changes.All() {
		for _, c := range of {
			old, now := d.desired.count(f, c.Old, -1), d.desired.count(f, c.New, 1)
			for _, l := range slices.Concat(old.LoadBalancers, now.LoadBalancers) {
				keys.Insert(key{f, l.Match})
			}
			for _, e := range slices.Concat(old.Endpoints, now.Endpoints) {
				addrs.Insert(e.Address)
			}
			for _, e := range now.Endpoints {
				uses[e.Address]++
			}
		}
	}
	obsolete := len(d.state.obsoleteEndpoints)
	var found []netip.Addr
	if p.missing = d.desired.missing(d.state, keys, addrs); len(p.missing) > 0 {
		found, p.err = d.findPods()
	}
	p.endpoints(d.state, d.desired, addrs)
	p.unused = append(p.unused, d.state.obsoleteEndpoints[obsolete:]...)
	shared := sets.Set[string]{} // references that other Services have to endpoints that change
	for _, a := range slices.Concat(found, p.replacedAddrs()) {
		if n := d.desired.endpoints[a]; n != nil && n.uses > uses[a] {
			shared.Insert(n.Ref)
		}
	}
	if len(shared) > 0 {
		d.desired.addUsers(keys, shared)
	}
	p.balancers(d.state, d.desired, keys)
	return p
}

// findPods adds the endpoints of new pods to the known state, and returns their addresses.
func (d *Dataplane) findPods() (found []netip.Addr, err error) {
	g, err := d.host.Summarize()
	if err != nil {
		return nil, err
	}
	for i := range g.Endpoints {
		if e := &g.Endpoints[i]; d.state.isNewPod(e) {
			d.state.add(e)
			found = append(found, e.Addrs...)
		}
	}
	return found, nil
}

// Applied returns the Programs that were last known to be applied.
func (d *Dataplane) Applied() *apply.Applied { return &d.applied }

// pollEvery is how often Drift checks the host. A check makes six calls, however many objects exist.
const pollEvery = 30 * time.Second

// Drift checks the host periodically. It sends a token if another program has added or removed load
// balancers, remote endpoints or remote subnets, or if a pod's endpoint exists that a load balancer
// waits for. It reports each difference once, and its end.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	var reported map[string]bool
	return d.Start(ctx, d.o.Tick, pollEvery, func(undisturbed func() bool) bool {
		n, err := d.network()
		var g *Summary
		if err == nil {
			g, err = d.host.Summarize()
		}
		if err != nil {
			d.o.Log.Warn("HNS cannot be checked for changes", "err", err)
			return false
		}
		d.reportLocal(g.Endpoints)
		found, before := d.expected.differences(g, n), reported
		if !undisturbed() {
			return false // the next check finds everything that this one would
		}
		reported = found
		// An object may be found no longer since another program reverted its change after the repair.
		return !maps.Equal(found, before)
	}), nil
}

// objectsOf returns the ids of objects that a proxy may have created, and the remote subnets of the
// network.
func objectsOf(g *Summary, n *Network) map[string]bool {
	ids := map[string]bool{}
	for _, s := range n.RemoteSubnets {
		ids[s.Prefix.String()+" at "+s.Provider.String()] = true
	}
	for _, e := range g.Endpoints {
		if e.Remote {
			ids[e.ID] = true
		}
	}
	for _, id := range g.LoadBalancers {
		ids[id] = true
	}
	return ids
}

// expected is what Drift expects of the host.
type expected struct {
	mu      sync.Mutex
	objects map[string]bool         // that were read or created; nil if unknown
	absent  map[netip.Addr]struct{} // required pods of this node without an endpoint in HNS
}

// differences returns the objects that other programs added or removed, and the pods that load
// balancers wait for. The values state whether they exist.
func (e *expected) differences(g *Summary, n *Network) map[string]bool {
	found, now := map[string]bool{}, objectsOf(g, n)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.objects == nil {
		return found
	}
	for id := range now {
		if !e.objects[id] {
			found[id] = true
		}
	}
	for id := range e.objects {
		if !now[id] {
			found[id] = false
		}
	}
	for _, pod := range g.Endpoints {
		for _, a := range pod.Addrs {
			if _, ok := e.absent[a]; ok && !pod.Remote {
				found[pod.ID] = true
			}
		}
	}
	return found
}

// set replaces the objects.
func (e *expected) set(objects map[string]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.objects = objects
}

// record records that the proxy created or removed an object.
func (e *expected) record(id string, exists bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if exists {
		e.objects[id] = true
	} else {
		delete(e.objects, id)
	}
}
