// Package diff compares two Inputs: which flows and settings differ, on which nodes, and why.
package diff

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

// Diff lists the differences between two sides.
type Diff struct {
	Nodes    []string // compared nodes
	Config   []config.Difference
	Facts    []nodeFact
	Services []flow.Service // by effect
	Compared Compared
	Unknown  []string            // what was not compared: the time was up, or there is no common Node
	Ignored  map[flow.Effect]int // changes that Ignore removed
	// NotCompared is what changed beside Services: Ingresses, routes, policies, custom resources, settings
	// of load balancers, names of headless Services.
	NotCompared []string
	NotRead     []string         // files and objects that differ, but were not compared
	Wrong       int              // objects with errors, which are not fully compared
	sides       [2]*review.Input // the inputs, which locate the causes
	// bothFamilies reports that flows of both families change, or that a Service gets or loses one.
	bothFamilies bool
}

// Compared is the size of a comparison.
type Compared struct {
	Services     int `json:"services"`     // with rules on the first node
	Destinations int `json:"destinations"` // their frontends
	Classes      int `json:"classes"`      // of packets, at destinations where something may differ
}

// position returns the position of a cause in the files of a side as FILE:LINE:COLUMN, or "" if the
// cause is in no file.
func (d *Diff) position(side int, c flow.Cause) string {
	if c.Object == "" || d.sides[side] == nil {
		return ""
	}
	return d.sides[side].Position(c.Object, c.Field)
}

// nodeFact is one difference in the facts about nodes.
type nodeFact struct {
	Nodes         []string
	What          string
	Before, After string // "": absent
}

// Empty reports whether the comparison was complete and found no difference.
func (d *Diff) Empty() bool { return !d.Has(flow.Effects()) }

// Has reports whether a change has one of the effects, or may have it because the comparison is
// incomplete. Settings have effect flow.Other.
func (d *Diff) Has(effects []flow.Effect) bool {
	return len(d.Unknown)+len(d.NotRead) > 0 || d.settings() > 0 && slices.Contains(effects, flow.Other) ||
		slices.ContainsFunc(d.Services, func(s flow.Service) bool { return slices.Contains(effects, s.Effect) })
}

// settings returns the number of settings and facts that differ.
func (d *Diff) settings() int { return len(d.Config) + len(d.Facts) }

// Ignore removes and counts the changes with some effects.
func (d *Diff) Ignore(effects []flow.Effect) {
	is := func(s flow.Service) bool { return slices.Contains(effects, s.Effect) }
	d.Ignored = flow.Count(slices.DeleteFunc(slices.Clone(d.Services), func(s flow.Service) bool { return !is(s) })).Effects
	d.Services = slices.DeleteFunc(d.Services, is)
	if slices.Contains(effects, flow.Other) {
		d.Ignored[flow.Other] += d.settings()
		d.Config, d.Facts = nil, nil
	}
}

// Nodes selects the nodes for which two sides are compared. The zero value selects the node that
// the configuration names.
type Nodes struct {
	Names []string
	All   bool // all nodes that a side has
}

// Any reports whether nodes are selected explicitly.
func (c Nodes) Any() bool { return c.All || len(c.Names) > 0 }

// WrongObjects returns the number of objects with errors, and whether all errors are about objects,
// rather than files or settings.
func WrongObjects(findings diag.List) (n int, all bool) {
	objects := map[string]bool{}
	for _, d := range findings {
		if d.Severity != diag.Error {
			continue
		}
		if d.Object+d.File == "" || strings.HasPrefix(d.Object, "--") {
			return 0, false
		}
		objects[cmp.Or(d.Object, d.File)] = true
	}
	return len(objects), true
}

// comparison returns the changes of the selected Services between two Programs of one node and
// family, and the number of packet classes that it compared.
type comparison func(ctx context.Context, where flow.Network, a, b *ir.Program, of func(ir.Name) bool) ([]flow.Service, int, error)

// All selects all Services.
func All(ir.Name) bool { return true }

