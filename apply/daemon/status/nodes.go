package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

// DaemonPods selects the Pods of docs/deploy, those of a canary and of Windows included.
const DaemonPods = "k8s-app in (proxyc, proxyc-canary, proxyc-windows)"

// Nodes is what the API server knows about the daemons of all Nodes, those that are not ready first.
type Nodes struct {
	Ready int       `json:"ready"` // how many
	Nodes []OfNode  `json:"nodes"`
	Now   time.Time `json:"now"`
}

// OfNode is the state of the daemon of a Node.
type OfNode struct {
	Node     string    `json:"node"`
	Pod      string    `json:"pod,omitempty"` // namespace/name
	Ready    bool      `json:"ready"`
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since,omitzero"`
	Restarts int32     `json:"restarts"` // of the Pod
}

// OfNodes returns the daemons of all Nodes. One is ready if the Node and the Pod are, as kubelet reports,
// and Node condition ServicesProgrammed, if there is one, is True. That alone has no heartbeat, so it is no
// sign of a daemon that runs.
func OfNodes(nodes []corev1.Node, pods []corev1.Pod, now time.Time) *Nodes {
	all := &Nodes{Now: now, Nodes: []OfNode{}}
	newest := map[string]*corev1.Pod{}
	for i := range pods {
		if p := &pods[i]; newest[p.Spec.NodeName] == nil || newest[p.Spec.NodeName].CreationTimestamp.Before(&p.CreationTimestamp) {
			newest[p.Spec.NodeName] = p
		}
	}
	for i := range nodes {
		n := OfNode{Node: nodes[i].Name, Reason: "kubelet has reported no state"}
		for _, c := range nodes[i].Status.Conditions {
			if c.Type == corev1.NodeReady {
				n.Ready, n.Reason, n.Since = c.Status == corev1.ConditionTrue, "the Node is not ready: "+cmp.Or(c.Message, c.Reason), c.LastTransitionTime.Time
			}
		}
		if n.Ready {
			n.addPod(newest[n.Node])
			n.addCondition(nodes[i].Status.Conditions)
		}
		all.Ready += ir.Int(n.Ready)
		all.Nodes = append(all.Nodes, n)
	}
	slices.SortFunc(all.Nodes, func(a, b OfNode) int {
		return cmp.Or(ir.Int(a.Ready)-ir.Int(b.Ready), strings.Compare(a.Node, b.Node))
	})
	return all
}

// addPod adds the state of the daemon's Pod; nil if there is none.
func (n *OfNode) addPod(pod *corev1.Pod) {
	if n.Ready = false; pod == nil {
		n.Reason, n.Since = "no Pod of proxyc", time.Time{}
		return
	}
	n.Pod, n.Reason, n.Since = pod.Namespace+"/"+pod.Name, "the Pod has phase "+string(pod.Status.Phase), pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			n.Ready, n.Since = c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil, c.LastTransitionTime.Time
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		n.Restarts += c.RestartCount
		if w := c.State.Waiting; w != nil {
			n.Reason = strings.TrimSuffix("its container waits: "+w.Reason+": "+w.Message, ": ")
		}
	}
	if n.Ready {
		n.Reason = "the Pod is ready"
	}
}

// addCondition adds what the daemon itself reports.
func (n *OfNode) addCondition(all []corev1.NodeCondition) {
	for _, c := range all {
		switch programmed := c.Status == corev1.ConditionTrue; {
		case c.Type != watch.ServicesProgrammed:
		case programmed && !n.Ready:
			n.Reason += "; condition ServicesProgrammed is still True, perhaps from a daemon that has ended"
		default:
			n.Ready, n.Reason, n.Since = n.Ready && programmed, c.Reason+": "+c.Message, c.LastTransitionTime.Time
		}
	}
}

// Print prints a line for each Node, and their numbers.
func (all *Nodes) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tREADY\tSINCE\tRESTARTS\tREASON")
	for _, n := range all.Nodes {
		since := "-"
		if !n.Since.IsZero() {
			since = age(all.Now, n.Since).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", n.Node, map[bool]string{false: "no", true: "yes"}[n.Ready], since, n.Restarts, strings.Join(strings.Fields(n.Reason), " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d of %d Nodes are ready.\n", all.Ready, len(all.Nodes))
	return err
}
