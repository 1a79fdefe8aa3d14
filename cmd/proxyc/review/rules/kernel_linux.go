package rules

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/apply"
	kerneliptables "github.com/proxyc/proxyc/apply/iptables"
	kernelipvs "github.com/proxyc/proxyc/apply/ipvs"
	kernelnftables "github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/apply/node"
	tools "github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	ipvseval "github.com/proxyc/proxyc/render/ipvs/eval"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
	nftparse "github.com/proxyc/proxyc/render/nftables/parse"
	"github.com/proxyc/proxyc/render/xtables"
)

// CheckMode returns an error if this node has rules of another mode and none of the given mode. A
// comparison would then report every rule as wrong.
func CheckMode(ctx context.Context, mode ir.Mode, variant string) error {
	tables, err := kernelnftables.Present()
	own := review.Modes[mode].OwnTable
	if err != nil || own && len(tables) > 0 {
		return err
	}
	other, object := ir.ModeNFTables, ""
	if len(tables) > 0 {
		object = tables[0]
	}
	dataplane, err := kerneliptables.Open(ctx, apply.Options{IPTables: variant, ReadOnly: true})
	if err != nil {
		if own { // iptables is optional on a node
			return nil
		}
		return err
	}
	defer dataplane.Close()
	for _, m := range ir.Modes() {
		if review.Modes[m].Chain == "" {
			continue
		}
		chains, err := dataplane.Present(ctx, review.Modes[m].Chain)
		if err != nil || m == mode && len(chains) > 0 {
			return err
		}
		if len(chains) > 0 && object == "" {
			other, object = m, chains[0]
		}
	}
	if object == "" {
		return nil
	}
	return fmt.Errorf("this node has rules of mode %s (%s), and none of the configured mode %s: use its configuration with -c, or --mode %s", other, object, mode, other)
}