// Compare compares the selected Services of two sides for the selected nodes, or for the node that
// the configuration names if none is selected.
func Compare(ctx context.Context, was, is *review.Input, chosen Nodes, of func(ir.Name) bool, compare comparison) (*Diff, error) {
	d := &Diff{Config: config.Differences(was.Resolved, is.Resolved), NotRead: append(is.NotRead, review.OtherVersions(was, is, of)...), sides: [2]*review.Input{was, is}}
	d.addNotCompared(was, is, of)
	given := d.sides
	sides, unknown := review.AssumeEndpoints(was, is)
	was, is = sides[0], sides[1]
	defer func() { given[0].Diags, given[1].Diags = was.Diags, is.Diags }()
	facts := factsByWhat{}
	chosen.All = chosen.All || !chosen.Any() && allNodes(was, is)
	nodes := [2][]compiler.Facts{{was.Facts}, {is.Facts}}
	var added []compiler.Facts
	if chosen.Any() {
		var err error
		if nodes, added, err = nodesOf(was, is, chosen, facts); err != nil {
			return nil, err
		}
	}
	if len(nodes[0]) == 0 {
		d.Unknown = append(d.Unknown, "no Node is in both snapshots, so no flow is compared: to apply manifests to a snapshot, pass them with --overlay")
	}
	var merged flow.Merger
	pods, workloads := append(was.Pods(), is.Pods()...), [2]flow.Workloads{was.Workloads(), is.Workloads()}
	notes := unassumed(was, is, of)
	next, stop := iter.Pull2(is.CompileNodes(nodes[1]))
	defer stop()
	for i, before := range was.CompileNodes(nodes[0]) {
		n := nodes[0][i]
		_, after, _ := next()
		if !chosen.Any() {
			was.CheckAddrs(was.Facts, before)
			is.CheckAddrs(is.Facts, after)
		}
		where := flow.Network{Here: append(was.PodsOn(n.NodeName), is.PodsOn(nodes[1][i].NodeName)...), Pods: pods, Shown: is.StandIns.Shown, Sides: workloads}
		if err := d.add(ctx, &merged, n.NodeName, where, before, after, of, compare); err != nil {
			return nil, err
		}
		merged.Add(n.NodeName, notes)
		for _, f := range ir.Families() {
			facts.compare(n.NodeName, f, before.Of(f), after.Of(f))
		}
		if len(d.Unknown) > 0 && i+1 < len(nodes[0]) {
			d.Unknown = append(d.Unknown, fmt.Sprintf("%d of %d nodes are compared", i+1, len(nodes[0])))
			break
		}
	}
	if err := d.addNew(ctx, &merged, was, is, added, pods, of); err != nil {
		return nil, err
	}
	for _, name := range slices.SortedFunc(maps.Keys(unknown), ir.Name.Compare) {
		if of(name) {
			d.Unknown = append(d.Unknown, fmt.Sprintf("endpoints of %s: %s", name, unknown[name]))
		}
	}
	d.Unknown = append(d.Unknown, rescoped(given[0], given[1], of)...)
	for object := range review.Fixed(was, is) {
		d.NotRead = append(d.NotRead, object+" (with errors before)")
	}
	slices.Sort(d.NotRead)
	d.Facts = facts.list()
	services := merged.Services()
	for i := range services { // one that stays may lose its rules: it becomes headless
		if name := services[i].Name; was.Snapshot.Service(name) != nil && is.Snapshot.Service(name) != nil {
			services[i].Action = flow.Changed
		}
	}
	d.setServices(services)
	return d, nil
}

// allNodes reports whether sides are compared for all Nodes: these are stand-ins, or this machine is none of them.
func allNodes(was, is *review.Input) bool {
	return was.OfHost && cmp.Or(was.NoSuchNode("", false), is.NoSuchNode("", false)) != nil || was.AssumedNodes() && is.AssumedNodes()
}

// unassumed returns changes of fields that have no effect on assumed Nodes or pods, and of what names of Services without
// rules stand for.
func unassumed(was, is *review.Input, of func(ir.Name) bool) (out []flow.Service) {
	sides := [2]*review.Workloads{was.Workloads(), is.Workloads()}
	for _, svc := range is.Snapshot.Services() {
		old := was.Snapshot.Service(svc.Name)
		if old == nil || !of(svc.Name) {
			continue
		}
		a, b := was.Reader.Written()[old.Object], is.Reader.Written()[svc.Object]
		family := ir.FamilyNamed(strings.Join(svc.IPFamilies[:min(1, len(svc.IPFamilies))], "")) // the first
		note := func(effect flow.Effect, what, before, after string) {
			if before != after {
				out = append(out, flow.Service{Name: svc.Name, Notes: []flow.Note{{Effect: effect, What: what, Before: before, After: after, Family: family}}})
			}
		}
		if before, after := sides[0].Resolved(svc.Name), sides[1].Resolved(svc.Name); before != nil || after != nil {
			if a.Reduced == b.Reduced && leads(before, after, svc) {
				effect := effectOf(before, after)
				if before == nil {
					before = []string{cmp.Or(old.Type, "ClusterIP")}
				}
				note(effect, flow.NameInDNS, strings.Join(before, ", "), strings.Join(after, ", "))
			}
			continue
		}
		if was.AssumedNodes() && is.AssumedNodes() {
			note(flow.Spread, "spec.trafficDistribution", a.Distribution, b.Distribution)
		}
		given := func(s *snapshot.EndpointSlice) bool { return !s.Assumed() }
		if !slices.ContainsFunc(is.Snapshot.Slices(svc.Name), given) { // assumed pods are ready
			note(flow.Spread, "spec.publishNotReadyAddresses", strconv.FormatBool(a.NotReady), strconv.FormatBool(b.NotReady))
		}
	}
	return out
}

