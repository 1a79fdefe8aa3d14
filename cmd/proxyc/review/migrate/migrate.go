// Package migrate plans the change of a cluster to another proxy mode: the differences, the
// requirements of the nodes, and the steps there and back.
package migrate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/cmd/proxyc/review/proof"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/prove"
)

// CheckMode returns an error if no node can change from or to the mode that a flag names.
func CheckMode(flag, mode string) error {
	var names []string
	for _, m := range ir.Modes() {
		switch {
		case review.Modes[m].Linux == nil:
		case string(m) == mode:
			return nil
		default:
			names = append(names, string(m))
		}
	}
	return fmt.Errorf("%s: %w", flag, diag.NotOneOf(mode, names))
}

// Migration is the plan of a change to another mode.
type Migration struct {
	From      ir.Mode         `json:"from"`
	To        ir.Mode         `json:"to"`
	Flows     json.RawMessage `json:"flows"`   // the document of diff -o json
	Unknown   []string        `json:"unknown"` // what could not be compared
	Needs     []string        `json:"needs"`
	Findings  []string        `json:"findings"`   // lint findings that only the new mode has
	Dependent []string        `json:"neighbours"` // foreign rules that depend on the old mode
	Steps     []Step          `json:"steps"`
	was, is   *review.Input
	flows     *diff.Diff
	dumped    bool // AddDumps has looked for foreign rules
}

// New returns the Migration between two inputs that differ only in their modes.
func New(was, is *review.Input) (*Migration, error) {
	m := &Migration{was: was, is: is, From: was.Config.ProxyMode(), To: is.Config.ProxyMode(),
		Unknown: []string{}, Needs: []string{}, Findings: []string{}, Dependent: []string{}}
	if m.From == m.To {
		return nil, fmt.Errorf("--to: must differ from the current mode %s", m.From)
	}
	return m, cmp.Or(CheckMode("mode", string(m.From)), CheckMode("--to", string(m.To)))
}

