package assume

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// nodesFor returns the Nodes where the pods of a workload run. A workload other than a DaemonSet gets a
// Node in spite of taints if it requires none in particular: the cluster may add one.
func (c *cluster) nodesFor(load *snapshot.Workload) []*snapshot.Node {
	c.readNodes()
	if !c.tainted && !constrained(load) {
		return c.nodes
	}
	fits := slices.DeleteFunc(slices.Clone(c.nodes), func(n *snapshot.Node) bool { return !c.fits(load, n, false) })
	if len(fits) == 0 && load.Pods != snapshot.PerNode && !constrained(load) {
		return c.nodes
	}
	return fits
}

// constrained reports whether the pods of a workload require Nodes with labels or names.
func constrained(load *snapshot.Workload) bool {
	return len(load.NodeSelector) > 0 || load.Affinity != nil
}

// everywhere reports whether the pods of a DaemonSet run on every Node of a usual cluster, which has only
// the labels of a kubelet.
func everywhere(load *snapshot.Workload) bool {
	usual := cluster{labelled: map[string]bool{corev1.LabelHostname: true}}
	return usual.fits(load, &snapshot.Node{}, true)
}

// pending returns the field because of which no Node fits the pods of a workload.
func (c *cluster) pending(load *snapshot.Workload) ir.Origin {
	o := ir.Origin{Object: load.Object}
	some := *load
	some.Affinity, some.Tolerations = nil, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	none := func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *snapshot.Node) bool { return c.fits(&some, n, false) })
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(load.NodeSelector)) {
		all = append(all, key+"="+load.NodeSelector[key])
		if some.NodeSelector = map[string]string{key: load.NodeSelector[key]}; none() {
			all = all[len(all)-1:]
			break
		}
	}
	switch some.NodeSelector = load.NodeSelector; {
	case none():
		o.Field, o.Reason = load.Template("spec.nodeSelector"), "no Node has label "+strings.Join(all, " and ")
	default:
		if some.Affinity = load.Affinity; none() {
			o.Field, o.Reason = load.Template("spec.affinity"), "no Node meets the required node affinity"
		} else {
			o.Field, o.Reason = load.Template("spec.tolerations"), "the pods do not tolerate the taints of any Node that fits"
		}
	}
	return o
}

// samePlacement reports whether the pods of two workloads can run on the same Nodes.
func samePlacement(a, b *snapshot.Workload) bool {
	same := equality.Semantic.DeepEqual
	return same(a.NodeSelector, b.NodeSelector) && same(a.Affinity, b.Affinity) && same(a.Tolerations, b.Tolerations)
}

// readNodes reads the Nodes once.
func (c *cluster) readNodes() {
	if c.nodes != nil {
		return
	}
	c.nodes, c.labelled = c.snap.Nodes(), map[string]bool{}
	if other := c.snap.Node(OtherNode(c.node)); len(c.nodes) == 2 && other != nil && len(other.Addresses) > 0 {
		if a, _ := netip.ParseAddr(other.Addresses[0].Address); c.Name(a) != "" {
			c.nodes = []*snapshot.Node{} // see StandIns.Nodes
		}
	}
	for _, n := range c.nodes {
		w := c.written[objectOf(n)]
		c.tainted = c.tainted || len(w.Taints) > 0
		for key := range w.Labels {
			c.labelled[key] = true
		}
	}
}

func objectOf(n *snapshot.Node) string { return "Node " + n.Name }

// fits reports whether the pods of a workload can run on a Node. A running one remains in spite of
// taints with effect NoSchedule.
func (c *cluster) fits(load *snapshot.Workload, n *snapshot.Node, running bool) bool {
	for _, t := range c.written[objectOf(n)].Taints {
		if (t.Effect == corev1.TaintEffectNoExecute || t.Effect == corev1.TaintEffectNoSchedule && !running) && !tolerates(load, &t) {
			return false
		}
	}
	for key, value := range load.NodeSelector {
		if !c.nodeHas(n, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}) {
			return false
		}
	}
	return load.Affinity == nil || slices.ContainsFunc(load.Affinity.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		named := func(r corev1.NodeSelectorRequirement) bool { // only metadata.name exists
			return slices.Contains(r.Values, n.Name) == (r.Operator == corev1.NodeSelectorOpIn)
		}
		return len(t.MatchExpressions)+len(t.MatchFields) > 0 &&
			!slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return !c.nodeHas(n, r) }) &&
			!slices.ContainsFunc(t.MatchFields, func(r corev1.NodeSelectorRequirement) bool { return !named(r) })
	})
}

// operators are those of labels for those of Nodes.
var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists,
	corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// nodeHas reports whether a Node meets a requirement. A key that no Node has is unknown, and meets any,
// unless the Nodes have the labels of a kubelet.
func (c *cluster) nodeHas(n *snapshot.Node, need corev1.NodeSelectorRequirement) bool {
	platform := need.Key == corev1.LabelOSStable || need.Key == corev1.LabelArchStable // which every kubelet sets
	if !c.labelled[need.Key] && (platform || !c.labelled[corev1.LabelHostname]) {
		return true
	}
	r, err := labels.NewRequirement(need.Key, operators[need.Operator], need.Values)
	return err == nil && r.Matches(labels.Set(c.written[objectOf(n)].Labels))
}

