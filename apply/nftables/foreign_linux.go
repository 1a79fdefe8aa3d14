package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Interference lists the base chains of others that may drop what ours would let
// pass, by their policy, by a rule, or by one in a chain or a verdict map that they
// lead to; and those before ours that may keep packets from them, or clear the mark that
// asks for masquerade. Chains named KUBE-, which the kubelet makes on every node, or proxyc
// in mode iptables, do not count.
func Interference(ctx context.Context, mark uint32) (all apply.Interference, err error) {
	c, err := conn.Dial(0)
	if err != nil {
		return all, err
	}
	defer c.Close()
	for _, f := range servedFamilies {
		if err := interference(ctx, c, f, mark, &all); err != nil {
			return apply.Interference{}, err
		}
	}
	return all, nil
}

// servedFamily is a family of tables, by its number in the kernel and by nft's word.
type servedFamily struct {
	number byte
	word   string
}

// servedFamilies are those whose chains see packets to Services.
var servedFamilies = [...]servedFamily{
	{unix.NFPROTO_NETDEV, "netdev"}, {unix.NFPROTO_INET, "inet"}, {unix.NFPROTO_IPV4, ir.IPv4.NFT()}, {unix.NFPROTO_IPV6, ir.IPv6.NFT()},
}

// chainKey names a chain within a family.
type chainKey struct{ table, chain string }

// A foreignRule is one rule, or all elements of the verdict map that it looks up.
type foreignRule struct {
	apply.RuleEffect
	vmap string
}

func interference(ctx context.Context, c *conn.Conn, f servedFamily, mark uint32, all *apply.Interference) error {
	ours := func(table string) bool { return table == rules.Table || table == kubeProxyTable }
	dormant := map[string]bool{}
	if _, err := c.Dump(ctx, unix.NFT_MSG_GETTABLE, f.number, nil, func(b []byte) error {
		a, err := codec.Parse(b)
		dormant[a.Text(unix.NFTA_TABLE_NAME)] = a.Uint32(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		return err
	}); err != nil {
		return err
	}
	bases := map[chainKey]*rules.Base{}
	if _, err := c.Dump(ctx, unix.NFT_MSG_GETCHAIN, f.number, nil, func(b []byte) error {
		a, err := codec.Parse(b)
		if err != nil {
			return err
		}
		table := a.Text(unix.NFTA_CHAIN_TABLE)
		ch, _, err := codec.DecodeChain(b)
		if err == nil && ch.Base != nil && !ours(table) && !dormant[table] {
			bases[chainKey{table, ch.Name}] = ch.Base
		}
		return err
	}); err != nil || len(bases) == 0 {
		return err
	}
	chains := map[chainKey][]foreignRule{}
	if _, err := c.Dump(ctx, unix.NFT_MSG_GETRULE, f.number, nil, func(b []byte) error {
		a, err := codec.Parse(b)
		if err != nil {
			return err
		}
		k := chainKey{a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN)}
		if ours(k.table) || strings.HasPrefix(k.chain, "KUBE-") {
			return nil
		}
		if code, err := codec.Instructions(a[unix.NFTA_RULE_EXPRESSIONS]); err == nil {
			chains[k] = append(chains[k], effectsOf(code)...)
		}
		return nil
	}); err != nil {
		return err
	}
	var drops, diverts []string
	for k, base := range bases {
		hook := "ingress"
		if f.number != unix.NFPROTO_NETDEV && base.Unsupported != "another hook" {
			hook = base.Hook.String()
		}
		told := func(why string) string {
			return fmt.Sprintf("%s %s chain %s, hook %s, priority %d: %s", f.word, k.table, k.chain, hook, base.Priority, why)
		}
		rulesOf := func(chain string) ([]apply.RuleEffect, error) {
			return resolve(ctx, c, f.number, k.table, chains, chain)
		}
		if base.Drop {
			drops = append(drops, told("policy drop"))
		} else if in, does, err := apply.FindRule(k.chain, rulesOf, apply.RuleEffect.Drops); err != nil {
			return err
		} else if does != "" {
			drops = append(drops, told(does+" in chain "+in))
		}
		if beforeTranslation(base) {
			if in, does, err := apply.FindDiversion(k.chain, rulesOf); err != nil {
				return err
			} else if does != "" {
				diverts = append(diverts, told(does+" in chain "+in))
			}
		}
		if afterMark(base) {
			if in, err := apply.FindUnmark(k.chain, mark, rulesOf); err != nil {
				return err
			} else if in != "" {
				diverts = append(diverts, told(apply.Unmark(mark, in)))
			}
		}
	}
	slices.Sort(drops)
	slices.Sort(diverts)
	all.Drops, all.Diverts = append(all.Drops, drops...), append(all.Diverts, diverts...)
	return nil
}