// AddDumps looks for foreign rules in files with the output of iptables-save on a node.
func (m *Migration) AddDumps(read func(string) ([]byte, error), names []string) error {
	for _, name := range names {
		text, err := read(name)
		if err == nil {
			var found []string
			found, err = proof.DependentRules(name, string(text))
			m.Dependent = append(m.Dependent, found...)
			m.dumped = true
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// Compare computes the differences on the selected nodes.
func (m *Migration) Compare(ctx context.Context, chosen diff.Nodes) (err error) {
	m.flows, err = diff.Compare(ctx, m.was, m.is, chosen, diff.All, m.prove)
	return err
}

// Plan adds the lint findings that only the new mode has, and the steps. Their commands name the
// configuration file ("" if none was given) and the snapshot files, which the command take writes ("" if
// they exist).
func (m *Migration) Plan(config string, snapshot []string, take string) {
	for _, d := range newFindings(m.was, m.is) {
		m.Findings = append(m.Findings, lint.Line(d))
	}
	m.steps(config, snapshot, take)
}

// Empty reports whether the comparison was complete and found no difference.
func (m *Migration) Empty() bool {
	return len(m.flows.Services)+len(m.Unknown)+len(m.Findings)+len(m.Dependent) == 0
}

// Step is one step of the plan.
type Step struct {
	Title    string   `json:"title"`
	Commands []string `json:"commands"`
	Look     string   `json:"look,omitempty"` // what to check, and the expected result
}

// prove compares the rules of both modes for every first packet. It describes differences by the
// meaning of the rules.
func (m *Migration) prove(ctx context.Context, where flow.Network, a, b *ir.Program, _ func(ir.Name) bool) ([]flow.Service, int, error) {
	services, doubts, classes, err := Prove(ctx, where, a, b)
	m.Unknown = append(m.Unknown, doubts...)
	slices.Sort(m.Unknown)
	m.Unknown = slices.Compact(m.Unknown)
	if len(m.Needs) == 0 && b != nil {
		m.Needs = needsOf(a, b)
	}
	return services, classes, err
}

// Prove returns the changes between the rules of two modes, and what it could not compare.
func Prove(ctx context.Context, where flow.Network, a, b *ir.Program) (services []flow.Service, doubts []string, classes int, err error) {
	if a == nil || b == nil { // only one mode has the family
		services, classes, err = flow.Compare(ctx, where, a, b)
		return services, nil, classes, err
	}
	node := flow.NodeOf(a, b)
	r, err := prove.Compare(ctx, node, review.Modes[a.Node.Mode].Evaluate(a), review.Modes[b.Node.Mode].Evaluate(b))
	if err != nil {
		return nil, nil, 0, err
	}
	for _, d := range r.Doubts {
		doubts = append(doubts, d.Unknown...)
	}
	return flow.Describe(where, node, a, b, r.Differences), doubts, r.Classes, nil
}

// needsOf returns the requirements of a mode on a node that findings do not name. was is the
// Program of the previous mode, or nil if that mode does not have the family.
func needsOf(was, p *ir.Program) (needs []string) {
	needs = slices.Clone(review.Modes[p.Node.Mode].Linux.Needs)
	for _, s := range sysctl.Dataplane(&p.Node, sysctl.Host{Kernel: sysctl.Version{Major: 5, Minor: 9}}) {
		needs = append(needs, fmt.Sprintf("sysctl %s=%s, which proxyc sets", s.Name(), s.Want))
	}
	if was != nil && sysctl.RequiresLocalnet(&was.Node) && !sysctl.RequiresLocalnet(&p.Node) {
		needs = append(needs, "sysctl net.ipv4.conf.all.route_localnet=0, unless another program needs 1. Mode "+string(was.Node.Mode)+
			" sets 1 for node ports at localhost and does not reset it, and its rules that protect listeners on 127.0.0.1 from other machines are removed")
	}
	return needs
}

// newFindings returns the lint findings that only the second side has.
func newFindings(was, is *review.Input) (found diag.List) {
	was.Lint()
	is.Lint()
	all := lint.Report{Findings: is.Diags.Sorted()}
	found = all.Since(lint.Report{Findings: was.Diags}).Findings.Summarize(diag.MaxSimilar)
	is.Locate(found)
	return found
}

// steps returns the steps: one node first, then the others, and the way back.
func (m *Migration) steps(config string, snapshot []string, take string) {
	node := m.flows.Nodes[0]
	in := Arguments(config, snapshot, false)
	on := in + " --hostname-override " + review.ShellWord(node)
	apply := func(mode ir.Mode, more string) string {
		if mode.ByProcess() {
			return fmt.Sprintf("proxyc watch %s --mode %s", in, mode)
		}
		return fmt.Sprintf("proxyc apply %s --mode %s%s", in, mode, more)
	}
	from := review.Modes[m.From].Linux
	look := func(mode ir.Mode) string {
		return strings.ReplaceAll(review.Modes[mode].Linux.Look, "INPUT", in)
	}
	m.Steps = []Step{
		{"before, on node " + node, []string{from.Save, apply(m.To, " --yes-takeover --dry-run")},
			"the plan removes only the rules of mode " + string(m.From) + " and of kube-proxy"},
		{"canary: node " + node + " alone, without a running kube-proxy or proxyc watch", []string{apply(m.To, " --yes-takeover")},
			"exit code 0; " + from.Connections},
		{"check", []string{look(m.To), fmt.Sprintf("proxyc trace %s --mode %s --packets flows.jsonl", on, m.To)},
			"the rules equal the compiled ones, the expected flows work, and clients report no more refusals and timeouts than before"},
		{"the other nodes, one at a time: set mode: " + string(m.To) + " in the configuration, and the label that docs/deploy/daemonset.yaml selects",
			[]string{"kubectl label node NODE service-proxy=proxyc"}, "proxyc status shows synced yes; /readyz returns 200"},
		{"back, at any time", []string{apply(m.From, " --yes-takeover")}, "then " + look(m.From)},
	}
	if take != "" {
		m.Steps[0].Commands = slices.Insert(m.Steps[0].Commands, 0, take)
	}
	if m.To == ir.ModeNFTables && m.From == ir.ModeIPTables {
		m.Steps[4].Look += ". A change of mode by kube-proxy itself interrupts Services, this way does not (docs/operate.md)"
	}
}

// WriteText writes the differences, the requirements of the nodes, and the steps. If wide is set,
// every Service has its own paragraph.
func (m *Migration) WriteText(w io.Writer, wide bool) error {
	fmt.Fprintf(w, "from mode %s to mode %s: %s\n", m.From, m.To, strings.Join(m.flows.Nodes, ", "))
	fmt.Fprintf(w, "\nChanges, proved from the rules of both modes for %d classes of packets\n\n", m.flows.Compared.Classes)
	if err := m.flows.WriteText(w, wide); err != nil {
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
	list("Requirements of the nodes", m.Needs, "nothing")
	list("Lint findings only in mode "+string(m.To), m.Findings, "nothing")
	list("Foreign rules that use kube-proxy's chains", m.Dependent, m.noDependent())
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

func (m *Migration) noDependent() string {
	if m.dumped {
		return "none in the dumps"
	}
	return "not checked: add the output of iptables-save on a node (--dump FILE)"
}

// WriteJSON writes a document of kind Migration.
func (m *Migration) WriteJSON(w io.Writer) error {
	var flows strings.Builder
	if err := m.flows.WriteJSON(&flows); err != nil {
		return err
	}
	m.Flows = json.RawMessage(flows.String())
	return review.WriteDocument(w, "Migration", "  ", m)
}
