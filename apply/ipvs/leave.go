package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// leaving is a change to another mode, whose rules are already in force and translate new
// connections before ip_vs sees them. Only ip_vs knows its existing connections. They continue
// while their virtual server and its address on kube-ipvs0 exist.
type leaving struct {
	busy map[ir.Match]int // connections of the remaining virtual servers
}

func (l *leaving) connections() (all int) {
	for _, n := range l.busy {
		all += n
	}
	return all
}

// draining reports whether a virtual server receives no new connections, since it was left for
// existing ones.
func (v *server) draining() bool {
	for _, d := range v.dests {
		if d.weight > 0 {
			return false
		}
	}
	return len(v.dests) > 0
}

// ease removes the virtual servers without connections. It sets the weights of the others to 0,
// which marks them as eased. UDP has no connections to wait for: after its flow is deleted, the
// next packet of a client uses the new rules.
func (l *leaving) ease(ctx context.Context, k kernel, servers []*server) (connections int, err error) {
	var requests []request
	for _, v := range servers {
		f := ir.FamilyOf(v.Key.Addr)
		current, err := k.dests(ctx, v.Key)
		if err != nil {
			return 0, err
		}
		conns := 0
		for _, d := range current {
			conns += int(d.conns)
		}
		if conns == 0 || v.Key.Protocol == ir.UDP {
			requests = append(requests, request{op: removeServer, family: f, server: &v.VirtualServer})
			delete(l.busy, v.Key)
			continue
		}
		ir.SetIn(&l.busy, v.Key, conns)
		connections += conns
		for _, to := range slices.SortedFunc(maps.Keys(current), netip.AddrPort.Compare) {
			if current[to].weight > 0 {
				requests = append(requests, request{op: setDest, family: f, server: &v.VirtualServer, dest: &rules.RealServer{AddrPort: to}})
			}
		}
	}
	return connections, doAll(ctx, k, requests)
}

// unbind removes the addresses without remaining virtual servers.
func (l *leaving) unbind(ctx context.Context, k kernel, bound []netip.Addr) error {
	needed := map[netip.Addr]bool{}
	for key := range l.busy {
		needed[key.Addr] = true
	}
	var requests []request
	for _, a := range bound {
		if !needed[a] {
			requests = append(requests, request{op: removeAddress, family: ir.FamilyOf(a),
				element: &rules.Element{ElementKey: rules.ElementKey{Set: rules.IPVSIPs, Addr: a}}})
		}
	}
	return doAll(ctx, k, requests)
}

// doAll executes requests. Objects that do not exist count as removed.
func doAll(ctx context.Context, k kernel, requests []request) error {
	failures, err := k.do(ctx, requests)
	errs := []error{err}
	for _, f := range failures {
		if !errors.Is(f.err, errMissing) {
			errs = append(errs, fmt.Errorf("%s: %w", requests[f.at].object(), f.err))
		}
	}
	return errors.Join(errs...)
}
