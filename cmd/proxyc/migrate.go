package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/prove"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
)

type migrateCmd struct {
	input
	nodeChoice

	From   string   `placeholder:"MODE" help:"The mode that the nodes have: iptables, ipvs, nftables or userspace; by default the configuration's."`
	To     string   `required:"" placeholder:"MODE" help:"The mode that they shall have."`
	Dump   []string `placeholder:"FILE" sep:"none" help:"What iptables-save or ip6tables-save prints on a node, to find rules of others that hook kube-proxy's chains. May be repeated."`
	Output string   `short:"o" enum:"text,wide,json" default:"text" help:"Output: text, wide (each Service by itself) or json."`
}

// Run says what another mode changes for a cluster, and how to get there.
func (c *migrateCmd) Run(e *env) error {
	ctx := context.Background()
	names := append(c.names(), c.Dump...)
	if err := oneStdin(names...); err != nil {
		return err
	}
	start, err := e.rereading(names, int64(c.Limit))
	if err != nil {
		return err
	}
	c.wholeFiles, c.asWritten, c.anyNode = true, true, c.chosen()
	side := func(flag, mode string) (*job, error) {
		in := c.input
		if mode != "" {
			if !slices.Contains(linuxModes(), ir.Mode(mode)) {
				return nil, fmt.Errorf("%s: must be one of the modes %s, got %q", flag, modeNames(linuxModes()), mode)
			}
			in.Mode, in.modeFlag = &mode, flag
		}
		return in.load(start())
	}
	was, err := side("--from", c.From)
	if err != nil {
		return err
	}
	is, err := side("--to", c.To)
	if err != nil {
		return err
	}
	m := &migration{From: was.Config.ProxyMode(), To: is.Config.ProxyMode()}
	if m.From == m.To {
		return fmt.Errorf("--to: must be another mode than %s, which the nodes have", m.From)
	}
	for _, name := range c.Dump {
		text, err := e.readFile(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		found, err := neighbours(name, string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m.Neighbours = append(m.Neighbours, found...)
	}
	m.dumped = len(c.Dump) > 0
	m.flows, err = compareNodes(e.comparing(ctx), was, is, c.nodeChoice, m.prove)
	wrong, err := finishBoth(e, was, is, err)
	if err != nil {
		return err
	}
	if wrong > 0 { // a plan is for what is right
		return errReported
	}
	m.Findings = newFindings(was, is)
	m.steps(c)
	write := func(w io.Writer) error { return m.writeText(w, c.Output == "wide") }
	if c.Output == "json" {
		write = m.writeJSON
	}
	if err := buffered(e.stdout, write); err != nil {
		return err
	}
	if len(m.flows.Services)+len(m.Unknown)+len(m.Findings)+len(m.Neighbours) == 0 {
		return nil
	}
	return errFindings
}

// linuxModes are the modes between which a node can change.
func linuxModes() []ir.Mode {
	return slices.DeleteFunc(ir.Modes(), func(m ir.Mode) bool { return m == ir.ModeKernelspace })
}

func modeNames(modes []ir.Mode) string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = string(m)
	}
	return strings.Join(names, ", ")
}

// migration is what another mode changes, and the way there and back.
type migration struct {
	From, To   ir.Mode
	flows      *flowDiff
	Unknown    []string // what is not shown
	Needs      []string
	Findings   diag.List // that the new mode has alone
	Neighbours []string  // rules of others
	dumped     bool      // somebody looked for them
	Steps      []migrationStep
}

// migrationStep is one step of the way.
type migrationStep struct {
	Title    string   `json:"title"`
	Commands []string `json:"commands"`
	Look     string   `json:"look,omitempty"` // at what, and what would be right
}

// prove compares the rules of both modes, for every first packet. What they do is told by
// what they mean.
func (m *migration) prove(ctx context.Context, where flow.Network, a, b *ir.Program) ([]flow.Service, int, error) {
	services, doubts, classes, err := proveModes(ctx, where, a, b)
	m.Unknown = append(m.Unknown, doubts...)
	slices.Sort(m.Unknown)
	m.Unknown = slices.Compact(m.Unknown)
	if m.Needs == nil && b != nil {
		m.Needs = needsOf(a, b)
	}
	return services, classes, err
}

// proveModes returns what changes between the rules of two modes, and what could not be
// shown.
func proveModes(ctx context.Context, where flow.Network, a, b *ir.Program) (services []flow.Service, doubts []string, classes int, err error) {
	if a == nil || b == nil { // a family that one mode alone has
		services, classes, err = flow.Compare(ctx, where, a, b)
		return services, nil, classes, err
	}
	node := flow.NodeOf(a, b)
	r, err := prove.Compare(ctx, node, ruleSides[a.Node.Mode](a), ruleSides[b.Node.Mode](b))
	if err != nil {
		return nil, nil, 0, err
	}
	for _, d := range r.Doubts {
		doubts = append(doubts, d.Unknown...)
	}
	return flow.Describe(where, node, a, b, r.Differences), doubts, r.Classes, nil
}