// leads reports whether the targets of the name of a Service are known before and after a change.
func leads(before, after []string, svc *snapshot.Service) bool {
	return after != nil && (svc.Type == "ExternalName" || before != nil && (len(before) > 0 || svc.ClusterIP == "None"))
}

// effectOf returns the effect of other targets of a name.
func effectOf(before, after []string) flow.Effect {
	switch {
	case len(after) == 0:
		return flow.Lost
	case slices.ContainsFunc(after, func(target string) bool { return !slices.Contains(before, target) }):
		return flow.Opens
	}
	return flow.Backends
}

// addNew adds the access that new Nodes open, which only the second side has: to their node ports, and
// to addresses of Services that are theirs.
func (d *Diff) addNew(ctx context.Context, merged *flow.Merger, was, is *review.Input, nodes []compiler.Facts, pods []netip.Prefix, of func(ir.Name) bool) error {
	for i, programs := range is.CompileNodes(nodes) {
		n := nodes[i]
		d.Nodes = append(d.Nodes, n.NodeName)
		for _, p := range ir.Present(programs) {
			where := flow.Network{Here: is.PodsOn(n.NodeName), Pods: pods, Shown: is.StandIns.Shown}
			services, _, err := flow.CompareOf(ctx, where, nil, atNode(p), of)
			if err := d.unfinished(n.NodeName, p.Family, err); err != nil {
				return err
			}
			services = slices.DeleteFunc(services, func(s flow.Service) bool { return s.Name == ir.Name{} })
			for i := range services {
				s := &services[i]
				s.Notes, s.Flows = nil, slices.DeleteFunc(s.Flows, func(f flow.Flow) bool { return f.Change.Effect != flow.Opens })
			}
			merged.Add(n.NodeName, services)
		}
	}
	return nil
}

// atNode returns a Program with only the frontends at addresses of the node.
func atNode(p *ir.Program) *ir.Program {
	out := *p
	out.Services = nil
	for _, s := range p.Services {
		s.Frontends = slices.DeleteFunc(slices.Clone(s.Frontends), func(f ir.Frontend) bool {
			return !f.Match.IsNodePort() && !p.Node.HasAddr(f.Match.Addr)
		})
		if len(s.Frontends) > 0 {
			out.Services = append(out.Services, s)
		}
	}
	return &out
}

// ComparePrograms compares the Programs of one node.
func ComparePrograms(ctx context.Context, node string, where flow.Network, was, is ir.Programs) (*Diff, error) {
	var d Diff
	var merged flow.Merger
	if err := d.add(ctx, &merged, node, where, was, is, All, flow.CompareOf); err != nil {
		return nil, err
	}
	d.setServices(merged.Services())
	return &d, nil
}

// setServices sets the changes of both families on all nodes.
func (d *Diff) setServices(services []flow.Service) {
	changes := map[ir.Family]bool{}
	for _, s := range services {
		for i := range s.Flows {
			d.name(&s.Flows[i])
			changes[s.Flows[i].Family] = true
		}
	}
	d.Services, d.bothFamilies = flow.ByEffect(services), d.bothFamilies || len(changes) > 1
}

// add compares the Programs of a node, and adds the changes to merged.
func (d *Diff) add(ctx context.Context, merged *flow.Merger, node string, where flow.Network, was, is ir.Programs, of func(ir.Name) bool, compare comparison) error {
	d.Nodes = append(d.Nodes, node)
	if len(d.Nodes) == 1 {
		d.count(was, is, of)
	}
	for _, f := range ir.Families() {
		a, b := was.Of(f), is.Of(f)
		if a == nil && b == nil {
			continue
		}
		services, classes, err := compare(ctx, where, a, b, of)
		if err := d.unfinished(node, f, err); err != nil {
			return err
		}
		d.Compared.Classes += classes
		for i := range services {
			if s := &services[i]; s.Action != flow.Changed && has(was, s.Name) && has(is, s.Name) { // it gets or loses a family
				s.Action, d.bothFamilies = flow.Changed, true
			}
		}
		merged.Add(node, services)
	}
	return nil
}

// unfinished records that a comparison is unfinished, and returns any other error.
func (d *Diff) unfinished(node string, f ir.Family, err error) error {
	if why := flow.Unfinished(""); errors.As(err, &why) {
		d.Unknown = append(d.Unknown, fmt.Sprintf("node %s, %s: %s", node, f, why))
		return nil
	}
	return err
}

// has reports whether a Service has rules in any family.
func has(programs ir.Programs, name ir.Name) bool {
	for _, p := range ir.Present(programs) {
		if _, ok := p.Find(name); ok {
			return true
		}
	}
	return false
}

