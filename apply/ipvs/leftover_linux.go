package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// Leftovers lists what is there, in the order in which it should go. The
// ipsets can only go after the iptables rules that look into them. What the
// kernel has no support for cannot be left over.
func Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	n, _, err := dialNode(ctx)
	if err != nil {
		return nil, err
	}
	defer n.close()
	var servers []*server
	var sets []string
	device, addresses := false, 0
	for _, f := range ir.Families() {
		s, err := n.read(ctx, f)
		if foreign, ok := errors.AsType[*apply.Foreign](err); ok {
			return nil, foreign
		}
		if err != nil {
			return nil, err
		}
		for _, key := range slices.SortedFunc(maps.Keys(s.servers), ir.Match.Compare) {
			if s.owned(key) {
				servers = append(servers, s.servers[key])
			}
		}
		for _, name := range rules.Sets() {
			if s.sets[name] != nil {
				sets = append(sets, name.Name(f))
			}
		}
		device = s.device
		addresses += len(s.bound)
	}
	var left []apply.Leftover
	if len(servers) > 0 {
		left = append(left, apply.Leftover{Object: some("virtual server", servers[0].Key.String(), len(servers)), Remove: removal(func(ctx context.Context, n *node) error {
			return removeServers(ctx, n, servers)
		})})
	}
	if device {
		left = append(left, apply.Leftover{Object: fmt.Sprintf("device %s with %d addresses", ir.IPVSDevice, addresses), Remove: removal(func(ctx context.Context, n *node) error {
			return n.device.remove(ctx)
		})})
	}
	if len(sets) > 0 {
		left = append(left, apply.Leftover{Object: some("ipset", sets[0], len(sets)), Remove: removal(func(ctx context.Context, n *node) error {
			return removeSets(ctx, n, sets)
		})})
	}
	return left, nil
}

// some names the first of several objects and counts the others.
func some(kind, first string, n int) string {
	s := kind + " " + first
	if n > 1 {
		s += fmt.Sprintf(" and %d more", n-1)
	}
	return s
}

// removal connects anew: who lists may have long gone when something is removed.
func removal(remove func(context.Context, *node) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, _, err := dialNode(ctx)
		if err != nil {
			return err
		}
		defer n.close()
		return remove(ctx, n)
	}
}

func removeServers(ctx context.Context, n *node, servers []*server) error {
	if n.ipvs == nil {
		return nil
	}
	requests := make([]request, len(servers))
	for i, s := range servers {
		requests[i] = request{op: removeServer, server: &s.VirtualServer}
	}
	failures, err := n.do(ctx, requests)
	errs := []error{err}
	for _, f := range failures {
		if !errors.Is(f.err, errMissing) {
			errs = append(errs, fmt.Errorf("%s: %w", servers[f.at].Key, f.err))
		}
	}
	return errors.Join(append(errs, forgetFlows(ctx, servers))...)
}

// forgetFlows deletes what connection tracking knows of UDP clients of virtual
// servers that are gone. Nobody translates their packets any longer: other rules
// look at the first of a flow alone, and a client that keeps its port would never
// get an answer again.
func forgetFlows(ctx context.Context, servers []*server) error {
	var gone ir.PerFamily[[]ir.Match]
	for _, s := range servers {
		if s.Key.Protocol == ir.UDP {
			of := gone.At(ir.FamilyOf(s.Key.Addr))
			*of = append(*of, s.Key)
		}
	}
	var errs []error
	for f, keys := range gone.All() {
		if len(keys) == 0 {
			continue
		}
		judge := conntrack.NewSelector(&ir.Program{Family: f, Node: ir.Node{Mode: ir.ModeIPVS}}, keys)
		_, err := conntrack.Clean(ctx, judge, func(found []conntrack.Stale) ([]conntrack.Stale, error) { return found, nil })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeSets removes each of several sets, whatever happens to the others.
func removeSets(ctx context.Context, n *node, sets []string) error {
	var errs []error
	for _, name := range sets {
		if err := n.sets.destroy(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