// needsOf returns what a mode needs of a node, which had another before (nil: not in this family), besides
// what findings tell of it.
func needsOf(was, p *ir.Program) (needs []string) {
	switch p.Node.Mode {
	case ir.ModeNFTables:
		needs = append(needs, "Linux 5.13 or newer; no tool, and nft 1.0.1 or newer for who wants to look at the rules")
	case ir.ModeIPTables:
		needs = append(needs, "iptables-save, iptables-restore and their twins for IPv6, of the variant (nft or legacy) that others on the node use")
	case ir.ModeIPVS:
		needs = append(needs, "ip_vs and its scheduler, and dummy devices, in the kernel or as modules",
			"ipset, and iptables of the variant (nft or legacy) that others on the node use")
	case ir.ModeUserspace:
		needs = append(needs, "proxyc watch, which carries the connections itself; apply does not write the mode",
			"iptables of the variant (nft or legacy) that others on the node use")
	}
	for _, s := range sysctl.Dataplane(&p.Node, sysctl.Host{Kernel: sysctl.Version{Major: 5, Minor: 9}}) {
		needs = append(needs, fmt.Sprintf("sysctl %s=%s, which proxyc sets", s.Name(), s.Want))
	}
	if was != nil && sysctl.WantsLocalnet(&was.Node) && !sysctl.WantsLocalnet(&p.Node) {
		needs = append(needs, "sysctl net.ipv4.conf.all.route_localnet=0, unless another program needs 1, which mode "+string(was.Node.Mode)+
			" set for node ports at localhost and does not set back: its rules, which kept other machines from what listens on 127.0.0.1, go")
	}
	return needs
}

// newFindings returns what lint finds of the second side alone.
func newFindings(was, is *job) (found diag.List) {
	was.lint()
	is.lint()
	all := lint.Report{Findings: is.diags.Sorted()}
	found = all.Since(lint.Report{Findings: was.diags}).Findings.Fewer(diag.MostAlike)
	is.locate(found)
	return found
}

// ownTargets are those of rules that kube-proxy has in its chains, besides these.
var ownTargets = []string{"ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "MASQUERADE", "DNAT", "REDIRECT"}

// neighbours names rules of others in a dump of iptables that need kube-proxy's chains: they jump to
// one, or stand in one and lead elsewhere. Of what is no whole dump nothing can be said: it is an error.
func neighbours(file, text string) (found []string, err error) {
	const wanted = "give " + string(savedRules) + " on a node"
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("is empty: " + wanted)
	}
	if err := tellsAll(text); err != nil {
		return nil, err
	}
	switch as := printedAs(text); as {
	case savedRules:
	case "":
		return nil, fmt.Errorf("is not %s, which begins with a table (*nat)", savedRules)
	default:
		return nil, fmt.Errorf("is %s: %s", as, wanted)
	}
	err = iptparse.EachSaved(text, func(table, line string) {
		words := iptparse.SavedWords(line)
		if len(words) < 2 || words[0] != "-A" {
			return
		}
		chain, target := words[1], iptparse.SavedTarget(words)
		builtIn := chain == strings.ToUpper(chain) && !strings.ContainsAny(chain, "-_") // PREROUTING
		switch ours := strings.HasPrefix(chain, "KUBE-"); {
		case strings.HasPrefix(target, "KUBE-") && !ours && !builtIn:
			found = append(found, fmt.Sprintf("%s: table %s: chain %s leads to %s: %s", file, table, chain, target, line))
		case ours && target != "" && !strings.HasPrefix(target, "KUBE-") && !slices.Contains(ownTargets, target):
			found = append(found, fmt.Sprintf("%s: table %s: chain %s leads to %s, which is not kube-proxy's: %s", file, table, chain, target, line))
		}
	})
	return found, err
}

