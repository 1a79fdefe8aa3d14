package nftables

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Interference returns the effects of foreign base chains on packets to Services. It ignores chains
// named KUBE-, which the kubelet, kube-proxy or proxyc in mode iptables creates.
func Interference(ctx context.Context, mark uint32) (all apply.Interference, err error) {
	c, err := conn.Dial(0)
	if err != nil {
		return all, err
	}
	defer c.Close()
	for _, f := range foreignFamilies {
		t := &foreignTables{c: c, family: f.number, bases: map[chainKey]*rules.Base{}, rules: map[chainKey][]foreignRule{}}
		err := t.read(ctx)
		for _, k := range slices.SortedFunc(maps.Keys(t.bases), chainKey.compare) {
			if err == nil {
				err = all.Add(t.chain(ctx, f.name, k), mark)
			}
		}
		if err != nil {
			return apply.Interference{}, err
		}
	}
	return all, nil
}

// foreignFamilies are the families of tables whose chains packets to Services may pass.
var foreignFamilies = [...]struct {
	number byte
	name   string
}{
	{unix.NFPROTO_NETDEV, "netdev"}, {unix.NFPROTO_BRIDGE, "bridge"}, {unix.NFPROTO_INET, "inet"},
	{unix.NFPROTO_IPV4, ir.IPv4.NFT()}, {unix.NFPROTO_IPV6, ir.IPv6.NFT()},
}

// foreignTables are the foreign tables of one family.
type foreignTables struct {
	c      *conn.Conn
	family byte
	bases  map[chainKey]*rules.Base // of tables that are not dormant
	rules  map[chainKey][]foreignRule
}

// chainKey identifies a chain within a family.
type chainKey struct{ table, chain string }

func (k chainKey) compare(o chainKey) int {
	return cmp.Or(strings.Compare(k.table, o.table), strings.Compare(k.chain, o.chain))
}

// foreignRule is an effect of a rule, or the verdict map that it looks up.
type foreignRule struct {
	apply.RuleEffect
	vmap string
}

// read lists base chains and rules. It lists rules only if there are base chains.
func (t *foreignTables) read(ctx context.Context) error {
	ours := func(table string) bool { return table == rules.Table || table == kubeProxyTable }
	dormant := map[string]bool{}
	err := t.list(ctx, unix.NFT_MSG_GETTABLE, func(a codec.Fields) error {
		dormant[a.Text(unix.NFTA_TABLE_NAME)] = a.Uint32(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		return nil
	})
	if err != nil {
		return err
	}
	err = t.list(ctx, unix.NFT_MSG_GETCHAIN, func(a codec.Fields) error {
		table := a.Text(unix.NFTA_CHAIN_TABLE)
		ch, _, err := codec.DecodeChain(a)
		if err == nil && ch.Base != nil && !ours(table) && !dormant[table] {
			t.bases[chainKey{table, ch.Name}] = ch.Base
		}
		return err
	})
	if err != nil || len(t.bases) == 0 {
		return err
	}
	return t.list(ctx, unix.NFT_MSG_GETRULE, func(a codec.Fields) error {
		k := chainKey{a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN)}
		if ours(k.table) || strings.HasPrefix(k.chain, "KUBE-") {
			return nil
		}
		if code, err := codec.Instructions(a[unix.NFTA_RULE_EXPRESSIONS]); err == nil {
			t.rules[k] = append(t.rules[k], effectsOf(code)...)
		}
		return nil
	})
}

func (t *foreignTables) list(ctx context.Context, typ uint16, each func(codec.Fields) error) error {
	_, err := t.c.List(ctx, typ, t.family, nil, each)
	return err
}

