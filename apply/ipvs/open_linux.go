package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// lowering renders the iptables part of Programs.
var lowering = iptables.Lowering{
	All:     rules.LowerRules,
	Changes: func(p *ir.Program) iptables.Lowerer { return rules.NewRulesLowerer(p) },
}

// Open checks the features of the kernel without changing anything, and opens the dataplane in the
// network namespace of the calling thread. If the mode is not supported, it returns all reasons.
func Open(ctx context.Context, o apply.Options) (*Dataplane, error) {
	n, lacks, err := dialNode(ctx)
	if err != nil {
		return nil, err
	}
	for i := range lacks {
		lacks[i] = fmt.Errorf("%w: modprobe ip_vs", lacks[i])
	}
	tables, err := iptables.OpenWith(ctx, lowering, o)
	if err != nil {
		n.close()
		return nil, errors.Join(append(lacks, err)...)
	}
	fail := func(errs ...error) (*Dataplane, error) {
		return nil, errors.Join(append(errs, tables.Close(), n.close())...)
	}
	if err := errors.Join(append(lacks, n.probe(ctx, cmp.Or(o.IPVS.Scheduler, rules.DefaultScheduler), tables)...)...); err != nil {
		return fail(err)
	}
	return newDataplane(n, tables, tables.Families(), o), nil
}

// ReadRuleset returns the state of a family in the network namespace of the calling thread, without
// iptables rules. It changes nothing.
func ReadRuleset(ctx context.Context, f ir.Family) (*rules.Ruleset, error) {
	n, lacks, err := dialNode(ctx)
	if err != nil {
		return nil, err
	}
	defer n.close()
	if len(lacks) > 0 {
		return nil, errors.Join(lacks...)
	}
	s, err := n.read(ctx, f)
	if err != nil {
		return nil, err
	}
	return s.ruleset(f), nil
}

// probe returns the missing features of the kernel. It changes nothing, but the kernel may load
// modules, as it does when they are used.
func (n *node) probe(ctx context.Context, scheduler string, tables *iptables.Dataplane) (lacks []error) {
	need := func(err error) {
		if err != nil {
			lacks = append(lacks, err)
		}
	}
	if n.ipvs != nil {
		need(n.ipvs.scheduler(ctx, scheduler))
	}
	need(n.device.probe(ctx))
	seen := map[rules.SetType]bool{}
	for _, s := range rules.Sets() {
		t := s.Type()
		if seen[t] {
			continue
		}
		seen[t] = true
		err := n.sets.hasType(ctx, t, ir.IPv4)
		if errors.Is(err, errNoSets) {
			need(fmt.Errorf("%w: modprobe ip_set", err))
			break
		}
		need(err)
	}
	for _, name := range []string{"set", "ipvs"} {
		if err := n.match(ctx, name, tables.Variant); err != nil {
			need(fmt.Errorf("iptables match %s: %w: modprobe xt_%s", name, err, name))
		}
	}
	return lacks
}

// match checks whether the kernel has an iptables match, in the same way as the tools.
func (n *node) match(ctx context.Context, name string, v iptables.Variant) error {
	if v == iptables.Legacy {
		return probeLegacyMatch(name)
	}
	const (
		subsysCompat = 11 // NFNL_SUBSYS_NFT_COMPAT
		compatName   = 1
		compatRev    = 2
		compatType   = 3 // 0 is a match
	)
	return missingMatch(n.sets.sendForOneReply(ctx, message(subsysCompat<<8, 0, []byte{unix.AF_INET, 0, 0, 0}, func(ae *netlink.AttributeEncoder) {
		ae.String(compatName, name)
		netUint32(ae, compatRev, matchRevision(name))
		netUint32(ae, compatType, 0)
	})))
}

// matchRevision returns the oldest revision of a match, which every kernel with the match has.
func matchRevision(name string) uint32 {
	if name == "set" {
		return 1
	}
	return 0
}

func missingMatch(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOPROTOOPT) {
		return errors.New("the kernel has none")
	}
	return err
}

// probeLegacyMatch checks a match of ip_tables.
func probeLegacyMatch(name string) error {
	const getRevision = 66 // IPT_SO_GET_REVISION_MATCH
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var ask [30]byte // struct xt_get_revision
	copy(ask[:29], name)
	ask[29] = byte(matchRevision(name))
	size := uint32(len(ask))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, getRevision,
		uintptr(unsafe.Pointer(&ask[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return missingMatch(errno)
	}
	return nil
}