// steps makes the way: one node first, then the others, and the way back.
func (m *migration) steps(c *migrateCmd) {
	node := m.flows.Nodes[0]
	in := "-c " + shellWord(cmp.Or(deref(c.Config), "config.yaml"))
	for _, name := range c.Snapshot {
		in += " -s " + shellWord(name)
	}
	on := in + " --hostname-override " + shellWord(node)
	apply := func(mode ir.Mode, more string) string {
		if mode == ir.ModeUserspace {
			return fmt.Sprintf("proxyc watch %s --mode %s", in, mode)
		}
		return fmt.Sprintf("proxyc apply %s --mode %s%s", in, mode, more)
	}
	dump := map[ir.Mode]string{ir.ModeNFTables: "nft list ruleset >before"}[m.From]
	if dump == "" {
		dump = "iptables-save >before; ip6tables-save >before6"
	}
	if m.From == ir.ModeIPVS {
		dump += "; ipset save >before.ipset; ipvsadm -Sn >before.ipvs"
	}
	look := func(mode ir.Mode) string {
		if mode == ir.ModeNFTables || mode == ir.ModeIPTables {
			return fmt.Sprintf("proxyc prove %s --mode %s ir kernel", in, mode)
		}
		return apply(mode, " --check")
	}
	if m.To == ir.ModeUserspace {
		look = func(ir.Mode) string { return "proxyc status" }
	}
	m.Steps = []migrationStep{
		{"before, on node " + node, []string{dump, apply(m.To, " --yes-takeover --dry-run")},
			"the plan removes what is of mode " + string(m.From) + " and kube-proxy's, and nothing else"},
		{"canary: node " + node + " alone; nothing else may write its rules meanwhile: keep kube-proxy and proxyc watch off it", []string{apply(m.To, " --yes-takeover")},
			"it ends with exit code 0; open connections go on"},
		{"look", []string{look(m.To), fmt.Sprintf("proxyc trace %s --mode %s --packets flows.jsonl", on, m.To)},
			"the node does what is meant, and what must hold of flows does; refusals and time-outs of clients do not rise"},
		{"the other nodes, one after the other: mode: " + string(m.To) + " in the configuration, and the label that deploy/daemonset.yaml looks for",
			[]string{"kubectl label node NODE service-proxy=proxyc"}, "proxyc status says that the kernel is as it should be; /readyz is 200"},
		{"back, at any time", []string{apply(m.From, " --yes-takeover")}, "then " + look(m.From)},
	}
	if m.From == ir.ModeIPVS {
		m.Steps[1].Look += "; virtual servers stay as long as their connections do (docs/leaving-ipvs.md)"
	}
	if m.From == ir.ModeUserspace {
		m.Steps[1].Look = "it ends with exit code 0; connections through the process end with it"
	}
	if m.To == ir.ModeNFTables && m.From == ir.ModeIPTables {
		m.Steps[4].Look += ". kube-proxy itself has a gap when it comes to mode nftables beside rules of mode iptables, not on this way (docs/deploy)"
	}
}

func (m *migration) writeText(w io.Writer, wide bool) error {
	fmt.Fprintf(w, "from mode %s to mode %s: %s\n", m.From, m.To, strings.Join(m.flows.Nodes, ", "))
	fmt.Fprintf(w, "\nWhat changes, by proof of the rules of both modes: %d classes of packets\n\n", m.flows.Classes)
	if m.flows.empty() {
		fmt.Fprintln(w, "nothing")
	} else if err := m.flows.writeText(w, wide); err != nil {
		return err
	}
	for _, u := range m.Unknown {
		fmt.Fprintf(w, "not provable because of %s\n", u)
	}
	list := func(title string, lines []string, none string) {
		fmt.Fprintf(w, "\n%s\n\n", title)
		if len(lines) == 0 {
			lines = []string{none}
		}
		for _, line := range lines {
			fmt.Fprintf(w, "- %s\n", line)
		}
	}
	list("What the nodes need", m.Needs, "nothing")
	var found []string
	for _, d := range m.Findings {
		found = append(found, lint.Line(d))
	}
	list("What lint finds in mode "+string(m.To)+" alone", found, "nothing")
	list("Rules of others that need kube-proxy's chains", m.Neighbours, m.noNeighbours())
	fmt.Fprint(w, "\nSteps\n\n")
	for i, s := range m.Steps {
		fmt.Fprintf(w, "%d. %s\n", i+1, s.Title)
		for _, c := range s.Commands {
			fmt.Fprintf(w, "       %s\n", c)
		}
		fmt.Fprintf(w, "   %s\n", s.Look)
	}
	return nil
}

func (m *migration) noNeighbours() string {
	if m.dumped {
		return "none in the dumps"
	}
	return "not looked for: give what iptables-save prints on a node (--dump FILE)"
}

func (m *migration) writeJSON(w io.Writer) error {
	var flows strings.Builder
	if err := m.flows.writeJSON(&flows); err != nil {
		return err
	}
	lines := func(list []string) []string { return append([]string{}, list...) }
	out := struct {
		From       ir.Mode         `json:"from"`
		To         ir.Mode         `json:"to"`
		Flows      json.RawMessage `json:"flows"`
		Unknown    []string        `json:"unknown"`
		Needs      []string        `json:"needs"`
		Findings   []string        `json:"findings"`
		Neighbours []string        `json:"neighbours"`
		Steps      []migrationStep `json:"steps"`
	}{m.From, m.To, json.RawMessage(flows.String()), lines(m.Unknown), lines(m.Needs), []string{}, lines(m.Neighbours), m.Steps}
	for _, d := range m.Findings {
		out.Findings = append(out.Findings, lint.Line(d))
	}
	return writeDocument(w, "Migration", "  ", out)
}
