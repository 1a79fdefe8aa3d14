package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
)

// Tables of the nft variant are nf_tables tables. The iptables tools neither list nor change some
// of their properties, which this file accesses directly.

// withTable calls f with a connection to nf_tables.
func withTable(of ir.Family, table string, f func(c *conn.Conn) error) error {
	c, err := conn.Dial(0)
	if err == nil {
		defer c.Close()
		err = f(c)
	}
	if err != nil {
		return fmt.Errorf("table %s %s: %w", of.NFT(), table, err)
	}
	return nil
}

// dormant reports whether a table is dormant. It then keeps its rules, but no packet passes them. A
// missing table is not dormant.
func dormant(f ir.Family, table string) (dormant bool, err error) {
	err = withTable(f, table, func(c *conn.Conn) error {
		t, err := c.Get(context.Background(), unix.NFT_MSG_GETTABLE, codec.Family(f), codec.EncodeTable(table))
		dormant = t.Uint32(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		return err
	})
	return dormant, err
}

// wake clears the dormant flag of a table.
func wake(f ir.Family, table string) error {
	return withTable(f, table, func(c *conn.Conn) error {
		b := codec.Builder(codec.EncodeTable(table))
		b.Uint32(unix.NFTA_TABLE_FLAGS, 0)
		return c.Change(context.Background(), conn.NewMessage(unix.NFT_MSG_NEWTABLE, codec.Family(f), b))
	})
}

// list passes the attributes of all objects of a kind to each.
func list(f ir.Family, table string, kind uint16, query []byte, each func(codec.Fields)) error {
	return withTable(f, table, func(c *conn.Conn) error {
		_, err := c.List(context.Background(), kind, codec.Family(f), query, func(a codec.Fields) error { each(a); return nil })
		return err
	})
}

// chainKey identifies a chain of a family.
type chainKey struct{ table, chain string }

func (k chainKey) encode() []byte {
	return codec.Encode(func(b *codec.Builder) {
		b.Text(unix.NFTA_CHAIN_TABLE, k.table)
		b.Text(unix.NFTA_CHAIN_NAME, k.chain)
	})
}

// deleteRule deletes a rule of the chain, or all if handle is 0.
func (k chainKey) deleteRule(f ir.Family, handle uint64) conn.Message {
	return conn.NewMessage(unix.NFT_MSG_DELRULE, codec.Family(f), codec.Encode(func(b *codec.Builder) {
		b.Text(unix.NFTA_RULE_TABLE, k.table)
		b.Text(unix.NFTA_RULE_CHAIN, k.chain)
		if handle != 0 {
			b.Uint64(unix.NFTA_RULE_HANDLE, handle)
		}
	}))
}

// ownedChains returns the chains of proxyc and kube-proxy.
func ownedChains(f ir.Family) ([]chainKey, error) { return chainsNamed(f, rules.Owned) }

// chainsNamed returns chains of tables filter and nat. It does not depend on rules of others, beside
// which the tools list nothing.
func chainsNamed(f ir.Family, is func(name string) bool) (all []chainKey, err error) {
	err = list(f, "nat", unix.NFT_MSG_GETCHAIN, nil, func(a codec.Fields) {
		k := chainKey{a.Text(unix.NFTA_CHAIN_TABLE), a.Text(unix.NFTA_CHAIN_NAME)}
		if (k.table == "filter" || k.table == "nat") && is(k.chain) {
			all = append(all, k)
		}
	})
	return all, err
}

// ownedJump is a rule of another chain that jumps to one of ours.
type ownedJump struct {
	in, to chainKey
	handle uint64
}

// jumpsTo returns the jumps to some chains, in the order of the rules in each chain.
func jumpsTo(f ir.Family, chains []chainKey) (all []ownedJump, err error) {
	err = list(f, "nat", unix.NFT_MSG_GETRULE, nil, func(a codec.Fields) {
		in := chainKey{a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN)}
		to := chainKey{in.table, jumpTarget(a[unix.NFTA_RULE_EXPRESSIONS])}
		if slices.Contains(chains, to) && !slices.Contains(chains, in) {
			all = append(all, ownedJump{in, to, a.Uint64(unix.NFTA_RULE_HANDLE)})
		}
	})
	return all, err
}

