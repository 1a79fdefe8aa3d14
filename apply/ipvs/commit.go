package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// commit is the execution of a Plan.
type commit struct {
	drains   *drainer
	rules    apply.Dataplane // iptables
	refused  apply.Refusals
	result   apply.Result
	draining []request
}

func (c *commit) run(ctx context.Context, p *Plan) error {
	first := p.adoptsFlows()
	steps := []func() error{
		func() error { return c.do(ctx, p.grow) },
		func() error { return c.do(ctx, requestsIf(first, p.bind)) },
		func() error { return c.do(ctx, p.unbind) },
		func() error { return c.tables(ctx, p) },
		func() error { return c.do(ctx, requestsIf(!first, p.bind)) },
		func() error { return c.removeDrained(ctx) },
		func() error { return c.do(ctx, p.remove) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
		if len(c.refused) > 0 {
			return c.rollBack(ctx, p)
		}
	}
	return nil
}

func requestsIf(now bool, requests []request) []request {
	if !now {
		return nil
	}
	return requests
}

// tables commits the iptables rules.
func (c *commit) tables(ctx context.Context, p *Plan) error {
	if p.rules == nil {
		return nil
	}
	result, err := c.rules.Commit(ctx, p.rules)
	c.result.Tables, c.result.Failed = result.Tables, result.Failed
	for _, r := range result.Refused {
		c.refused.Add(r.Service, r.Reason)
	}
	return err
}

// do executes requests, except additions for refused Services. Requests that another program
// already fulfilled count as done.
func (c *commit) do(ctx context.Context, requests []request) error {
	if len(c.refused) > 0 {
		requests = slices.DeleteFunc(slices.Clone(requests), func(r request) bool {
			return c.refused[r.service()] != nil && r.op < removeAddress
		})
	}
	if len(requests) == 0 {
		return nil
	}
	failures, err := c.drains.k.do(ctx, requests)
	again, errs := c.classify(requests, failures)
	for i := range requests {
		c.updateDrains(&requests[i])
	}
	if len(again) > 0 && err == nil {
		failures, err = c.drains.k.do(ctx, again)
		_, more := c.classify(again, failures)
		errs = append(errs, more...)
	}
	return errors.Join(append(errs, err)...)
}

// classify classifies failures: done already, to be repeated differently, a refused Service, or an
// error.
func (c *commit) classify(requests []request, failures []failure) (again []request, errs []error) {
	for _, f := range failures {
		r := &requests[f.at]
		switch err, s := fmt.Errorf("%s: %w", r.object(), f.err), r.service(); {
		case r.fulfilled(f.err):
		case errors.Is(f.err, errExists) && r.op == addDest: // it is draining
			next := *r
			next.op = setDest
			again = append(again, next)
		case s != (ir.Name{}) && r.op < removeAddress && (c.refused[s] != nil || isRefusal(f.err)):
			c.refused.Add(s, err)
		default:
			errs = append(errs, err)
		}
	}
	return again, errs
}

// fulfilled reports whether a failure means that another program did the same.
func (r *request) fulfilled(err error) bool {
	if errors.Is(err, errMissing) {
		return r.op >= removeAddress || r.op == setDest && r.dest.Weight == 0
	}
	return errors.Is(err, errExists) && (r.op == addElement || r.op == addAddress || r.op == makeSet || r.op == makeDevice)
}

// isRefusal reports whether the kernel rejects the object itself. Otherwise its state differs from
// the expected one, or it cannot execute anything; then the state has to be read again.
func isRefusal(err error) bool {
	return !errors.Is(err, errEnvironment) && !errors.Is(err, errExists) && !errors.Is(err, errMissing)
}

// updateDrains updates the list of draining real servers.
func (c *commit) updateDrains(r *request) {
	switch r.op {
	case addDest, removeDest:
		c.drains.forget(r.server.Key, r.dest.AddrPort)
	case setDest:
		if r.dest.Weight == 0 {
			c.draining = append(c.draining, *r)
		} else {
			c.drains.forget(r.server.Key, r.dest.AddrPort)
		}
	case removeServer:
		c.drains.forgetServer(r.server.Key)
	}
}

// removeDrained removes the real servers that have no connections left, after they stopped
// receiving new ones.
func (c *commit) removeDrained(ctx context.Context) error {
	var over []request
	for len(c.draining) > 0 {
		key := c.draining[0].server.Key
		current, err := c.drains.k.dests(ctx, key)
		if err != nil {
			return err
		}
		c.draining = slices.DeleteFunc(c.draining, func(r request) bool {
			if r.server.Key != key {
				return false
			}
			to := r.dest.AddrPort
			switch d, ok := current[to]; {
			case !ok:
			case d.conns > 0:
				c.drains.start(key, to, r.service(), d.conns)
			default:
				over = append(over, request{op: removeDest, family: r.family, server: r.server, dest: r.dest})
			}
			return true
		})
	}
	return c.do(ctx, over)
}

// rollBack removes what was added before the kernel refused a Service.
func (c *commit) rollBack(ctx context.Context, p *Plan) error {
	var back []request
	for _, r := range p.bind {
		r.op = removeAddress
		back = append(back, r)
	}
	for _, r := range p.grow {
		if r.op == addServer {
			r.op = removeServer
			back = append(back, r)
		}
	}
	return c.do(ctx, back)
}
