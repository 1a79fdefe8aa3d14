package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

type diffCmd struct {
	input
	nodeChoice
	namespaceChoice
	comparingTime

	NewConfig   string   `short:"C" placeholder:"FILE" help:"The other configuration; by default the same."`
	NewSnapshot []string `short:"S" sep:"none" placeholder:"FILE" help:"The other snapshot; by default the same."`
	NewMode     *string  `placeholder:"MODE" help:"The other mode; by default the same."`
	Output      string   `short:"o" default:"text" placeholder:"FORMAT" help:"Output: text, wide (each Service by itself, with a trace for each change), json, markdown, or stat, about which flows change; or the lines that differ in ir, or in a text that the mode writes, as with compile."`
}

// nodeChoice says for which nodes a verb is asked.
type nodeChoice struct {
	Node     []string `placeholder:"NAME" sep:"none" help:"The Node of the snapshots that is meant. May be repeated."`
	AllNodes bool     `help:"Every Node of the snapshots is meant."`
}

// chosen reports whether nodes are named.
func (c *nodeChoice) chosen() bool { return c.AllNodes || len(c.Node) > 0 }

// Run compiles both sides and shows which flows differ, or which lines.
func (c *diffCmd) Run(e *env) error {
	ctx := context.Background()
	if c.NewConfig == "" && len(c.NewSnapshot) == 0 && c.NewMode == nil {
		return errors.New("nothing to compare with: give --new-config, --new-snapshot or --new-mode")
	}
	write, byFlow := diffForms[c.Output]
	if !byFlow && c.chosen() {
		return fmt.Errorf("-o: must be one of %s with --node and --all-nodes, got %q", strings.Join(diffFormNames(), ", "), c.Output)
	}
	if !byFlow && c.Namespace != "" {
		return fmt.Errorf("-o: must be one of %s with --namespace, got %q", strings.Join(diffFormNames(), ", "), c.Output)
	}
	was, is, err := c.sides(e)
	if err != nil {
		return err
	}
	if err := c.namespaceChoice.check(nil, was.snap, is.snap); err != nil {
		return err
	}
	if byFlow {
		ctx, cancel := c.limit(e.comparing(ctx))
		defer cancel()
		found, err := compareNodes(ctx, was, is, c.nodeChoice, c.compare)
		wrong, err := finishBoth(e, was, is, err)
		if err != nil {
			return err
		}
		found.Wrong = wrong
		if err := buffered(e.stdout, func(w io.Writer) error { return write(w, found) }); err != nil {
			return err
		}
		return compared(found.empty(), wrong)
	}
	text, err := diffRules(was.compile(), is.compile(), c.Output)
	wrong, err := finishBoth(e, was, is, err)
	if err != nil {
		return err
	}
	if _, err := e.stdout.Write(text); err != nil {
		return err
	}
	return compared(len(text) == 0, wrong)
}

// compare looks at the Services that are told of.
func (c *diffCmd) compare(ctx context.Context, where flow.Network, a, b *ir.Program) ([]flow.Service, int, error) {
	return flow.CompareOf(ctx, where, a, b, c.has)
}

// compared returns the error with which a comparison ends: whether nothing differs, and how many objects
// have errors.
func compared(same bool, wrong int) error {
	switch {
	case wrong > 0:
		return errReported
	case same:
		return nil
	}
	return errFindings
}

// sides reads both sides.
func (c *diffCmd) sides(e *env) (was, is *job, err error) {
	// Both sides may read standard input, where they read it for the same.
	if err := oneStdin(append(append(c.names(), c.NewConfig), c.NewSnapshot...)...); err != nil {
		return nil, nil, err
	}
	start, err := e.rereading(c.names(), int64(c.Limit))
	if err != nil {
		return nil, nil, err
	}
	c.wholeFiles, c.anyNode = true, c.chosen()
	was, err = c.load(start())
	if err != nil && !errors.Is(err, errReported) {
		return nil, nil, err
	}
	other := c.input
	if c.NewConfig != "" {
		other.setConfig(c.NewConfig)
	}
	if len(c.NewSnapshot) > 0 {
		other.Snapshot = c.NewSnapshot
	}
	if c.NewMode != nil {
		other.Mode, other.modeFlag = c.NewMode, "--new-mode"
	}
	is, wrong := other.load(start()) // whatever the first side has, to name what is wrong of both
	return was, is, cmp.Or(err, wrong)
}

// finishBoth prints what there is to say about both sides, each with the places in its
// own files. It returns how many objects have errors, which are compared as nodes would have
// them, without what is wrong: else whoever writes one object would keep all others from
// being looked at. A side of which something could not be read is none to compare, which
// the error with which the verb ends says.
func finishBoth(e *env, was, is *job, err error) (wrong int, _ error) {
	was.diags = append(was.findings(), is.findings()...)
	wrong, all := wrongObjects(was.diags)
	if finished := was.finish(e, err); err != nil || !all {
		return 0, finished
	}
	return wrong, nil
}