// saveChains is saveAll for a table that the tools do not list as a whole, because rules of other
// programs in it are only for nft. They list single chains, and check single rules.
func (t lister) saveChains(ctx context.Context, f ir.Family, table string, out io.Writer) error {
	chains, err := chainsNamed(f, func(name string) bool { return rules.Owned(name) || rules.Shared(name) })
	if err != nil {
		return err
	}
	jumps, err := jumpsTo(f, chains)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "*%s\n", table)
	for _, k := range chains {
		if k.table != table {
			continue
		}
		listed, err := t.output(ctx, t.tool(f), "-t", table, "-S", k.chain)
		if err != nil {
			return err
		}
		fmt.Fprint(out, strings.Replace(listed, "-N "+k.chain+"\n", ":"+k.chain+" - [0:0]\n", 1))
	}
	for _, j := range jumps {
		if j.in.table != table {
			continue
		}
		text, err := t.jumpText(ctx, f, j)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "-A %s %s\n", j.in.chain, text)
	}
	_, err = io.WriteString(out, "COMMIT\n")
	return err
}

// jumpText returns the text of a jump in a chain that the tools may not list.
func (t lister) jumpText(ctx context.Context, f ir.Family, j ownedJump) (string, error) {
	if !rules.BuiltIn(j.in.chain) {
		return "-j " + j.to.chain, nil // only its target counts
	}
	all := ir.Program{Family: f}
	all.Node.NodePorts.Loopback = true // then with all jumps
	r := rules.LowerAll(ir.NewPrograms(&all)).Of(f)
	for _, known := range slices.Concat(r.Filter.Jumps, r.Nat.Jumps) {
		text := string(known.Rule.Append(nil, f))
		if known.Chain != j.in.chain || known.Rule.Chain != j.to.chain {
			continue
		}
		if _, err := t.output(ctx, t.tool(f), slices.Concat([]string{"-t", j.in.table, "-C", j.in.chain}, iptparse.SavedWords(text))...); err == nil {
			return text, nil
		}
	}
	return "", fmt.Errorf("table %s %s chain %s: the jump to %s is not as proxyc writes it", f.NFT(), j.in.table, j.in.chain, j.to.chain)
}

// removeOwned removes the ownedChains and the jumps to them, all or none.
func removeOwned(f ir.Family) error {
	chains, err := ownedChains(f)
	if err != nil || len(chains) == 0 {
		return err
	}
	jumps, err := jumpsTo(f, chains)
	if err != nil {
		return err
	}
	var batch []conn.Message
	for _, j := range jumps {
		if rules.BuiltIn(j.in.chain) {
			batch = append(batch, j.in.deleteRule(f, j.handle))
		}
	}
	for _, k := range chains {
		batch = append(batch, k.deleteRule(f, 0))
	}
	for _, k := range chains {
		batch = append(batch, conn.NewMessage(unix.NFT_MSG_DELCHAIN, codec.Family(f), k.encode()))
	}
	return withTable(f, "nat", func(c *conn.Conn) error { return c.Change(context.Background(), batch...) })
}

// jumpTarget returns the chain that a rule jumps to; "" for none.
func jumpTarget(expressions []byte) string {
	list, _ := codec.Attrs(expressions)
	for _, item := range list {
		path := codec.Fields{unix.NFTA_EXPR_DATA: item.Data}
		for _, attr := range [...]uint16{unix.NFTA_EXPR_DATA, unix.NFTA_EXPR_DATA, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT} {
			path, _ = codec.Parse(path[attr])
		}
		if chain := path.Text(unix.NFTA_VERDICT_CHAIN); chain != "" {
			return chain
		}
	}
	return ""
}