// chain describes a base chain. Packets pass those of families netdev and bridge outside of the
// hooks at which our rules translate and mark.
func (t *foreignTables) chain(ctx context.Context, family string, k chainKey) apply.ForeignChain {
	base := t.bases[k]
	c := apply.ForeignChain{Name: k.chain,
		Where: fmt.Sprintf("%s %s chain %s, hook %s, priority %d", family, k.table, k.chain, t.hook(base), base.Priority),
		Rules: func(chain string) ([]apply.RuleEffect, error) { return t.effects(ctx, chainKey{k.table, chain}) }}
	if base.Drop {
		c.Policy = "policy drop"
	}
	c.Routes = t.hook(base) == "ingress"
	if t.family == unix.NFPROTO_NETDEV || t.family == unix.NFPROTO_BRIDGE || base.Unsupported == codec.OtherHook {
		return c
	}
	switch base.Hook {
	case rules.Prerouting, rules.Output:
		c.Routes = true
		c.Translates = base.Priority <= rules.PriorityDNAT
		c.Marks = !c.Translates
	case rules.Forward:
		c.Marks = true
	case rules.Postrouting:
		c.Marks = base.Priority <= rules.PrioritySNAT
		c.Translates = base.NAT && c.Marks
	}
	return c
}

// hook returns the name of the hook of a base chain. Its number depends on the family.
func (t *foreignTables) hook(b *rules.Base) string {
	switch {
	case t.family == unix.NFPROTO_NETDEV && b.Hook == 1: // NF_NETDEV_EGRESS of linux/netfilter.h
		return "egress"
	case t.family == unix.NFPROTO_NETDEV, b.Unsupported == codec.OtherHook:
		return "ingress"
	}
	return b.Hook.String()
}

// effects returns the effects of the rules of a chain, including those of verdict maps, which it
// reads once.
func (t *foreignTables) effects(ctx context.Context, k chainKey) (out []apply.RuleEffect, err error) {
	var read []foreignRule
	for _, r := range t.rules[k] {
		if r.vmap == "" {
			read = append(read, r)
		} else if read, err = t.appendVerdicts(ctx, read, k.table, r.vmap); err != nil {
			return nil, err
		}
	}
	t.rules[k] = read
	for _, r := range read {
		out = append(out, r.RuleEffect)
	}
	return out, nil
}

// appendVerdicts appends the effects of the verdicts in a map.
func (t *foreignTables) appendVerdicts(ctx context.Context, out []foreignRule, table, name string) ([]foreignRule, error) {
	query := codec.Encode(func(b *codec.Builder) {
		b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		b.Text(unix.NFTA_SET_ELEM_LIST_SET, name)
	})
	_, err := t.c.Dump(ctx, unix.NFT_MSG_GETSETELEM, t.family, query, func(b []byte) error {
		items, err := codec.ElementList(b)
		for _, item := range items {
			if e, err := codec.Parse(item.Data); err == nil {
				out = appendVerdict(out, e[unix.NFTA_SET_ELEM_DATA])
			}
		}
		return err
	})
	return out, err
}

const tcpMaxSeg = 2 // kind of the TCP option for the segment size (RFC 9293)