// inKernel reads all rules in this kernel and returns a function that follows a packet through them
// and asks the kernel for routes. left lists the rules that it does not read.
func inKernel(ctx context.Context, p *ir.Program, pkt sim.Packet, variant string) (follow refollow, left []string, err error) {
	rules, left, err := inRulesOfKernel(ctx, p, pkt, variant)
	if err != nil {
		return nil, nil, err
	}
	to := node.Destinations(p)
	bridges, err := node.Bridges(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	routed := func(gone removed) (Path, []string, error) {
		c := rules(gone)
		unasked, err := c.routed(pkt, p.Node.IPVS != nil, sim.OwnOfNode(p), to, bridges)
		return c.sorted(), unasked, err
	}
	if by, _, _ := node.Route(node.RouteQuery{Dst: pkt.Dst}); pkt.Dst == p.Node.IP && by != "" && by == pkt.In { // others on this network ask for its machine
		left = append(left, node.Gone(p))
	}
	have, unasked, err := routed(nil)
	return func(gone removed) (Path, error) {
		if gone == nil {
			return have, nil
		}
		c, _, err := routed(gone)
		return c, err
	}, append(left, unasked...), err
}

// inRulesOfKernel is like inKernel, without routes.
func inRulesOfKernel(ctx context.Context, p *ir.Program, pkt sim.Packet, variant string) (follow func(removed) Path, left []string, err error) {
	if err := CheckMode(ctx, p.Node.Mode, variant); err != nil {
		return nil, nil, fmt.Errorf("--kernel: %w", err)
	}
	listed, err := tools.Run(ctx, nil, "nft", "list", "ruleset")
	if err != nil {
		left = append(left, "foreign nf_tables: "+err.Error())
	}
	own := sim.OwnOfNode(p)
	if p.Node.IPVS != nil {
		return ofIPVS(ctx, p, pkt, variant, string(listed), left)
	}
	mode := review.Modes[p.Node.Mode]
	if mode.OwnTable && err != nil {
		return nil, nil, fmt.Errorf("--kernel: %w", err)
	}
	r, later, saved, others, err := inTables(ctx, p, variant, string(listed))
	if err != nil {
		return nil, nil, err
	}
	missing := ""
	if ours := "table " + TableOf(p.Family); mode.OwnTable && !slices.ContainsFunc(r.Chains, func(c nftables.Chain) bool { return strings.HasPrefix("table "+c.Name, ours+", ") }) {
		missing = ours + Missing
		if strings.Contains(string(listed), ours+" {\n\tflags dormant") {
			missing = ours + Dormant
		}
	}
	on := machine(p.Family)
	return func(gone removed) Path {
		c := followNFT(nfteval.Disarmed(r, gone.ofNFT), own, pkt, on)
		c.gone = missing
		c.count = func(m *sim.Met) uint64 { return counted(string(listed), saved, m) }
		c.later = func(next sim.Packet) Path { return followNFT(nfteval.Disarmed(later, gone.ofNFT), own, next, on) }
		return c
	}, append(left, others...), nil
}

// In the output of nft list ruleset, packets matches a counter, and declared a line of a chain that begins no
// rule: one that continues a rule is indented further.
var packets, declared = regexp.MustCompile(`counter packets (\d+)`), regexp.MustCompile(`^(\t|type |comment )`)

// counted returns the counter of an element that matched, or that of a rule, in the output of nft list ruleset
// or, for a table without a family, of iptables-save.
func counted(listed, saved string, m *sim.Met) (n uint64) {
	if !strings.Contains(m.Table, " ") {
		i := 0
		iptparse.EachSaved(saved, func(table, line string) {
			if _, rule, _ := strings.Cut(line, " "); table == m.Table && strings.HasPrefix(rule, "-A "+m.Chain+" ") {
				if i++; i == m.Rule {
					fmt.Sscanf(line, "[%d:", &n)
				}
			}
		})
		return n
	}
	_, table, _ := strings.Cut(listed, "table "+m.Table+" {\n")
	table, _, _ = strings.Cut(table, "\n}")
	block := func(begin string) string {
		_, text, _ := strings.Cut(table, "\t"+begin+" {")
		text, _, _ = strings.Cut(text, "\n\t}")
		return text
	}
	key, set, _ := strings.Cut(m.Element, " of ")
	_, text, ok := strings.Cut(block("map "+set)+block("set "+set), " "+key+" counter")
	if text = "counter" + text; !ok {
		rules := slices.DeleteFunc(strings.Split(block("chain "+m.Chain), "\n\t\t"), declared.MatchString)
		text = rules[min(m.Rule, len(rules)-1)]
	}
	if found := packets.FindStringSubmatch(text); found != nil {
		n, _ = strconv.ParseUint(found[1], 10, 64)
	}
	return n
}

// inTables reads the tables of nf_tables and of both iptables variants into one Ruleset. The tables
// of the mode's iptables variant have no prefix, and are own, as saved. later is r for packets of established connections.
// listed is the output of nft list ruleset.
func inTables(ctx context.Context, p *ir.Program, variant, listed string) (r, later *nftables.Ruleset, own string, left []string, err error) {
	type saved struct{ prefix, text string }
	var texts []saved
	used := kerneliptables.Variant("")
	if review.Modes[p.Node.Mode].Chain != "" {
		dataplane, err := kerneliptables.Open(ctx, apply.Options{IPTables: variant, ReadOnly: true})
		if err != nil {
			return nil, nil, "", nil, err
		}
		defer dataplane.Close()
		text, err := dataplane.Saved(ctx, p.Family)
		if err != nil {
			return nil, nil, "", nil, err
		}
		used = dataplane.Variant
		own = text
		texts = append(texts, saved{"", text})
	}
	if used != kerneliptables.NFT {
		// If iptables-nft is missing, the output of nft for its tables has to suffice.
		if dataplane, err := kerneliptables.Open(ctx, apply.Options{IPTables: string(kerneliptables.NFT), ReadOnly: true}); err == nil {
			defer dataplane.Close()
			text, err := dataplane.Saved(ctx, p.Family)
			if err != nil {
				return nil, nil, "", nil, err
			}
			texts = append(texts, saved{p.Family.NFT() + " ", text})
		}
	}
	there := map[string]bool{} // nf_tables tables that iptables-nft printed
	for _, s := range texts {
		for line := range strings.Lines(s.text) {
			if name, ok := strings.CutPrefix(line, "*"); ok && (s.prefix != "" || used == kerneliptables.NFT) {
				there[strings.TrimSpace(name)] = true
			}
		}
	}
	if used != kerneliptables.Legacy {
		text, err := kerneliptables.SaveLegacy(ctx, p.Family)
		if err != nil {
			left = append(left, "legacy iptables: "+err.Error())
		}
		texts = append(texts, saved{"legacy iptables ", text})
	}
	sets := xtables.UnknownSets("")
	if slices.ContainsFunc(texts, func(s saved) bool { return strings.Contains(s.text, " --match-set ") }) {
		sets = ipsets(ctx)
	}
	ours := func(c nftables.Chain) bool {
		table, _, _ := strings.Cut(c.Name, ", chain ")
		return !strings.Contains(table, " ") || strings.HasSuffix(table, " "+nftables.Table)
	}
	var others []string
	for _, state := range []string{"established", "new"} {
		later = r
		r, others, err = nftparse.ParseWhole(p.Family, listed, state, func(family, table string) bool { return ofIPTables(family, table) && there[table] })
		if err != nil {
			return nil, nil, "", nil, err
		}
		for _, s := range texts {
			if err := xtables.Add(r, s.prefix, s.text, sets); err != nil {
				return nil, nil, "", nil, fmt.Errorf("iptables: %w", err)
			}
		}
		slices.SortStableFunc(r.Chains, func(a, b nftables.Chain) int { // stable: of chains with equal priority, the first is followed first
			return cmp.Compare(map[bool]int{true: 0, false: 1}[ours(a)], map[bool]int{true: 0, false: 1}[ours(b)])
		})
	}
	return r, later, own, append(left, others...), nil
}

// ipsets reads all ipsets of the node.
func ipsets(ctx context.Context) *xtables.Sets {
	text, err := tools.Run(ctx, nil, "ipset", "save")
	if err != nil {
		return xtables.UnknownSets(err.Error())
	}
	sets, err := xtables.ParseSets(string(text))
	if err != nil {
		return xtables.UnknownSets("ipset save: " + err.Error())
	}
	return sets
}

// machine returns a Machine that answers questions of rules about this node's kernel.
func machine(f ir.Family) nfteval.Machine {
	return nfteval.Machine{
		Out: func(src, dst netip.Addr, in string, mark uint32) (string, error) {
			out, refused, err := node.Route(node.RouteQuery{Src: src, Dst: dst, In: in, Mark: mark})
			if err == nil && out == "" && refused == "" {
				out = "lo"
			}
			return out, err
		},
		Carries: node.HasAddress,
		Bridged: func(in string) bool { return node.Filtered(f, in) },
	}
}

// ofIPVS is inRulesOfKernel for mode ipvs. It follows the iptables rules in the tables filter and
// nat.
func ofIPVS(ctx context.Context, p *ir.Program, pkt sim.Packet, variant, listed string, left []string) (follow func(removed) Path, _ []string, err error) {
	own := sim.OwnOfNode(p)
	dataplane, err := kerneliptables.Open(ctx, apply.Options{IPTables: variant, ReadOnly: true})
	if err != nil {
		return nil, nil, err
	}
	defer dataplane.Close()
	saved, err := dataplane.Saved(ctx, p.Family)
	if err != nil {
		return nil, nil, err
	}
	r, others, err := iptparse.ParseWhole(p.Family, saved)
	if err != nil {
		return nil, nil, err
	}
	for _, table := range others {
		left = append(left, "iptables: "+table)
	}
	skip := ofIPTables
	if dataplane.Variant == kerneliptables.Legacy {
		skip = nil // the tables are in addition to the saved ones
	} else {
		left = append(left, legacy(ctx, p.Family)...)
	}
	tables, others, err := nftparse.ParseWhole(p.Family, listed, "new", skip)
	if err != nil {
		return nil, nil, err
	}
	held, err := kernelipvs.ReadRuleset(ctx, p.Family)
	if err != nil {
		return nil, nil, err
	}
	return func(gone removed) Path {
		rest := *held
		rest.Rules = ipteval.Disarmed(r, gone.ofIPTables)
		c := followTables(ipvseval.NewFollower(&rest, own), pkt, true, own.With(held.Carries), nfteval.Disarmed(tables, gone.ofNFT))
		c.count = func(m *sim.Met) uint64 { return counted(listed, saved, m) }
		return c
	}, append(left, others...), nil
}

// legacy returns the tables of legacy iptables that can affect packets in addition to the followed
// rules.
func legacy(ctx context.Context, f ir.Family) (left []string) {
	saved, err := kerneliptables.SaveLegacy(ctx, f)
	if err != nil {
		left = append(left, "legacy iptables: "+err.Error())
	}
	for _, table := range iptparse.Unfollowed(saved) {
		left = append(left, "legacy iptables: "+table)
	}
	return left
}

// ofIPTables reports whether iptables-nft prints an nf_tables table.
func ofIPTables(family, table string) bool {
	return family != "inet" && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, table)
}
