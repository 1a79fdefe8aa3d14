package nftables

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// MayDrop lists the base chains of others that see packets before the last of
// ours at the same hook does, and may drop what ours would let pass: by their
// policy, by a rule, or by one in a chain or a verdict map that they lead to.
// They are their owners' business: nobody removes them. Chains named KUBE-,
// which the kubelet makes on every node, or proxyc in mode iptables, do not count.
func MayDrop(ctx context.Context) ([]string, error) {
	c, err := dial(0)
	if err != nil {
		return nil, err
	}
	defer c.nl.Close()
	var all []string
	for _, f := range droppingFamilies {
		found, err := c.mayDrop(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// droppingFamilies are those whose chains see packets to Services.
var droppingFamilies = [...]struct {
	number byte
	word   string
}{
	{unix.NFPROTO_NETDEV, "netdev"}, {unix.NFPROTO_INET, "inet"}, {unix.NFPROTO_IPV4, ir.IPv4.NFT()}, {unix.NFPROTO_IPV6, ir.IPv6.NFT()},
}

// chainKey names a chain within a family.
type chainKey struct{ table, chain string }

// leads is what the rules of a chain do.
type leads struct {
	apply.ChainEffect
	maps []string // of verdicts
}

func (c *conn) mayDrop(ctx context.Context, f struct {
	number byte
	word   string
}) ([]string, error) {
	ours := func(table string) bool { return table == rules.Table || table == kubeProxyTable }
	dormant := map[string]bool{}
	if _, err := c.dump(ctx, unix.NFT_MSG_GETTABLE, f.number, nil, func(b []byte) error {
		a, err := parse(b)
		dormant[a.text(unix.NFTA_TABLE_NAME)] = a.u32(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		return err
	}); err != nil {
		return nil, err
	}
	bases := map[chainKey]*rules.Base{}
	if _, err := c.dump(ctx, unix.NFT_MSG_GETCHAIN, f.number, nil, func(b []byte) error {
		a, err := parse(b)
		if err != nil {
			return err
		}
		table := a.text(unix.NFTA_CHAIN_TABLE)
		ch, _, err := decodeChain(b)
		if err == nil && ch.Base != nil && !ours(table) && !dormant[table] && (f.number == unix.NFPROTO_NETDEV || early(ch.Base)) {
			bases[chainKey{table, ch.Name}] = ch.Base
		}
		return err
	}); err != nil || len(bases) == 0 {
		return nil, err
	}
	chains := map[chainKey]*leads{}
	if _, err := c.dump(ctx, unix.NFT_MSG_GETRULE, f.number, nil, func(b []byte) error {
		a, err := parse(b)
		if err != nil {
			return err
		}
		k := chainKey{a.text(unix.NFTA_RULE_TABLE), a.text(unix.NFTA_RULE_CHAIN)}
		if ours(k.table) || strings.HasPrefix(k.chain, "KUBE-") {
			return nil
		}
		if chains[k] == nil {
			chains[k] = &leads{}
		}
		if code, err := instructions(a[unix.NFTA_RULE_EXPRESSIONS]); err == nil {
			chains[k].rule(code)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var all []string
	for k, base := range bases {
		why := ""
		if base.Drop {
			why = "policy drop"
		} else if in, drops, err := c.drops(ctx, f.number, k, chains); err != nil {
			return nil, err
		} else if drops != "" {
			why = drops + " in chain " + in
		}
		if why != "" {
			hook := "ingress"
			if f.number != unix.NFPROTO_NETDEV && base.Unsupported != "another hook" {
				hook = base.Hook.String()
			}
			all = append(all, fmt.Sprintf("%s %s chain %s, hook %s, priority %d: %s", f.word, k.table, k.chain, hook, base.Priority, why))
		}
	}
	slices.Sort(all)
	return all, nil
}

// early reports whether a chain sees packets before the last of ours at its hook.
func early(b *rules.Base) bool {
	if b.Unsupported == "another hook" {
		return true
	}
	last := math.MinInt
	for _, ch := range rules.Fixed(&ir.Node{}, ir.IPv4).Chains {
		if ch.Base != nil && ch.Base.Hook == b.Hook {
			last = max(last, ch.Base.Priority)
		}
	}
	return b.Priority <= last
}

// rule adds what a rule does.
func (l *leads) rule(code []instruction) {
	for _, c := range code {
		switch c.name {
		case "reject":
			l.Drops = "reject"
		case "target": // of iptables-nft
			if c.text(unix.NFTA_TARGET_NAME) == "REJECT" {
				l.Drops = "reject"
			}
		case "immediate":
			l.verdict(c.fields[unix.NFTA_IMMEDIATE_DATA])
		case "lookup":
			if c.fields[unix.NFTA_LOOKUP_DREG] != nil && c.u32(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT {
				l.maps = append(l.maps, c.text(unix.NFTA_LOOKUP_SET))
			}
		}
	}
}

// verdict adds what a verdict does.
func (l *leads) verdict(b []byte) {
	data, err := parse(b)
	if err != nil || data[unix.NFTA_DATA_VERDICT] == nil {
		return // a value
	}
	switch v, err := decodeVerdict(b); {
	case err != nil:
	case v.Kind == rules.Drop:
		l.Drops = "drop"
	case v.Chain != "":
		l.To = append(l.To, v.Chain)
	}
}

// drops returns in which chain, of those that a base chain leads to, packets are
// dropped or rejected first.
func (c *conn) drops(ctx context.Context, family byte, base chainKey, chains map[chainKey]*leads) (in, what string, err error) {
	return apply.FindDrop(base.chain, func(chain string) (*apply.ChainEffect, error) {
		l := chains[chainKey{base.table, chain}]
		if l == nil {
			return nil, nil
		}
		for _, name := range l.maps {
			if err := c.mapVerdicts(ctx, family, base.table, name, l); err != nil {
				return nil, err
			}
		}
		l.maps = nil
		return &l.ChainEffect, nil
	})
}

// mapVerdicts adds the verdicts of a map.
func (c *conn) mapVerdicts(ctx context.Context, family byte, table, name string, l *leads) error {
	query := encode(func(b *builder) {
		b.text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		b.text(unix.NFTA_SET_ELEM_LIST_SET, name)
	})
	_, err := c.dump(ctx, unix.NFT_MSG_GETSETELEM, family, query, func(b []byte) error {
		items, err := elementList(b)
		for _, item := range items {
			if e, err := parse(item.data); err == nil && e[unix.NFTA_SET_ELEM_DATA] != nil {
				l.verdict(e[unix.NFTA_SET_ELEM_DATA])
			}
		}
		return err
	})
	return err
}
