package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/hns"
)

// maxStaleRetries bounds how many failed removals a commit retries (WIN-27, stale ids are retried at
// most 20 per sync).
const maxStaleRetries = 20

// errUnread is the error of a commit before the first Read.
var errUnread = errors.New("HNS: its state is unknown: read it first")

// Commit executes a Plan.
func (d *Dataplane) Commit(ctx context.Context, plan apply.Plan) (apply.Result, error) {
	p, ok := plan.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("hns cannot commit a %T", plan)
	}
	if d.state == nil {
		return apply.Result{}, errUnread
	}
	defer d.Committing()()
	if p.desired.Full {
		d.desired = p.want
	}
	c := &commit{Dataplane: d, ctx: ctx, p: p, s: d.state, w: d.desired, refusals: apply.Refusals{}, deleted: map[key]*LoadBalancer{}, open: map[key]bool{}}
	c.before = sync.OnceValue(func() *desired { return newDesired(d.applied.Programs(), &c.s.network, c.s.can) })
	err := c.run()
	c.restore()
	result := apply.Result{Refused: c.refusals.List(), Pending: c.pending, Balancers: c.failures, RefusedRemovals: c.refusedRemovals()}
	if err != nil || len(c.refusals) > 0 {
		d.state, d.desired = nil, nil
		d.expected.set(nil)
		return result, err
	}
	d.applied.Take(p.desired)
	d.forgetRemoved()
	d.expected.mu.Lock()
	defer d.expected.mu.Unlock()
	d.expected.absent = c.absent()
	return result, nil
}

// commit is the execution of a Plan.
type commit struct {
	*Dataplane
	ctx      context.Context
	p        *Plan
	s        *state
	w        *desired
	refusals apply.Refusals
	deleted  map[key]*LoadBalancer // that must be replaced
	pending  ir.PerFamily[int]     // endpoints
	failures []apply.BalancerFailure
	before   func() *desired // desired state before this commit; it lowers all Services, once
	open     map[key]bool    // removed load balancers whose replacements do not exist yet
	skipped  bool            // the commit ended before some steps
	refused  bool            // HNS refused the removal of an unneeded load balancer
}

// refuse records a refused Service. Other errors end the commit.
func (c *commit) refuse(name ir.Name, err error) error {
	if !isRefused(err) || name == (ir.Name{}) {
		return err
	}
	c.refusals.Add(name, err)
	return nil
}

func (c *commit) run() error {
	if err := c.prepare(); err != nil {
		return err
	}
	if err := each(c, c.p.removals, nil, c.removeBalancer); err != nil {
		return err
	}
	if err := each(c, c.p.replaced, c.freed, c.replaceEndpoint); err != nil {
		return err
	}
	if err := each(c, c.p.added, func(*need) bool { return len(c.open) > 0 }, c.addEndpoint); err != nil {
		return err
	}
	if err := each(c, c.p.changes, nil, c.changeBalancer); err != nil {
		return err
	}
	if err := each(c, c.p.news, func(n change) bool { return c.open[n.key] }, c.addBalancer); err != nil {
		return err
	}
	if err := each(c, c.p.unused, nil, c.removeEndpoint); err != nil {
		return err
	}
	if c.skipped {
		return c.ctx.Err()
	}
	return c.removeStale()
}

// restore creates deleted load balancers again if their replacements were refused. HNS has no
// transactions.
func (c *commit) restore() {
	if len(c.refusals) == 0 {
		return
	}
	for k, l := range c.deleted {
		if id, err := c.host.CreateLoadBalancer(&l.HostComputeLoadBalancer); err == nil {
			c.expected.record(strings.ToLower(id), true)
			delete(c.deleted, k)
		}
	}
}

// each executes steps in order, until one fails. After the end of the context, or if the cause of
// rejections is shared, it executes only steps that complete the replacement of a removed load balancer.
func each[T any](c *commit, steps []T, completes func(T) bool, do func(T) error) error {
	for _, step := range steps {
		if (c.ctx.Err() != nil || len(c.refusals) >= apply.MaxRefused) && (completes == nil || !completes(step)) {
			c.skipped = true
			continue
		}
		if err := do(step); err != nil {
			return err
		}
	}
	return nil
}

// freed reports whether an endpoint can be replaced for removed load balancers: no other one uses it.
func (c *commit) freed(r replacement) bool {
	for _, l := range c.s.balancers {
		if slices.ContainsFunc(l.HostComputeEndpoints, func(id string) bool { return strings.EqualFold(id, r.have.ID) }) {
			return false
		}
	}
	return len(c.open) > 0
}