// daemonTaints are the taints that all pods of a DaemonSet tolerate.
var daemonTaints = map[string]corev1.TaintEffect{
	corev1.TaintNodeNotReady: corev1.TaintEffectNoExecute, corev1.TaintNodeUnreachable: corev1.TaintEffectNoExecute,
	corev1.TaintNodeDiskPressure: corev1.TaintEffectNoSchedule, corev1.TaintNodeMemoryPressure: corev1.TaintEffectNoSchedule,
	corev1.TaintNodePIDPressure: corev1.TaintEffectNoSchedule, corev1.TaintNodeUnschedulable: corev1.TaintEffectNoSchedule,
}

// tolerates reports whether the pods of a workload tolerate a taint.
func tolerates(load *snapshot.Workload, t *corev1.Taint) bool {
	if load.Pods == snapshot.PerNode && (daemonTaints[t.Key] == t.Effect || load.HostNetwork && t.Key == corev1.TaintNodeNetworkUnavailable) {
		return true
	}
	return slices.ContainsFunc(load.Tolerations, func(has corev1.Toleration) bool {
		return (has.Effect == "" || has.Effect == t.Effect) && (has.Key == "" || has.Key == t.Key) &&
			(has.Operator == corev1.TolerationOpExists || cmp.Or(has.Operator, corev1.TolerationOpEqual) == corev1.TolerationOpEqual && has.Value == t.Value)
	})
}

// Pods returns a function that returns the pods of a workload. written are the fields of the objects
// that the Snapshot does not keep. node is the node that is reviewed.
func (s *StandIns) Pods(snap *snapshot.Snapshot, written map[string]manifest.Written, node string) func(*snapshot.Workload, ir.Family) []snapshot.Endpoint {
	c := cluster{StandIns: s, snap: snap, written: written, node: node}
	return func(load *snapshot.Workload, family ir.Family) []snapshot.Endpoint {
		return c.pods(load, family, indices(c.number(load)), everyPod)
	}
}

// indices returns the indices of the first n pods of a workload.
func indices(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// number returns the number of pods of a workload. A Node has room for one on its network. Without a
// Node that they require, all pods are pending.
func (c *cluster) number(load *snapshot.Workload) int {
	onePerNode := load.Pods == snapshot.PerNode || load.HostNetwork && load.Pods > 1
	if !onePerNode && (!constrained(load) || load.NodeName != "") {
		return load.Pods
	}
	nodes := len(c.nodesFor(load))
	switch {
	case len(c.nodes) == 0 && onePerNode:
		if load.Pods == snapshot.PerNode && everywhere(load) {
			return 2 // see Nodes
		}
		return 1
	case load.Pods == snapshot.PerNode:
		return nodes
	case onePerNode:
		return min(load.Pods, nodes)
	case nodes == 0 && len(c.nodes) > 0:
		return 0
	}
	return load.Pods
}

// pods returns some pods of a workload, each assumed to be ready. They are spread over the Nodes.
// Without Nodes, they are on the node that is reviewed. one is the ordinal of the only one, or everyPod.
func (c *cluster) pods(load *snapshot.Workload, family ir.Family, some []int, one int) (out []snapshot.Endpoint) {
	nodes := c.nodesFor(load)
	for _, i := range some {
		if one != everyPod && one != load.First+i {
			continue
		}
		name := fmt.Sprintf("%s-%d", load.Name.Name, load.First+i)
		if load.Kind == "Pod" {
			name = load.Name.Name
		}
		e := snapshot.Endpoint{Pod: name, NodeName: cmp.Or(load.NodeName, c.node), Ready: true, Serving: true}
		switch {
		case load.NodeName != "":
		case len(nodes) > 0:
			e.NodeName = nodes[i%len(nodes)].Name
		case load.Pods == snapshot.PerNode && i > 0:
			e.NodeName = OtherNode(c.node)
		}
		if e.Addr = c.addrOf(load, family, i, e.NodeName); e.Addr.IsValid() {
			e.Address = e.Addr.String()
			out = append(out, e)
		}
	}
	return out
}

// addrOf returns the address of a pod: its own, that of its node, or a stand-in. It is invalid if the
// node has none of the family.
func (c *cluster) addrOf(load *snapshot.Workload, family ir.Family, i int, on string) netip.Addr {
	texts := load.IPs
	if load.HostNetwork {
		node := c.snap.Node(on)
		if node == nil || len(node.Addresses) == 0 {
			return c.addr(family, "Node "+on) // see Nodes
		}
		texts = nil
		for _, a := range node.Addresses {
			if a.Type == string(corev1.NodeInternalIP) {
				texts = append(texts, a.Address)
			}
		}
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && ir.FamilyOf(a) == family {
			return a
		}
	}
	if load.HostNetwork {
		return netip.Addr{}
	}
	return c.podAddr(family, fmt.Sprintf("pod %d of %s", i, load.Object), load.Object, i)
}