// effectsOf returns the effects of a rule.
func effectsOf(code []codec.Instruction) (out []foreignRule) {
	add := func(does string) { out = append(out, foreignRule{RuleEffect: apply.RuleEffect{Does: does}}) }
	for i, c := range code {
		switch c.Name {
		case "meta":
			if c.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_MARK && c.Fields[unix.NFTA_META_SREG] != nil {
				out = append(out, foreignRule{RuleEffect: changedBits(code[:i])})
			}
		case "ct":
			if c.Uint32(unix.NFTA_CT_KEY) == unix.NFT_CT_ZONE && c.Fields[unix.NFTA_CT_SREG] != nil {
				add("ct zone set")
			}
		case "payload", "exthdr":
			if rewrites(c) {
				add(apply.Rewrites)
			}
		case "reject", "tproxy", "notrack", "queue", "fwd", "redir", "masq":
			add(cmp.Or(map[string]string{"redir": "redirect", "masq": "masquerade"}[c.Name], c.Name))
		case "nat":
			add([...]string{unix.NFT_NAT_SNAT: "snat", unix.NFT_NAT_DNAT: "dnat"}[c.Uint32(unix.NFTA_NAT_TYPE)&1])
		case "target": // of iptables-nft
			out = append(out, foreignRule{RuleEffect: targetEffect(c.Text(unix.NFTA_TARGET_NAME), c.Uint32(unix.NFTA_TARGET_REV), c.Fields[unix.NFTA_TARGET_INFO])})
		case "immediate":
			out = appendVerdict(out, c.Fields[unix.NFTA_IMMEDIATE_DATA])
		case "lookup":
			if c.Fields[unix.NFTA_LOOKUP_DREG] != nil && c.Uint32(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT {
				out = append(out, foreignRule{vmap: c.Text(unix.NFTA_LOOKUP_SET)})
			}
		}
	}
	return out
}

// rewrites reports whether an instruction changes a header of packets in a way that affects Services.
func rewrites(c codec.Instruction) bool {
	if c.Name == "exthdr" { // routers limit the segment size of TCP
		return c.Fields[unix.NFTA_EXTHDR_DREG] == nil && !bytes.Equal(c.Fields[unix.NFTA_EXTHDR_TYPE], []byte{tcpMaxSeg})
	}
	// A rule for DSCP or ECN writes the first bytes of the network header.
	return c.Fields[unix.NFTA_PAYLOAD_SREG] != nil && (c.Uint32(unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_NETWORK_HEADER || c.Uint32(unix.NFTA_PAYLOAD_OFFSET) > 1)
}

// appendVerdict appends the effect of a verdict. Other data has none.
func appendVerdict(out []foreignRule, data []byte) []foreignRule {
	v, err := codec.DecodeVerdict(data)
	e := apply.RuleEffect{To: v.Chain}
	switch v.Kind {
	case rules.Drop:
		e.Does = "drop"
	case rules.Accept:
		e.Does = "accept"
	case rules.Return:
		e.Does = "return"
	}
	if err != nil || e == (apply.RuleEffect{}) {
		return out
	}
	return append(out, foreignRule{RuleEffect: e})
}

// changedBits returns the effect of setting the mark to the result of instructions: a constant, or the
// mark after a bitwise operation. Other results may be any.
func changedBits(code []codec.Instruction) apply.RuleEffect {
	const does = "meta mark set"
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
			return apply.RuleEffect{Does: does, Clears: ^set, Sets: set}
		}
	}
	c, isBitwise := last(1, "bitwise")
	load, isMeta := last(2, "meta")
	if isBitwise && isMeta && load.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_MARK {
		and, ok1 := number(c.Fields[unix.NFTA_BITWISE_MASK])
		xor, ok2 := number(c.Fields[unix.NFTA_BITWISE_XOR])
		if ok1 && ok2 {
			return apply.RuleEffect{Does: does, Clears: ^(and ^ xor), Sets: xor &^ and, Any: and & xor}
		}
	}
	return apply.RuleEffect{Does: does, Clears: ^uint32(0), Any: ^uint32(0)}
}

// targetEffect returns the effect of a target of iptables with its options: struct xt_mark_tginfo2
// (linux/netfilter/xt_mark.h), xt_connmark_tginfo1 and 2 (xt_connmark.h), xt_ct_target_info
// (xt_CT.h).
func targetEffect(name string, revision uint32, info []byte) apply.RuleEffect {
	number := func(i int) uint32 { return binary.NativeEndian.Uint32(info[4*i:]) }
	const (
		restore  = 2      // XT_CONNMARK_RESTORE
		notrack  = 1      // XT_CT_NOTRACK
		zoneMark = 1 << 4 // XT_CT_ZONE_MARK
	)
	mode := map[uint32]int{1: 12, 2: 14}[revision] // its offset in CONNMARK
	switch {
	case name == "CT" && len(info) >= 2 && binary.NativeEndian.Uint16(info)&notrack != 0:
		name = "NOTRACK"
	case name == "CT" && len(info) >= 4 && (binary.NativeEndian.Uint16(info)&zoneMark != 0 || binary.NativeEndian.Uint16(info[2:]) != 0):
		name = "CT --zone"
	case name == "MARK" && revision == 2 && len(info) >= 8:
		set, mask := number(0), number(1) // the result is (mark and not mask) xor set
		return apply.RuleEffect{Does: name, Clears: mask ^ set, Sets: mask & set, Any: set &^ mask}
	case name == "CONNMARK" && mode > 0 && len(info) > mode && info[mode] == restore:
		bits := number(1) | number(2)
		return apply.RuleEffect{Does: name, Clears: bits, Any: bits}
	}
	return apply.RuleEffect{Does: name}
}