// prepare checks the configuration, and reads the remote subnets, which endpoints of an overlay
// require and which may have been added since the last read.
func (c *commit) prepare() error {
	if c.p.err != nil {
		return c.p.err
	}
	if c.s.network.Overlay() {
		if len(c.p.added)+len(c.p.news) > 0 {
			if !c.w.hns.SourceVIP.IsValid() {
				return errors.New("winkernel.sourceVip: must be the source IP address of masqueraded packets in overlay networks, got none")
			}
			n, err := c.network()
			if err != nil {
				return err
			}
			if n.ID != c.s.network.ID {
				return fmt.Errorf("HNS: network %s was recreated", n.Name)
			}
			c.s.network = *n
		}
		for f := range ir.Present(c.w.node) {
			if ip := c.w.nodeIP.Of(f); c.s.hostMACs[ip] == "" {
				return fmt.Errorf("the node's address %s must be on an interface of the host, for overlay network %s", ip, c.s.network.Name)
			}
		}
	}
	if c.w.hns.EnableDSR && !c.s.can.DSR {
		return errors.New("winkernel.enableDSR: must be false: this version of HNS does not support direct server return")
	}
	return nil
}

// absent returns the required pods of this node that have no endpoint in HNS.
func (c *commit) absent() map[netip.Addr]struct{} {
	all, out := maps.Keys(c.w.endpoints), map[netip.Addr]struct{}{}
	if !c.p.desired.Full {
		out = c.expected.absent
		maps.DeleteFunc(out, func(a netip.Addr, _ struct{}) bool { return !c.w.podMissing(c.s, a) })
		all = slices.Values(c.p.missing)
	}
	for a := range all {
		if c.w.podMissing(c.s, a) {
			out[a] = struct{}{}
		}
	}
	return out
}

// delete deletes an object. A missing object counts as deleted if it was just listed. Otherwise
// other objects may be missing, too, and everything has to be read again.
func (c *commit) delete(remove func(string) error, id string) error {
	lost := false
	err := deleteTwice(func(id string) error {
		err := remove(id)
		lost = lost || isNotFound(err)
		return err
	}, id)
	if lost && !c.p.desired.Full {
		return fmt.Errorf("HNS lost %s", id)
	}
	if err == nil {
		c.expected.record(id, false)
	}
	return err
}

// deleteTwice deletes an object, and retries once, as the second attempt may succeed. A missing
// object counts as deleted.
func deleteTwice(remove func(string) error, id string) error {
	err := remove(id)
	if err != nil && isRefused(err) && !isNotFound(err) && !hasCode(err, EntityHasReference) {
		err = remove(id)
	}
	if isNotFound(err) {
		return nil
	}
	return err
}

func (c *commit) removeBalancer(r removal) error {
	replaced := r.service != (ir.Name{})
	err := c.deleteBalancer(r.key, r.have)
	if err != nil && replaced {
		return c.refuse(r.service, fmt.Errorf("its %s cannot be removed: %w", r.object(), err))
	}
	if err != nil && !isRefused(err) {
		return err
	}
	if replaced {
		c.open[r.key], c.deleted[r.key] = true, r.have
	}
	if have := c.s.balancers[r.key]; have != nil && have.ID == r.have.ID {
		delete(c.s.balancers, r.key)
	}
	c.s.obsoleteBalancers = slices.DeleteFunc(c.s.obsoleteBalancers, func(l *LoadBalancer) bool { return l.ID == r.have.ID })
	if err != nil {
		c.refused = true
		c.s.obsoleteBalancers = append(c.s.obsoleteBalancers, r.have)
	}
	return nil
}

func (c *commit) replaceEndpoint(r replacement) error {
	if err := c.delete(c.host.DeleteEndpoint, r.have.ID); err != nil {
		return c.refuseUsers(r.need, fmt.Errorf("%s cannot be replaced: %w", endpointObject(r.need.Address), err))
	}
	c.s.remove(r.have)
	return c.addEndpoint(r.need)
}

func (c *commit) addEndpoint(n *need) error {
	if e := c.s.byAddr[n.Address]; e != nil && !c.s.stale(c.w, n.Address, e) {
		return nil // the CNI plugin created it meanwhile
	}
	e, err := c.host.CreateEndpoint(c.s.network.ID, c.s.endpoint(c.w, n))
	if err != nil {
		if isAlreadyExists(err) && !c.p.desired.Full {
			return fmt.Errorf("%s: the state of HNS has changed: %w", endpointObject(n.Address), err)
		}
		return c.refuseUsers(n, fmt.Errorf("%s: %w", endpointObject(n.Address), err))
	}
	c.s.add(&e)
	if e.Remote {
		c.expected.record(e.ID, true)
	}
	return nil
}

