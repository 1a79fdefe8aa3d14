package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// node is the kernel of one network namespace.
type node struct {
	ipvs   *genl // nil if the kernel lacks ip_vs
	sets   ipset
	device device
}

// dialNode connects to the kernel in the network namespace of the calling thread. lacks contains
// the missing features.
func dialNode(ctx context.Context) (n *node, lacks []error, err error) {
	n = &node{}
	if n.ipvs, err = dialIPVS(ctx); errors.Is(err, errNoIPVS) {
		lacks, err = append(lacks, err), nil
	}
	if err == nil {
		n.sets.client, err = dial(unix.NETLINK_NETFILTER)
	}
	if err == nil {
		n.device.client, err = dial(unix.NETLINK_ROUTE)
	}
	if err != nil {
		n.close()
		return nil, nil, err
	}
	return n, lacks, nil
}

func (n *node) close() error {
	var err error
	if n.ipvs != nil {
		err = n.ipvs.close()
	}
	return errors.Join(err, n.sets.close(), n.device.close())
}

// read reads the state of a family. Features that the kernel lacks count as empty.
func (n *node) read(ctx context.Context, f ir.Family) (*state, error) {
	s := newState()
	for _, name := range rules.Sets() {
		switch found, err := n.sets.read(ctx, name, f); {
		case err == errNoSets:
		case err != nil:
			return nil, err
		case found != nil:
			s.sets[name] = found
		}
	}
	index, err := n.device.index(ctx)
	if err != nil {
		return nil, err
	}
	s.device = index != 0
	if s.bound, s.local, err = n.device.addresses(ctx, f, index); err != nil {
		return nil, err
	}
	if n.ipvs == nil {
		return s, nil
	}
	if s.times, err = n.ipvs.timeouts(ctx); err != nil {
		return nil, err
	}
	servers, err := n.ipvs.servers(ctx, f)
	if err != nil {
		return nil, err
	}
	for _, v := range servers {
		if v.dests, err = n.ipvs.dests(ctx, v.Key); err != nil {
			return nil, err
		}
		s.servers[v.Key] = v
	}
	return s, nil
}

func (n *node) dests(ctx context.Context, key ir.Match) (map[netip.AddrPort]dest, error) {
	return n.ipvs.dests(ctx, key)
}

func (n *node) counted(ctx context.Context, f ir.Family) (all []apply.Value[ir.Match], err error) {
	servers, err := n.ipvs.servers(ctx, f)
	for _, v := range servers {
		all = append(all, apply.Value[ir.Match]{ID: v.Key, Count: v.conns})
	}
	return all, err
}

// do executes requests. Consecutive requests to the same part of the kernel are sent together.
func (n *node) do(ctx context.Context, requests []request) (failures []failure, err error) {
	for from := 0; from < len(requests); {
		to := from + 1
		for to < len(requests) && subsystemOf(&requests[to]) == subsystemOf(&requests[from]) {
			to++
		}
		some := requests[from:to]
		fail := func(i int, err error) { failures = append(failures, failure{from + i, translateError(&some[i], err)}) }
		if err := n.doSubsystem(ctx, some, fail); err != nil {
			return failures, err
		}
		from = to
	}
	return failures, nil
}

// Parts of the kernel.
const (
	subsystemSets = iota
	subsystemGrow
	subsystemServers
	subsystemDevice
	subsystemAddresses
)

func subsystemOf(r *request) int {
	switch r.op {
	case makeSet, addElement, removeElement:
		return subsystemSets
	case growSet:
		return subsystemGrow
	case makeDevice:
		return subsystemDevice
	case addAddress, removeAddress:
		return subsystemAddresses
	}
	return subsystemServers
}

func (n *node) doSubsystem(ctx context.Context, requests []request, fail func(int, error)) error {
	switch subsystemOf(&requests[0]) {
	case subsystemSets:
		return n.sets.sendAll(ctx, len(requests), func(i int) netlink.Message { return n.sets.request(&requests[i]) }, fail)
	case subsystemServers:
		return n.ipvs.sendAll(ctx, len(requests), func(i int) netlink.Message { return n.ipvs.request(&requests[i]) }, fail)
	case subsystemAddresses:
		return n.addresses(ctx, requests, fail)
	}
	for i := range requests { // rare, so one by one
		var err error
		if requests[i].op == growSet {
			err = n.sets.grow(ctx, &requests[i])
		} else {
			err = n.device.create(ctx)
		}
		if err != nil {
			fail(i, err)
		}
	}
	return nil
}

func (n *node) addresses(ctx context.Context, requests []request, fail func(int, error)) error {
	index, err := n.device.index(ctx)
	if err != nil {
		return err
	}
	if index == 0 {
		for i := range requests {
			fail(i, unix.ENODEV)
		}
		return nil
	}
	return n.device.sendAll(ctx, len(requests), func(i int) netlink.Message {
		kind, flags := uint16(unix.RTM_NEWADDR), uint16(unix.NLM_F_CREATE|unix.NLM_F_EXCL)
		if requests[i].op == removeAddress {
			kind, flags = unix.RTM_DELADDR, 0
		}
		return boundAddress(kind, flags, index, requests[i].element.Addr)
	}, fail)
}

// translateError translates a kernel error for classify, with a description if the error itself has
// none.
func translateError(r *request, err error) error {
	switch {
	case errors.Is(err, unix.EEXIST), errors.Is(err, errElementThere):
		return errExists
	case errors.Is(err, unix.ENOENT) && (r.op == addServer || r.op == setServer):
		return fmt.Errorf("scheduler %s: the kernel has none", r.server.Scheduler) // a missing virtual server is ESRCH
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EADDRNOTAVAIL):
		return errMissing
	case errors.Is(err, errSetFull):
		return fmt.Errorf("%w: the set is full", errEnvironment)
	case errors.Is(err, errSetType):
		return fmt.Errorf("%w: no type %s", errEnvironment, r.set.Type())
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOPROTOOPT):
		return fmt.Errorf("%w: %w", errEnvironment, err)
	}
	return err
}