// count counts the selected Services of a node and their frontends, on both sides together.
func (d *Diff) count(was, is ir.Programs, of func(ir.Name) bool) {
	type at struct {
		ir.Family
		ir.Match
	}
	services, frontends := map[ir.Name]bool{}, map[at]bool{}
	for _, programs := range [...]ir.Programs{was, is} {
		for f, p := range ir.Present(programs) {
			for i := range p.Services {
				s := &p.Services[i]
				if !of(s.Name) {
					continue
				}
				services[s.Name] = true
				for j := range s.Frontends {
					frontends[at{f, s.Frontends[j].Match}] = true
				}
			}
		}
	}
	d.Compared.Services, d.Compared.Destinations = len(services), len(frontends)
}

// nodesOf returns the facts about the selected nodes that both sides have, in the same order, and
// about those that only the second side has. It adds the nodes of only one side to facts. If no side
// has Nodes, the node is that of the configuration.
func nodesOf(was, is *review.Input, chosen Nodes, facts factsByWhat) (nodes [2][]compiler.Facts, added []compiler.Facts, err error) {
	names := slices.Clone(chosen.Names)
	if chosen.All {
		for _, n := range append(was.Snapshot.Nodes(), is.Snapshot.Nodes()...) {
			names = append(names, n.Name)
		}
	}
	for _, name := range compacted(names) {
		switch a, b := was.Snapshot.Node(name), is.Snapshot.Node(name); {
		case a == nil && b == nil && len(was.Snapshot.Nodes())+len(is.Snapshot.Nodes()) > 0:
			return nodes, nil, review.UnknownNode("--node", name, fmt.Sprintf("got %q", name), was.Snapshot, is.Snapshot)
		case a == nil && b != nil:
			facts.add(name, "Node", "", "in the snapshot")
			added = append(added, is.Others(name))
		case a != nil && b == nil:
			facts.add(name, "Node", "in the snapshot", "")
		default: // or manifests without Nodes
			nodes[0] = append(nodes[0], was.Others(name))
			nodes[1] = append(nodes[1], is.Others(name))
		}
	}
	if len(names) == 0 { // manifests without Nodes: one is assumed
		nodes = [2][]compiler.Facts{{was.Facts}, {is.Facts}}
	}
	return nodes, added, nil
}

// FactsOf returns the facts about the selected nodes.
func FactsOf(j *review.Input, chosen Nodes) ([]compiler.Facts, error) {
	nodes, _, err := nodesOf(j, j, chosen, factsByWhat{})
	return nodes[0], err
}

// factsByWhat maps each difference in facts to the names of the nodes that have it.
type factsByWhat map[nodeFactKey][]string

type nodeFactKey struct{ what, before, after string }

func (f factsByWhat) add(node, what, before, after string) {
	k := nodeFactKey{what, before, after}
	f[k] = append(f[k], node)
}

// compare records the differences of the node itself in one family. It ignores differences that
// follow from the configuration.
func (f factsByWhat) compare(node string, family ir.Family, a, b *ir.Program) {
	before, after := nodeFacts(a), nodeFacts(b)
	all := maps.Clone(before)
	maps.Copy(all, after)
	for k := range all {
		if before[k] != after[k] {
			f.add(node, family.String()+" "+k, before[k], after[k])
		}
	}
}

// nodeFacts returns the facts in a Program that come from the Node object and the cluster.
func nodeFacts(p *ir.Program) map[string]string {
	if p == nil {
		return map[string]string{}
	}
	n := &p.Node
	facts := map[string]string{"zone": n.Zone}
	if n.IP.IsValid() {
		facts["address"] = n.IP.String()
	}
	facts["all addresses"] = review.FirstBy(n.Addrs, len(n.Addrs), netip.Addr.String)
	facts["Service networks"] = review.FirstBy(n.ServiceCIDRs, len(n.ServiceCIDRs), func(c ir.CIDR) string { return c.Prefix.String() })
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

// Lines compares texts line by line.
func Lines(from, to ir.Programs, format string) ([]byte, error) {
	var a, b bytes.Buffer
	var none *review.FormatError
	if err := review.WriteFormat(&a, from, format); errors.As(err, &none) {
		forms := append(FormNames(), none.Writes...)
		return nil, fmt.Errorf("-o: must be one of %s in mode %s, got %q%s", strings.Join(forms, ", "), none.Mode, format, diag.Meant(format, forms))
	} else if err != nil {
		return nil, err
	}
	if err := review.WriteFormat(&b, to, format); err != nil {
		return nil, err
	}
	_, lines, found := bytes.Cut(diff.Diff(format, a.Bytes(), format, b.Bytes()), []byte("\n"))
	if !found {
		return nil, nil
	}
	return append([]byte("diff "+format+"\n"), lines...), nil
}