// refuseUsers rejects the Services that require an endpoint.
func (c *commit) refuseUsers(n *need, err error) error {
	ref, any := n.Address.String(), false
	for _, claims := range c.w.balancers {
		for _, l := range claims {
			if slices.Contains(l.HCN.HostComputeEndpoints, ref) || n.Role == rules.ServiceIP && slices.Contains(l.HCN.FrontendVIPs, ref) {
				if err := c.refuse(l.service, err); err != nil {
					return err
				}
				any = true
			}
		}
	}
	if !any { // no Service requires it: the source address of an overlay
		return err
	}
	return nil
}

func (c *commit) changeBalancer(ch change) error {
	if c.refusals[ch.claim.service] != nil {
		return nil
	}
	want := c.s.balancer(c.w, ch.key, ch.claim)
	switch {
	case want == nil:
		return c.removeBalancer(removal{key: ch.key, have: ch.have})
	case same(ch.have, want):
		return nil
	}
	if c.s.can.Modify {
		err := c.host.ModifyLoadBalancer(ch.have.ID, want)
		if err == nil {
			c.s.balancers[ch.key] = &LoadBalancer{ch.have.ID, *want}
			return nil
		}
		if hasCode(err, NotImplemented) {
			c.s.can.Modify = false
			c.cannotModify()
		} else if c.failed(apply.Change, ch.key, ch.claim.Kind, err); !isRefused(err) || isNotFound(err) {
			return err
		}
		// HNS rejects this modification: replace the load balancer.
	}
	if err := c.deleteBalancer(ch.key, ch.have); err != nil {
		return c.refuse(ch.claim.service, fmt.Errorf("its old %s cannot be removed: %w", ch.object(), err))
	}
	delete(c.s.balancers, ch.key)
	c.deleted[ch.key] = ch.have
	return c.create(ch, want)
}

func (c *commit) addBalancer(ch change) error {
	defer delete(c.open, ch.key)
	if c.refusals[ch.claim.service] != nil {
		return nil
	}
	want := c.s.balancer(c.w, ch.key, ch.claim)
	if want == nil { // its pods do not exist yet
		delete(c.deleted, ch.key)
		return nil
	}
	return c.create(ch, want)
}

func (c *commit) create(ch change, want *rules.HostComputeLoadBalancer) error {
	id, err := c.host.CreateLoadBalancer(want)
	if err != nil {
		c.failed(apply.Add, ch.key, ch.claim.Kind, err)
		if isNotFound(err) || isAlreadyExists(err) && !c.p.desired.Full && c.s.foreign[ch.key] == "" {
			return fmt.Errorf("%s: the state of HNS has changed: %w", ch.object(), err)
		}
		if other := c.s.foreign[ch.key]; isAlreadyExists(err) && other != "" {
			err = fmt.Errorf("load balancer %s of another program uses it: %w", other, err)
		}
		return c.refuse(ch.claim.service, fmt.Errorf("%s: %w", ch.object(), err))
	}
	id = strings.ToLower(id)
	delete(c.deleted, ch.key)
	c.s.balancers[ch.key] = &LoadBalancer{id, *want}
	c.expected.record(id, true)
	return nil
}

func (c *commit) removeEndpoint(e *Endpoint) error {
	a := e.Addrs[0]
	if n := c.w.endpoints[a]; n != nil && c.s.byAddr[a] == e && !c.s.stale(c.w, a, e) {
		return nil // required again since HNS refused to remove it
	}
	if err := c.delete(c.host.DeleteEndpoint, e.ID); err != nil {
		if !isRefused(err) {
			return err
		}
		*c.pending.At(ir.FamilyOf(a))++
		c.s.addObsolete(e)
		return nil
	}
	c.s.obsoleteEndpoints = slices.DeleteFunc(c.s.obsoleteEndpoints, func(x *Endpoint) bool { return x.ID == e.ID })
	c.s.remove(e)
	return nil
}

// removeStale retries removals that failed in earlier commits, unless one fails.
func (c *commit) removeStale() error {
	if c.p.desired.Full || c.refused || c.pending != (ir.PerFamily[int]{}) {
		return nil
	}
	for _, l := range slices.Clone(c.s.obsoleteBalancers[:min(maxStaleRetries, len(c.s.obsoleteBalancers))]) {
		k, _ := keyOf(l)
		if err := c.removeBalancer(removal{key: k, have: l}); err != nil {
			return err
		}
	}
	for _, e := range slices.Clone(c.s.obsoleteEndpoints[:min(maxStaleRetries, len(c.s.obsoleteEndpoints))]) {
		if err := c.removeEndpoint(e); err != nil {
			return err
		}
	}
	return nil
}