// wrongObjects returns how many objects have errors, and whether all errors are about
// objects: others are about files or settings.
func wrongObjects(findings diag.List) (n int, all bool) {
	objects := map[string]bool{}
	for _, d := range findings {
		if d.Severity != diag.Error {
			continue
		}
		if d.Object == "" || strings.HasPrefix(d.Object, "--") {
			return 0, false
		}
		objects[d.Object] = true
	}
	return len(objects), true
}

// flowDiff is what differs between two sides.
type flowDiff struct {
	Nodes    []string // that were compared
	Config   []config.Difference
	Facts    []nodeFact
	Services []flow.Service
	Classes  int
	Unknown  []string // what was not compared, as time was over
	Wrong    int      // objects with errors, which are left out as far as they are wrong
	sides    [2]*job  // where what decides stands
}

// place returns where what decides on a side stands, as FILE:LINE:COLUMN; "" where that is
// in no file.
func (d *flowDiff) place(side int, c flow.Cause) string {
	if c.Object == "" || d.sides[side] == nil {
		return ""
	}
	one := make(diag.List, 1) // places are those of findings
	one[0].Object, one[0].Path = c.Object, c.Field
	d.sides[side].locate(one)
	if one[0].File == "" || one[0].Line == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", one[0].File, one[0].Line, one[0].Column)
}

// nodeFact is something about nodes that differs.
type nodeFact struct {
	Nodes         []string
	What          string
	Before, After string // "": nothing
}

// empty reports whether nothing differs, which is known.
func (d *flowDiff) empty() bool {
	return len(d.Config)+len(d.Facts)+len(d.Services)+len(d.Unknown) == 0
}

// comparison returns what changes between two Programs of a node and family, and how many
// classes of packets were asked about.
type comparison func(ctx context.Context, where flow.Network, a, b *ir.Program) ([]flow.Service, int, error)

// compareNodes compares two sides for the nodes that are chosen, or for the one that the
// configuration names.
func compareNodes(ctx context.Context, was, is *job, chosen nodeChoice, compare comparison) (*flowDiff, error) {
	d := &flowDiff{Config: config.Differences(was.Resolved, is.Resolved), sides: [2]*job{was, is}}
	facts := factsByWhat{}
	nodes := [2][]compiler.Facts{{was.facts}, {is.facts}}
	a, b := was.compile, is.compile
	if chosen.chosen() {
		var err error
		if nodes, err = nodesOf(was, is, chosen, facts); err != nil {
			return nil, err
		}
		var stopA, stopB func()
		a, stopA = was.compileEach(nodes[0])
		defer stopA()
		b, stopB = is.compileEach(nodes[1])
		defer stopB()
	}
	var merged flow.Merger
	pods := append(podsOf(was), podsOf(is)...)
	for i, n := range nodes[0] {
		if len(d.Unknown) > 0 {
			d.Unknown = append(d.Unknown, fmt.Sprintf("nodes: %d of %d are compared", i, len(nodes[0])))
			break
		}
		d.Nodes = append(d.Nodes, n.NodeName)
		before, after := a(), b()
		where := flow.Network{Here: append(podsHere(was, n.NodeName), podsHere(is, nodes[1][i].NodeName)...), Pods: pods}
		for _, f := range ir.Families() {
			pa, pb := before.Of(f), after.Of(f)
			if pa == nil && pb == nil {
				continue
			}
			services, classes, err := compare(ctx, where, pa, pb)
			if why := flow.Unfinished(""); errors.As(err, &why) {
				d.Unknown = append(d.Unknown, fmt.Sprintf("node %s, %s: %s", n.NodeName, f, why))
			} else if err != nil {
				return nil, err
			}
			d.Classes += classes
			merged.Add(n.NodeName, services)
			facts.compare(n.NodeName, f, pa, pb)
		}
	}
	d.Services, d.Facts = merged.Services(), facts.list()
	return d, nil
}

// compileEach returns what compiles for one node after the other, and what ends it.
func (j *job) compileEach(nodes []compiler.Facts) (next func() ir.Programs, stop func()) {
	pull, stop := iter.Pull(func(yield func(ir.Programs) bool) {
		compiler.CompileNodes(j.Config, j.snap, nodes, func(i int, programs ir.Programs, diags diag.List) bool {
			j.diags.Add(diags...)
			j.checkNode(nodes[i].NodeName)
			return yield(programs)
		})
	})
	return func() ir.Programs { programs, _ := pull(); return programs }, stop
}

