package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// Leftovers returns the existing objects in the order of removal. ipsets can only be removed after
// the iptables rules that use them. A kernel without ip_vs or ip_set has no leftovers.
func Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	n, _, err := dialNode(ctx)
	if err != nil {
		return nil, err
	}
	defer n.close()
	var serving, eased []*server
	var sets []string
	device, bound := false, []netip.Addr(nil)
	for _, f := range ir.Families() {
		s, err := n.read(ctx, f)
		if foreign, ok := errors.AsType[*apply.Foreign](err); ok {
			return nil, foreign
		}
		if err != nil {
			return nil, err
		}
		for _, key := range slices.SortedFunc(maps.Keys(s.servers), ir.Match.Compare) {
			switch v := s.servers[key]; {
			case !s.owned(key):
			case v.draining():
				eased = append(eased, v)
			default:
				serving = append(serving, v)
			}
		}
		for _, name := range rules.Sets() {
			if s.sets[name] != nil {
				sets = append(sets, name.Name(f))
			}
		}
		device = s.device
		bound = slices.AppendSeq(bound, maps.Keys(s.bound))
	}
	var left []apply.Leftover
	leave := leaving{}
	for _, servers := range [][]*server{serving, eased} {
		if len(servers) > 0 {
			left = append(left, apply.Leftover{
				Object: summary("virtual server", servers[0].Key.String(), len(servers)),
				Remove: withNode(func(ctx context.Context, n *node) error { return removeServers(ctx, n, servers) }),
				Ease:   easing(func(ctx context.Context, n *node) (int, error) { return leave.servers(ctx, n, servers) }),
				Eased:  servers[0].draining(),
			})
		}
	}
	if device {
		left = append(left, apply.Leftover{
			Object: fmt.Sprintf("device %s with %d addresses", ir.IPVSDevice, len(bound)),
			Remove: withNode(func(ctx context.Context, n *node) error { return n.device.remove(ctx) }),
			Ease: easing(func(ctx context.Context, n *node) (int, error) {
				if len(leave.busy) == 0 {
					return 0, n.device.remove(ctx)
				}
				return leave.connections(), leave.unbind(ctx, n, bound)
			}),
			Eased: len(eased) > 0,
		})
	}
	if len(sets) > 0 {
		left = append(left, apply.Leftover{
			Object: summary("ipset", sets[0], len(sets)),
			Remove: withNode(func(ctx context.Context, n *node) error { return removeSets(ctx, n, sets) }),
			Ease: easing(func(ctx context.Context, n *node) (int, error) {
				if len(leave.busy) == 0 {
					return 0, removeSets(ctx, n, sets)
				}
				return leave.connections(), nil // they identify virtual servers on the node's own addresses as ours
			}),
			Eased: len(eased) > 0,
		})
	}
	return left, nil
}

// summary returns the first of several objects, and the number of others.
func summary(kind, first string, n int) string {
	s := kind + " " + first
	if n > 1 {
		s += fmt.Sprintf(" and %d more", n-1)
	}
	return s
}

// withNode connects again, since the caller may have closed the listing connection by then.
func withNode(remove func(context.Context, *node) error) func(context.Context) error {
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

func easing(ease func(context.Context, *node) (int, error)) func(context.Context) (connections int, err error) {
	return func(ctx context.Context) (connections int, err error) {
		err = withNode(func(ctx context.Context, n *node) (err error) {
			connections, err = ease(ctx, n)
			return err
		})(ctx)
		return connections, err
	}
}

// servers eases virtual servers. It deletes UDP flows first: the next packets then use the new
// rules, while pending replies are still translated back.
func (l *leaving) servers(ctx context.Context, n *node, servers []*server) (connections int, err error) {
	if n.ipvs == nil {
		return 0, nil
	}
	err = deleteFlows(ctx, servers)
	connections, easeErr := l.ease(ctx, n, servers)
	return connections, errors.Join(err, easeErr)
}

func removeServers(ctx context.Context, n *node, servers []*server) error {
	if n.ipvs == nil {
		return nil
	}
	requests := make([]request, len(servers))
	for i, s := range servers {
		requests[i] = request{op: removeServer, server: &s.VirtualServer}
	}
	return errors.Join(doAll(ctx, n, requests), deleteFlows(ctx, servers))
}

// deleteFlows deletes the connection tracking entries of UDP clients of removed virtual servers.
// Nothing translates their packets any more: other rules see only the first packet of a flow. A
// client that keeps its port would never receive a reply again.
func deleteFlows(ctx context.Context, servers []*server) error {
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

// removeSets removes sets. It continues after errors.
func removeSets(ctx context.Context, n *node, sets []string) error {
	var errs []error
	for _, name := range sets {
		if err := n.sets.destroy(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
