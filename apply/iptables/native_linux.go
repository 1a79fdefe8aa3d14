package iptables

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Tables of the nft variant may contain rules that nft created. If the tools cannot translate one
// of them, they cannot list the table at all.

// native is a rule that the iptables tools did not create.
type native struct {
	table, chain string
	handle       uint64
}

func (n native) String() string {
	return "chain " + n.chain + " handle " + strconv.FormatUint(n.handle, 10)
}

// ours reports whether the rule is in a chain that only proxyc writes.
func (n native) ours() bool {
	kubelet := rules.KubeletChains()
	return strings.HasPrefix(n.chain, "KUBE-") && !rules.Shared(n.chain) && !slices.Contains(kubelet[:], n.chain)
}

// The expressions in rules of iptables-nft (up to 1.8.11), and its keys of meta: the packet's mark,
// interfaces and protocol. Each of its rules has a counter.
var (
	knownExpressions = []string{"match", "target", "counter", "immediate", "cmp", "meta", "payload", "bitwise", "limit", "log"}
	knownMeta        = []uint32{unix.NFT_META_MARK, unix.NFT_META_IIF, unix.NFT_META_OIF, unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME, unix.NFT_META_L4PROTO}
)

// natives returns the rules of a table that the iptables tools did not create.
func natives(f ir.Family, table string) (all []native, err error) {
	msgs, err := query(f, table, unix.NFT_MSG_GETRULE, netlink.Request|netlink.Dump, nil)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if len(m.Data) < nfgenHead {
			continue
		}
		var n native
		known := true
		if err := decode(m.Data[nfgenHead:], func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				n.table = ad.String()
			case unix.NFTA_RULE_CHAIN:
				n.chain = ad.String()
			case unix.NFTA_RULE_HANDLE:
				n.handle = ad.Uint64()
			case unix.NFTA_RULE_EXPRESSIONS:
				known = knownRule(ad.Bytes())
			}
		}); err != nil {
			return nil, fmt.Errorf("table %s %s: %w", f.NFT(), table, err)
		}
		if !known && n.table == table {
			all = append(all, n)
		}
	}
	return all, nil
}

// knownRule reports whether iptables-nft creates rules with such expressions.
func knownRule(expressions []byte) bool {
	known, counts := true, false
	err := decode(expressions, func(ad *netlink.AttributeDecoder) {
		var name string
		key := uint32(0)
		isMeta := false
		if err := decode(ad.Bytes(), func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_EXPR_NAME:
				name = ad.String()
			case unix.NFTA_EXPR_DATA:
				if name != "meta" {
					return
				}
				isMeta = true
				decode(ad.Bytes(), func(ad *netlink.AttributeDecoder) {
					if ad.Type() == unix.NFTA_META_KEY {
						key = ad.Uint32()
					}
				})
			}
		}); err != nil {
			known = false
		}
		counts = counts || name == "counter"
		known = known && slices.Contains(knownExpressions, name) && (!isMeta || slices.Contains(knownMeta, key))
	})
	return err == nil && known && counts
}

// removeNatives removes the rules from our chains that prevent the tools from listing them, and
// reports whether there were any. If such rules are in foreign chains, it returns an error and
// keeps them.
func (d *Dataplane) removeNatives(f ir.Family) (removed bool, err error) {
	if d.Variant != NFT {
		return false, nil
	}
	var others []string
	for _, table := range [...]string{"filter", "nat"} {
		all, err := natives(f, table)
		if err != nil {
			return removed, err
		}
		for _, n := range all {
			if !n.ours() || d.readOnly {
				others = append(others, "table "+f.NFT()+" "+table+" "+n.String())
				continue
			}
			if err := d.own(func() error { return n.remove(f) }); err != nil {
				return removed, err
			}
			removed = true
			if d.log != nil {
				d.log.Warn("a rule that the tools of iptables cannot read is removed", "table", f.NFT()+" "+table, "chain", n.chain, "handle", n.handle)
			}
		}
	}
	if len(others) > 0 && !removed {
		return false, errors.New("rules that nft made, and that iptables cannot read: " + strings.Join(others[:min(len(others), 5)], ", "))
	}
	return removed, nil
}

// remove deletes the rule if it exists.
func (n native) remove(f ir.Family) error {
	err := change(f, n.table, unix.NFT_MSG_DELRULE, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_CHAIN, n.chain)
		ae.Uint64(unix.NFTA_RULE_HANDLE, n.handle)
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w", n, err)
	}
	return nil
}