// nodesOf returns what is known of the nodes that are chosen, on both sides, in the same
// order. Nodes that one side alone has are facts.
func nodesOf(was, is *job, chosen nodeChoice, facts factsByWhat) (nodes [2][]compiler.Facts, err error) {
	names := slices.Clone(chosen.Node)
	if chosen.AllNodes {
		for _, j := range [...]*job{was, is} {
			for _, n := range j.snap.Nodes() {
				names = append(names, n.Name)
			}
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		switch a, b := was.snap.Node(name), is.snap.Node(name); {
		case a == nil && b == nil:
			return nodes, fmt.Errorf("--node: must name a Node of the snapshots, got %q", name)
		case a == nil:
			facts.add(name, "Node", "", "in the snapshot")
		case b == nil:
			facts.add(name, "Node", "in the snapshot", "")
		default:
			nodes[0] = append(nodes[0], was.others(name))
			nodes[1] = append(nodes[1], is.others(name))
		}
	}
	if len(nodes[0]) == 0 && len(facts) == 0 {
		return nodes, errors.New("--all-nodes: the snapshots have no Node")
	}
	return nodes, nil
}

// podsOf returns where the pods of a cluster are, as far as it is known.
func podsOf(j *job) (pods []netip.Prefix) {
	pods = j.Config.ClusterCIDRs()
	for _, n := range j.snap.Nodes() {
		pods = append(pods, n.PodCIDRs...)
	}
	return pods
}

func podsHere(j *job, node string) []netip.Prefix {
	if n := j.snap.Node(node); n != nil {
		return slices.Clone(n.PodCIDRs)
	}
	return nil
}

// factsByWhat are facts about nodes, with the nodes that they are about.
type factsByWhat map[nodeFactKey][]string

type nodeFactKey struct{ what, before, after string }

func (f factsByWhat) add(node, what, before, after string) {
	k := nodeFactKey{what, before, after}
	f[k] = append(f[k], node)
}

// compare notes what differs of the node itself in one family, besides what the
// configuration says.
func (f factsByWhat) compare(node string, family ir.Family, a, b *ir.Program) {
	before, after := nodeFacts(a), nodeFacts(b)
	keys := make([]string, 0, len(before)+len(after))
	for _, m := range [...]map[string]string{before, after} {
		for k := range m {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		if before[k] != after[k] {
			f.add(node, family.String()+" "+k, before[k], after[k])
		}
	}
}

// nodeFacts are what a Program holds of its node's object and the cluster's.
func nodeFacts(p *ir.Program) map[string]string {
	if p == nil {
		return map[string]string{}
	}
	n := &p.Node
	facts := map[string]string{"zone": n.Zone}
	if n.IP.IsValid() {
		facts["address"] = n.IP.String()
	}
	var words []string
	for _, a := range n.Addrs {
		words = append(words, a.String())
	}
	facts["all addresses"] = strings.Join(words, ", ")
	words = nil
	for _, c := range n.ServiceCIDRs {
		words = append(words, c.Prefix.String())
	}
	facts["Service networks"] = strings.Join(words, ", ")
	switch d := &n.Detector; d.Mode {
	case ir.DetectCIDR:
		facts["pods"] = d.Prefix.String()
	case ir.DetectInterface:
		facts["pods"] = "by interface " + d.Interface
	case ir.DetectPrefix:
		facts["pods"] = "by interface " + d.Interface + "*"
	}
	return facts
}

func (f factsByWhat) list() (out []nodeFact) {
	for k, nodes := range f {
		out = append(out, nodeFact{nodes, k.what, k.before, k.after})
	}
	slices.SortFunc(out, func(a, b nodeFact) int {
		return slices.Compare([]string{a.What, a.Nodes[0], a.Before}, []string{b.What, b.Nodes[0], b.Before})
	})
	return out
}

// diffRules compares texts line by line.
func diffRules(from, to ir.Programs, format string) ([]byte, error) {
	var a, b bytes.Buffer
	var none *noFormat
	if err := writeFormat(&a, from, format); errors.As(err, &none) {
		forms := append(diffFormNames(), none.writes...)
		return nil, fmt.Errorf("-o: must be one of %s in mode %s, got %q%s", strings.Join(forms, ", "), none.mode, format, didYouMean(format, forms))
	} else if err != nil {
		return nil, err
	}
	if err := writeFormat(&b, to, format); err != nil {
		return nil, err
	}
	_, lines, found := bytes.Cut(diff.Diff(format, a.Bytes(), format, b.Bytes()), []byte("\n"))
	if !found {
		return nil, nil
	}
	return append([]byte("diff "+format+"\n"), lines...), nil
}