// beforeTranslation reports whether a base chain sees packets at a hook where ours translate
// destinations, and no later than these.
func beforeTranslation(b *rules.Base) bool {
	ours, ok := translationPriority(b)
	return ok && b.Hook != rules.Postrouting && b.Priority <= ours
}

// afterMark reports whether a base chain sees packets behind ours that mark what is to be
// masqueraded, and no later than the one that does.
func afterMark(b *rules.Base) bool {
	ours, ok := translationPriority(b)
	switch {
	case ok && b.Hook == rules.Postrouting:
		return b.Priority <= ours
	case ok:
		return b.Priority > ours
	}
	return b.Unsupported != "another hook" && b.Hook == rules.Forward
}

// translationPriority returns the priority of our chain that translates addresses at the hook of
// another one; false: there is none.
func translationPriority(b *rules.Base) (priority int, ok bool) {
	if b.Unsupported == "another hook" {
		return 0, false
	}
	for _, ch := range rules.Fixed(&ir.Node{}, ir.IPv4).Chains {
		if ch.Base != nil && ch.Base.NAT && ch.Base.Hook == b.Hook {
			return ch.Base.Priority, true
		}
	}
	return 0, false
}

// effectsOf returns what a rule does.
func effectsOf(code []codec.Instruction) (out []foreignRule) {
	add := func(does string) { out = append(out, foreignRule{RuleEffect: apply.RuleEffect{Does: does}}) }
	for i, c := range code {
		switch c.Name {
		case "meta":
			if c.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_MARK && c.Fields[unix.NFTA_META_SREG] != nil {
				out = append(out, foreignRule{RuleEffect: apply.RuleEffect{Does: "meta mark set", Clears: clearedBy(code[:i])}})
			}
		case "reject", "tproxy", "notrack":
			add(c.Name)
		case "redir":
			add("redirect")
		case "nat":
			if c.Uint32(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
				add("dnat")
			}
		case "target": // of iptables-nft
			name := c.Text(unix.NFTA_TARGET_NAME)
			if info := c.Fields[unix.NFTA_TARGET_INFO]; name == "CT" && len(info) >= 2 && binary.NativeEndian.Uint16(info)&ctNotrack != 0 {
				name = "NOTRACK"
			}
			out = append(out, foreignRule{RuleEffect: apply.RuleEffect{Does: name, Clears: clearedByTarget(name, c.Uint32(unix.NFTA_TARGET_REV), c.Fields[unix.NFTA_TARGET_INFO])}})
		case "immediate":
			if e, ok := verdictEffect(c.Fields[unix.NFTA_IMMEDIATE_DATA]); ok {
				out = append(out, foreignRule{RuleEffect: e})
			}
		case "lookup":
			if c.Fields[unix.NFTA_LOOKUP_DREG] != nil && c.Uint32(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT {
				out = append(out, foreignRule{vmap: c.Text(unix.NFTA_LOOKUP_SET)})
			}
		}
	}
	return out
}

// clearedBy returns the bits of the mark that a packet may lack when it is set to what
// instructions made: to a number, or to itself with bits taken away and turned. All, where
// that is not known.
func clearedBy(code []codec.Instruction) uint32 {
	last := func(back int, name string) (c codec.Instruction, ok bool) {
		if len(code) < back || code[len(code)-back].Name != name {
			return c, false
		}
		return code[len(code)-back], true
	}
	number := func(b []byte) (uint32, bool) {
		v, err := codec.Value(b)
		if err != nil || len(v) != 4 {
			return 0, false
		}
		return binary.NativeEndian.Uint32(v), true
	}
	if c, ok := last(1, "immediate"); ok {
		if set, ok := number(c.Fields[unix.NFTA_IMMEDIATE_DATA]); ok {
			return ^set
		}
	}
	c, isBitwise := last(1, "bitwise")
	load, isMeta := last(2, "meta")
	if isBitwise && isMeta && load.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_MARK {
		and, ok1 := number(c.Fields[unix.NFTA_BITWISE_MASK])
		xor, ok2 := number(c.Fields[unix.NFTA_BITWISE_XOR])
		if ok1 && ok2 {
			return ^(and ^ xor)
		}
	}
	return ^uint32(0)
}

// clearedByTarget is clearedBy for a target of iptables with what it is told: struct
// xt_mark_tginfo2 (linux/netfilter/xt_mark.h), xt_connmark_tginfo1 and 2 (xt_connmark.h).
func clearedByTarget(name string, revision uint32, info []byte) uint32 {
	number := func(i int) uint32 { return binary.NativeEndian.Uint32(info[4*i:]) }
	const restore = 2                              // XT_CONNMARK_RESTORE
	mode := map[uint32]int{1: 12, 2: 14}[revision] // where CONNMARK has it
	switch {
	case name == "MARK" && revision == 2 && len(info) >= 8:
		set, mask := number(0), number(1)
		return mask ^ set // (mark and not mask) xor set
	case name == "CONNMARK" && mode > 0 && len(info) > mode && info[mode] == restore:
		return number(1) | number(2)
	}
	return 0
}

// ctNotrack is XT_CT_NOTRACK of struct xt_ct_target_info (linux/netfilter/xt_CT.h).
const ctNotrack = 1

// verdictEffect returns what a verdict does; false: the data is a value.
func verdictEffect(b []byte) (apply.RuleEffect, bool) {
	data, err := codec.Parse(b)
	if err != nil || data[unix.NFTA_DATA_VERDICT] == nil {
		return apply.RuleEffect{}, false
	}
	switch v, err := codec.DecodeVerdict(b); {
	case err != nil:
		return apply.RuleEffect{}, false
	case v.Kind == rules.Drop:
		return apply.RuleEffect{Does: "drop"}, true
	case v.Kind == rules.Accept:
		return apply.RuleEffect{Does: "accept"}, true
	default:
		return apply.RuleEffect{To: v.Chain}, v.Chain != ""
	}
}

// resolve returns what the rules of a chain do, those of verdict maps included, which
// are read once.
func resolve(ctx context.Context, c *conn.Conn, family byte, table string, chains map[chainKey][]foreignRule, chain string) (out []apply.RuleEffect, err error) {
	k := chainKey{table, chain}
	if slices.ContainsFunc(chains[k], func(r foreignRule) bool { return r.vmap != "" }) {
		var read []foreignRule
		for _, r := range chains[k] {
			if r.vmap == "" {
				read = append(read, r)
			} else if err := mapVerdicts(ctx, c, family, table, r.vmap, func(e apply.RuleEffect) { read = append(read, foreignRule{RuleEffect: e}) }); err != nil {
				return nil, err
			}
		}
		chains[k] = read
	}
	for _, r := range chains[k] {
		out = append(out, r.RuleEffect)
	}
	return out, nil
}

// mapVerdicts gives what the verdicts of a map do.
func mapVerdicts(ctx context.Context, c *conn.Conn, family byte, table, name string, add func(apply.RuleEffect)) error {
	query := codec.Encode(func(b *codec.Builder) {
		b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		b.Text(unix.NFTA_SET_ELEM_LIST_SET, name)
	})
	_, err := c.Dump(ctx, unix.NFT_MSG_GETSETELEM, family, query, func(b []byte) error {
		items, err := codec.ElementList(b)
		for _, item := range items {
			if e, err := codec.Parse(item.Data); err == nil && e[unix.NFTA_SET_ELEM_DATA] != nil {
				if effect, ok := verdictEffect(e[unix.NFTA_SET_ELEM_DATA]); ok {
					add(effect)
				}
			}
		}
		return err
	})
	return err
}
