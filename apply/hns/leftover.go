package hns

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/proxyc/proxyc/apply"
)

// Leftovers returns the objects of proxyc and kube-proxy in a network. They cannot be
// distinguished.
func Leftovers(ctx context.Context, host Host, o Options) ([]apply.Leftover, error) {
	d, err := New(host, o)
	if err != nil {
		return nil, err
	}
	s, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	balancers := slices.AppendSeq(s.obsoleteBalancers, maps.Values(s.balancers))
	endpoints := s.obsoleteEndpoints
	for _, e := range s.byAddr {
		if s.createdByProxy(e) {
			endpoints = append(endpoints, e)
		}
	}
	var left []apply.Leftover
	if n := len(balancers); n > 0 {
		left = append(left, apply.Leftover{Object: fmt.Sprintf("%d load balancers of HNS network %s", n, s.network.Name), Remove: removeAll(balancers, func(l *LoadBalancer) string { return l.ID }, host.DeleteLoadBalancer)})
	}
	if n := len(endpoints); n > 0 {
		left = append(left, apply.Leftover{Object: fmt.Sprintf("%d remote endpoints of HNS network %s", n, s.network.Name), Remove: removeAll(endpoints, func(e *Endpoint) string { return e.ID }, host.DeleteEndpoint)})
	}
	return left, nil
}

// removeAll returns a function that removes objects. It continues after errors.
func removeAll[T any](all []T, id func(T) string, remove func(string) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var first error
		for _, x := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := deleteTwice(remove, id(x)); err != nil && first == nil {
				first = err
			}
		}
		return first
	}
}