// countTable counts the content of a table in the kernel.
func countTable(ctx context.Context, f ir.Family, table string) (n content, err error) {
	err = withTable(f, table, func(c *conn.Conn) error {
		return socket.RetryInterrupted(func() (bool, error) {
			n = content{}
			chains, err := c.List(ctx, unix.NFT_MSG_GETCHAIN, codec.Family(f), nil, func(a codec.Fields) error {
				if a.Text(unix.NFTA_CHAIN_TABLE) == table && a[unix.NFTA_CHAIN_HOOK] == nil {
					n.chains++
				}
				return nil
			})
			if err != nil {
				return false, err
			}
			rules, err := c.List(ctx, unix.NFT_MSG_GETRULE, codec.Family(f), codec.EncodeTable(table), func(a codec.Fields) error {
				if a.Text(unix.NFTA_RULE_TABLE) == table {
					n.rules++
				}
				return nil
			})
			return chains || rules, err
		})
	})
	return n, err
}

// hasChain reports whether a table contains a chain.
func hasChain(ctx context.Context, f ir.Family, table, chain string) (has bool, err error) {
	err = withTable(f, table, func(c *conn.Conn) error {
		found, err := c.Get(ctx, unix.NFT_MSG_GETCHAIN, codec.Family(f), chainKey{table, chain}.encode())
		has = found != nil
		return err
	})
	return has, err
}

// generation returns the number of the last change of any table.
func generation(ctx context.Context) (uint32, error) {
	c, err := conn.Dial(0)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.Generation(ctx)
}

// native is a rule that nft created. If the iptables tools cannot translate it, they cannot list
// its table at all.
type native struct {
	chainKey
	handle uint64
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
	err = list(f, table, unix.NFT_MSG_GETRULE, codec.EncodeTable(table), func(a codec.Fields) {
		n := native{chainKey{a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN)}, a.Uint64(unix.NFTA_RULE_HANDLE)}
		if n.table == table && !knownRule(a[unix.NFTA_RULE_EXPRESSIONS]) {
			all = append(all, n)
		}
	})
	return all, err
}

// knownRule reports whether iptables-nft creates rules with such expressions.
func knownRule(expressions []byte) bool {
	list, err := codec.Attrs(expressions)
	counts := false
	for _, item := range list {
		e, exprErr := codec.Parse(item.Data)
		name := e.Text(unix.NFTA_EXPR_NAME)
		if exprErr != nil || !slices.Contains(knownExpressions, name) {
			return false
		}
		if name == "meta" {
			meta, metaErr := codec.Parse(e[unix.NFTA_EXPR_DATA])
			if metaErr != nil || !slices.Contains(knownMeta, meta.Uint32(unix.NFTA_META_KEY)) {
				return false
			}
		}
		counts = counts || name == "counter"
	}
	return err == nil && counts
}

// removeNatives removes the rules from our chains that prevent the tools from listing them, and
// reports whether there were any. If such rules are in foreign chains, it returns an error and
// keeps them.
func (t *tables) removeNatives(f ir.Family) (removed bool, err error) {
	if t.Variant != NFT {
		return false, nil
	}
	var foreign []string
	for _, table := range [...]string{"filter", "nat"} {
		all, err := natives(f, table)
		if err != nil {
			return removed, err
		}
		for _, n := range all {
			if !n.ours() || t.readOnly {
				foreign = append(foreign, "table "+f.NFT()+" "+table+" "+n.String())
				continue
			}
			if err := t.own(func() error { return n.remove(f) }); err != nil {
				return removed, err
			}
			removed = true
			if t.log != nil {
				t.log.Warn("a rule that the tools of iptables cannot read is removed", "table", f.NFT()+" "+table, "chain", n.chain, "handle", n.handle)
			}
		}
	}
	if len(foreign) > 0 && !removed {
		return false, fmt.Errorf("rules that nft made, and that iptables cannot read: %s; move them to a table of another name, or use mode nftables",
			strings.Join(foreign[:min(len(foreign), 5)], ", "))
	}
	return removed, nil
}

// remove deletes the rule if it exists.
func (n native) remove(f ir.Family) error {
	err := withTable(f, n.table, func(c *conn.Conn) error { return c.Change(context.Background(), n.deleteRule(f, n.handle)) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w", n, err)
	}
	return nil
}
