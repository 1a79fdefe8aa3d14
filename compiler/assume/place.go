package assume

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/proxyc/proxyc/compiler/snapshot"
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
	if !c.labelled[need.Key] && !c.labelled[corev1.LabelHostname] {
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
