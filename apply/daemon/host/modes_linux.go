package host

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/apply/ipvs"
	"github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/apply/nftables/flowtable"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

var errNotLinux error

// modes contains all modes, in the order of removing their leftovers.
var modes = [...]Mode{
	{
		mode: ir.ModeNFTables, Separate: true,
		open:      func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return nftables.Open(ctx, o) },
		leftovers: func(ctx context.Context, _ bool) ([]apply.Leftover, error) { return nftables.Leftovers(ctx, false) },
	},
	{
		mode: ir.ModeIPTables,
		open: func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return iptables.Open(ctx, o) },
		leftovers: func(ctx context.Context, readOnly bool) ([]apply.Leftover, error) {
			return iptables.Leftovers(ctx, nil, readOnly)
		},
	},
	{
		// The kernel sends no notifications for virtual servers and sets.
		mode: ir.ModeIPVS, within: ir.ModeIPTables, CompareEvery: time.Minute,
		open:      func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return ipvs.Open(ctx, o) },
		leftovers: func(ctx context.Context, _ bool) ([]apply.Leftover, error) { return ipvs.Leftovers(ctx) },
		Events: []watch.Event{{Warning: true, Reason: "IPVSDeprecation", Action: "StartKubeProxy",
			Note: "The ipvs proxier has been deprecated and will be disabled by default in Kubernetes 1.40 and removed in Kubernetes 1.43. Migrate to the 'nftables' proxier instead."}},
	},
	{
		mode: ir.ModeUserspace, within: ir.ModeIPTables,
		open: func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return userspace.Open(ctx, o) },
	},
}

// Interference returns what affects packets to Services besides our rules: foreign rules, including
// those of iptables-legacy if it has tables, kernel settings and routes. mark is the masquerade mark. A
// family matters if the Programs have endpoints of it, unless the node has only addresses of the other.
func Interference(ctx context.Context, mark uint32, programs ir.Programs) (apply.Interference, error) {
	all, err := nftables.Interference(ctx, mark)
	chains, chainsErr := iptables.Interference(ctx, mark)
	all.Drops, all.Diverts, all.Sources = append(all.Drops, chains.Drops...), append(all.Diverts, chains.Diverts...), append(all.Sources, chains.Sources...)
	all.Marks = append(all.Marks, chains.Marks...)
	err = errors.Join(err, chainsErr)
	if _, _, full := sysctl.Tracked(Root); full != "" {
		all.Settings = append(all.Settings, full)
	}
	has := func(p *ir.Program) bool {
		return p != nil && slices.ContainsFunc(p.Node.Addrs, netip.Addr.IsGlobalUnicast)
	}
	serves := func(p *ir.Program) bool {
		return p != nil && slices.ContainsFunc(p.Services, func(s ir.Service) bool { return len(s.Frontends) > 0 })
	}
	for f, p := range ir.Present(programs) {
		if !serves(p) && (serves(programs.IPv4) || serves(programs.IPv6)) {
			all.Ignore(f)
		}
		if !has(p) && (has(programs.IPv4) || has(programs.IPv6)) || !slices.ContainsFunc(p.Services, func(s ir.Service) bool { return len(s.Pools) > 0 }) {
			continue
		}
		if _, problem := sysctl.Forwarding(Root, f); problem != "" {
			all.Settings = append(all.Settings, problem)
		}
		discards, discardsErr := node.Discards(ctx, p, all.Marking)
		all.Settings, err = append(all.Settings, discards...), errors.Join(err, discardsErr)
	}
	return all, err
}

// RuleCounts returns the number of rules of each iptables variant.
func RuleCounts(ctx context.Context) (map[string]int, error) {
	return iptables.RuleCounts(ctx)
}

// FastpathBridges returns the bridges in the fast path of mode nftables.
func FastpathBridges() ([]string, error) { return flowtable.Bridges() }

// Kept returns what the removal of all leftovers keeps, and for whom.
func Kept(ctx context.Context) ([]string, error) { return iptables.Kept(ctx) }

// errNoPeer prevents the removal of the only rules of a node.
var errNoPeer = errors.New("--keep-kube-proxy: kube-proxy has written no rules, so none would remain: start it first")

// OwnLeftovers returns what proxyc left on a node that kube-proxy manages again; known reports whether
// kube-proxy's own objects were found. In mode ipvs kube-proxy creates only objects that proxyc
// creates, too. Existing ones are then in use, and include the chains that mode iptables would
// leave.
func OwnLeftovers(ctx context.Context, known, readOnly bool) ([]apply.Leftover, error) {
	tables, err := nftables.Leftovers(ctx, false)
	if !known {
		servers, serversErr := ipvs.Leftovers(ctx)
		servers = slices.DeleteFunc(servers, func(l apply.Leftover) bool { return l.Eased }) // eased by proxyc
		if err == nil && serversErr == nil && len(servers) == 0 {
			err = errNoPeer
		}
		return tables, errors.Join(err, serversErr)
	}
	chains, chainsErr := iptables.OwnLeftovers(ctx, readOnly)
	ours := slices.DeleteFunc(append(tables, chains...), func(l apply.Leftover) bool { return l.KubeProxy })
	return ours, errors.Join(err, chainsErr)
}

// lockDir contains the lock files of the node's network namespaces. Only root may access it. A pod
// has to mount the node's directory.
const lockDir = "/run/proxyc"

// Interfaces returns the network interfaces, ordered by name.
func Interfaces() ([]compiler.Interface, error) { return node.Interfaces() }

// Facts adds nothing on Linux.
func Facts(*config.Config, *compiler.Facts) error { return nil }
