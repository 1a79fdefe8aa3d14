package winuserspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// The system checks whether another machine has an added address before a socket can use it, which
// takes about 3 s.
const (
	readyTimeout = 15 * time.Second
	readyEvery   = 100 * time.Millisecond
)

// Commit executes a Plan. A Service whose address or listener is not available is refused. Then no
// address is removed.
func (d *Dataplane) Commit(ctx context.Context, plan apply.Plan) (apply.Result, error) {
	p, ok := plan.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("winuserspace cannot commit a %T", plan)
	}
	if d.state == nil {
		return apply.Result{}, errUnread
	}
	defer d.poll.Committing()()
	if p.want != nil {
		d.proxy.SetUDPIdle(p.want.idle)
	}
	c := &commit{Dataplane: d, p: p, s: d.state, refusals: apply.Refusals{}}
	err := c.run(ctx)
	result := apply.Result{Refused: c.refusals.List(), Pending: c.pending}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil || len(c.refusals) > 0 {
		d.state, d.desired = nil, nil
		return result, err
	}
	if p.want != nil {
		d.desired = p.want
	}
	d.applied.Take(p.desired)
	return result, nil
}

// commit is the execution of a Plan.
type commit struct {
	*Dataplane
	p        *Plan
	s        *state
	refusals apply.Refusals
	pending  ir.PerFamily[int]
}

// refuseAt rejects the Services that use an address.
func (c *commit) refuseAt(a netip.Addr, err error) {
	for _, l := range c.p.listeners {
		if vip(l.Listener) == a {
			c.refusals.Add(l.Port.Service, fmt.Errorf("address %s: %w", a, err))
		}
	}
}

// run closes removed listeners before it opens others, so that a Service can reuse another's
// address and port.
func (c *commit) run(ctx context.Context) error {
	for _, k := range c.p.closed {
		c.proxy.CloseListener(k)
	}
	noted := maps.Clone(c.s.added)
	maps.DeleteFunc(noted, func(a netip.Addr, _ bool) bool { return !c.s.has(a) }) // removed by a reboot, or manually
	before := maps.Clone(noted)
	for _, a := range c.p.add {
		noted[a] = true
	}
	if err := c.record(noted); err != nil {
		return err
	}
	for _, a := range c.p.add {
		switch err := c.host.Add(a); {
		case isMissingInterface(err):
			return errors.Join(err, c.record(before))
		case err != nil:
			c.refuseAt(a, err)
			delete(noted, a)
		default:
			c.s.addrs[a] = Address{Addr: a, Service: true, FullPrefix: true, State: Tentative}
		}
	}
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	c.listen()
	if len(c.refusals) > 0 {
		return c.record(noted)
	}
	for _, a := range c.p.remove {
		if err := c.host.Remove(a); err != nil {
			c.o.Log.Warn("an unused address cannot be removed", "address", a.String(), "err", err)
			*c.pending.At(ir.FamilyOf(a))++
			continue
		}
		delete(c.s.addrs, a)
		delete(noted, a)
	}
	return c.record(noted)
}

// record writes the list of added addresses, if it changed.
func (c *commit) record(noted map[netip.Addr]bool) error {
	if maps.Equal(noted, c.s.added) {
		return nil
	}
	if err := c.file.write(noted); err != nil {
		return fmt.Errorf("recording the addresses of Services: %w", err)
	}
	c.s.added = maps.Clone(noted)
	return nil
}

// waitReady waits until sockets can use the addresses.
func (c *commit) waitReady(ctx context.Context) error {
	waiting := map[netip.Addr]bool{}
	for _, l := range c.p.listeners {
		if a := vip(l.Listener); a.IsValid() && c.refusals[l.Port.Service] == nil && c.s.addrs[a].State != Ready {
			waiting[a] = true
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	late := c.o.Tick(readyTimeout)
	for {
		if err := c.settle(waiting); err != nil || len(waiting) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			for a := range waiting {
				c.refuseAt(a, fmt.Errorf("not usable %s after it was added", readyTimeout))
			}
			return nil
		case <-c.o.Tick(readyEvery):
		}
	}
}

// settle reads the addresses, and removes those that no longer have to be waited for.
func (c *commit) settle(waiting map[netip.Addr]bool) error {
	addrs, err := c.host.Addresses()
	if err != nil {
		return err
	}
	c.s.addrs = newState(addrs, nil).addrs
	for a := range waiting {
		switch now, is := c.s.addrs[a]; {
		case is && now.State == Ready:
			delete(waiting, a)
		case is && now.State == Duplicate:
			c.refuseAt(a, errors.New("another machine on the service interface's network uses it"))
			delete(waiting, a)
		}
	}
	return nil
}

// listen opens and updates listeners. It reopens those on an address that was added again.
func (c *commit) listen() {
	came := sets.New(c.p.add...)
	for _, l := range c.p.listeners {
		if c.refusals[l.Port.Service] != nil {
			continue
		}
		if came.Has(vip(l.Listener)) {
			c.proxy.CloseListener(l.key())
		}
		if _, err := c.proxy.Open(l.family, l.Listener, nil); err != nil {
			c.refusals.Add(l.Port.Service, fmt.Errorf("%s: %w", l.Object(), err))
		}
	}
}

func isMissingInterface(err error) bool {
	var missing *NoInterface
	return errors.As(err, &missing)
}
