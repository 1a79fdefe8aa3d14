package assume

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// An Overlay is a set of manifests that is applied to the snapshot of a cluster.
type Overlay struct {
	Objects *snapshot.Snapshot
	// Was are the written fields of the snapshot's objects. Written are those of all objects, where
	// those of the Overlay have replaced the snapshot's.
	Was, Written map[string]manifest.Written
	Prune        []Selection
	Node         string // of assumed pods if there are no Nodes
	PodRanges    []netip.Prefix
	// OnlyReal leaves out what has a stand-in instead of an address.
	OnlyReal bool
}

// A Selection selects objects by namespace and labels, both if both are set.
type Selection struct {
	Namespace string
	Labels    map[string]string
	text      string
}

// has reports whether an object is selected.
func (s *Selection) has(name ir.Name, of labels.Set) bool {
	return (s.Namespace == "" || s.Namespace == name.Namespace) && labels.SelectorFromSet(s.Labels).Matches(of)
}

// UnmarshalText parses KEY=VALUE pairs with commas between them, in which key namespace is that of the
// object and any other a label.
func (s *Selection) UnmarshalText(text []byte) error {
	*s = Selection{text: string(text)}
	for pair := range strings.SplitSeq(s.text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" || key == "namespace" && (value == "" || s.Namespace != "") {
			return fmt.Errorf("must be namespace=NAME, LABEL=VALUE, or both with a comma, got %q", text)
		}
		if key == "namespace" {
			s.Namespace = value
			continue
		}
		ir.SetIn(&s.Labels, key, value)
	}
	return nil
}

// Check returns an error about a Selection that selects nothing.
func (o *Overlay) Check(snap *snapshot.Snapshot) error {
	for _, s := range o.Prune {
		found, labelled := false, false
		for _, of := range []*snapshot.Snapshot{snap, o.Objects} {
			written := o.Was
			if of == o.Objects {
				written = o.Written
			}
			for _, svc := range of.Services() {
				labels := written[svc.Object].Labels
				found, labelled = found || s.has(svc.Name, labels), labelled || of == snap && len(labels) > 0
			}
			for _, w := range of.Workloads() {
				found = found || s.has(w.Name, written[w.Object].Labels)
			}
		}
		switch {
		case len(s.Labels) > 0 && !labelled:
			return errors.New("--prune: no Service of the snapshot has labels: save the snapshot with kubectl get -o yaml, or use namespace=NAME")
		case !found:
			return fmt.Errorf("--prune: must select an object of the snapshot or the overlay, got %q", s.text)
		}
	}
	return nil
}

// Apply changes a snapshot as kubectl apply of the manifests would, and as the controllers of the
// cluster would then. It keeps what they allocated. A manifest that the API server rejects is a
// finding, and the snapshot keeps its object.
func (s *StandIns) Apply(snap *snapshot.Snapshot, o *Overlay) (found diag.List) {
	s.observe(snap.Services())
	rejected := func(kept bool, wrong diag.List) {
		o.Written[wrong[0].Object] = o.Was[wrong[0].Object]
		found.Add(because(wrong, kept)...)
	}
	kept := map[string]bool{}
	for _, w := range o.Objects.Workloads() {
		written, old := o.Written[w.Object], snap.Workload(w.Object)
		if wrong := rejectedWorkload(w, old, &written); wrong != nil {
			rejected(old != nil, wrong)
			o.Objects.DeleteWorkload(w.Object)
			kept[w.Object] = true
		}
	}
	old := map[string]*snapshot.Workload{}
	for _, w := range snap.Workloads() {
		old[w.Object] = w
	}
	o.keepStatus(snap)
	snap.Overlay(o.Objects)
	for _, w := range o.Objects.Workloads() {
		if was := old[w.Object]; was != nil && w.AnyNumber && slices.Contains(scalable, w.Kind) {
			scaled := *w
			scaled.Pods = was.Pods
			snap.SetWorkload(&scaled)
		}
	}
	a := &applied{Overlay: o, cluster: s.cluster(snap, o.Written, o.Node, o.PodRanges), kept: kept,
		before: map[ir.Name]*snapshot.Service{}, namespaces: map[string][]*pod{}, byName: map[ir.Name]*pod{}, at: map[place]*pod{},
		made: map[*snapshot.Workload][]*pod{}, old: old, sliced: map[string]bool{}, missing: map[*snapshot.Workload][]int{}}
	a.mirror()
	a.applyServices(rejected)
	gone := a.prune()
	for _, w := range append(o.Objects.Workloads(), gone...) {
		a.namespaces[w.Name.Namespace] = nil
	}
	a.workloads = NewWorkloads(append(snap.Workloads(), gone...))
	a.findPods()
	for _, svc := range snap.Services() {
		if _, ok := a.namespaces[svc.Name.Namespace]; ok {
			a.derive(svc)
		}
	}
	return found
}

// applyServices applies the Services of the Overlay, in order, and calls rejected with the reasons why the
// API server rejects one.
func (a *applied) applyServices(rejected func(kept bool, wrong diag.List)) {
	numbers := owners{}
	for _, svc := range a.snap.Services() {
		existing := *svc
		existing.Created = since(svc)
		a.snap.SetService(&existing)
		a.set(numbers, &existing, nil)
	}
	for _, svc := range a.inOrder(a.Objects.Services()) {
		old, w, was := a.snap.Service(svc.Name), a.Written[svc.Object], a.Was[svc.Object]
		wrong := a.rejected(&change{svc, old, &w, &was})
		if wrong == nil {
			if old != nil {
				svc = a.merge(&change{svc, old, &w, &was})
			} else {
				fresh := *svc // the API server does not accept what only it and controllers set
				fresh.Created, fresh.LoadBalancer = time.Time{}, nil
				svc = &fresh
			}
			wrong = a.taken(numbers, svc, old)
		}
		if wrong != nil {
			if rejected(old != nil, wrong); old == nil {
				a.skip(svc, wrong)
			}
			continue
		}
		a.set(numbers, svc, old)
		w.Rejected, w.Live = nil, old != nil && was.Live  // the API server has completed the rest
		if old != nil && balanced(old) == balanced(svc) { // a controller may have added the others
			set := w.Settings
			w.Settings = maps.Clone(was.Settings)
			for key, value := range set {
				ir.SetIn(&w.Settings, key, value)
			}
		}
		a.Written[svc.Object] = w
		a.before[svc.Name] = old
		a.snap.SetService(svc)
		a.snap.ClearInvalid(svc.Object)
		a.namespaces[svc.Name.Namespace] = nil
	}
}

// keepStatus makes the status of Nodes and Pods that of the snapshot: it is a subresource, which manifests
// do not change. So are the fields that kubelets and controllers set, and the manifest does not.
func (o *Overlay) keepStatus(snap *snapshot.Snapshot) {
	for _, n := range o.Objects.Nodes() {
		old, object := snap.Node(n.Name), objectOf(n)
		if old == nil {
			continue // the API server accepts the status of a new one
		}
		node, w, was := *n, o.Written[object], o.Was[object]
		node.Addresses, node.Zone, node.Only = old.Addresses, cmp.Or(n.Zone, old.Zone), old.Only
		if len(n.PodCIDRs) == 0 {
			node.PodCIDRs = old.PodCIDRs
		}
		labels := maps.Clone(was.Labels)
		for key, value := range w.Labels {
			ir.SetIn(&labels, key, value)
		}
		if w.Kernel, w.Labels = was.Kernel, labels; len(w.Taints) == 0 {
			w.Taints = was.Taints
		}
		o.Objects.SetNode(&node)
		o.Written[object] = w
	}
	for _, w := range o.Objects.Workloads() {
		if w.Kind != "Pod" {
			continue
		}
		pod := *w
		if pod.Pods, pod.IPs = 1, nil; snap.Workload(w.Object) != nil {
			old := snap.Workload(w.Object)
			pod.Pods, pod.IPs, pod.NodeName = old.Pods, old.IPs, cmp.Or(w.NodeName, old.NodeName)
		}
		o.Objects.SetWorkload(&pod)
	}
}

// scalable are the kinds whose number of pods the cluster keeps if a manifest does not set it.
var scalable = []string{"Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"}

func hasClusterIP(s *snapshot.Service) bool { return s.Type != externalName && s.ClusterIP != "" }

// merge returns a Service after kubectl apply of its manifest. Fields of the manifest win, and those
// that it does not set have the default.
func (a *applied) merge(x *change) *snapshot.Service {
	out := x.keep(func(*snapshot.ServicePort) bool { return x.w.NoNodePorts && x.was.NoNodePorts })
	out.Created = since(x.old)
	if a.OnlyReal || !hasClusterIP(out) || out.ClusterIP == corev1.ClusterIPNone {
		return out
	}
	if all := a.dualStack(out.IPFamilies, x.w); x.w.FamilyPolicy != x.was.FamilyPolicy && len(all) > len(out.IPFamilies) {
		out.IPFamilies = all
		out.ClusterIPs = []string{out.ClusterIP, a.addr(ir.FamilyNamed(all[1]), "ClusterIP of "+out.Name.String()).String()}
	}
	a.fill(out, x.w, x.old)
	return out
}

// keep returns the Service with what its previous version has, while its type needs it, as in
// patchAllocatedValues and dropTypeDependentFields of the API server. given reports that the manifest of the
// previous version sets a node port, which apply removes if the new one does not.
func (x *change) keep(given func(*snapshot.ServicePort) bool) *snapshot.Service {
	svc, old, out := x.svc, x.old, *x.svc
	x.w.FamilyPolicy = cmp.Or(x.w.FamilyPolicy, x.was.FamilyPolicy)
	if svc.Type != externalName && hasClusterIP(old) {
		out.ClusterIP = old.ClusterIP
		if len(svc.ClusterIPs) <= len(old.ClusterIPs) {
			out.ClusterIPs, out.IPFamilies = old.ClusterIPs, old.IPFamilies
		}
		if n := min(1, len(out.ClusterIPs)); x.w.FamilyPolicy == string(corev1.IPFamilyPolicySingleStack) {
			out.ClusterIPs, out.IPFamilies = out.ClusterIPs[:n], out.IPFamilies[:min(1, len(out.IPFamilies))]
		}
	}
	out.Ports = slices.Clone(svc.Ports)
	if needsNodePorts(svc) && needsNodePorts(old) {
		keepNodePorts(out.Ports, old.Ports, given, allocates(svc, x.w) && allocates(old, x.was))
	}
	for i := range out.Ports {
		if !needsNodePorts(svc) {
			out.Ports[i].NodePort = 0
		}
	}
	if needsHealthPort(svc) && needsHealthPort(old) && svc.HealthPort == 0 {
		out.HealthPort = old.HealthPort
	}
	if out.LoadBalancer = nil; balanced(svc) && balanced(old) {
		out.LoadBalancer = old.LoadBalancer
	}
	return &out
}

func balanced(s *snapshot.Service) bool { return s.Type == string(corev1.ServiceTypeLoadBalancer) }

func needsNodePorts(s *snapshot.Service) bool {
	return balanced(s) || s.Type == string(corev1.ServiceTypeNodePort)
}

func needsHealthPort(s *snapshot.Service) bool { return balanced(s) && s.ExternalLocal }

// allocates reports whether the API server gives each port of a Service a node port.
func allocates(s *snapshot.Service, w *manifest.Written) bool {
	return needsNodePorts(s) && !(balanced(s) && w.NoNodePorts)
}

// keepNodePorts sets the missing node ports to those of the same port and protocol, whose list item
// apply merges, or else if patch is set those of the same name, as the API server does.
func keepNodePorts(ports, old []snapshot.ServicePort, given func(*snapshot.ServicePort) bool, patch bool) {
	find := func(same func(p, o *snapshot.ServicePort) bool) {
		for i := range ports {
			for j := range old {
				if p, o := &ports[i], &old[j]; p.NodePort == 0 && same(p, o) {
					p.NodePort = o.NodePort
				}
			}
		}
	}
	find(func(p, o *snapshot.ServicePort) bool {
		return p.Port == o.Port && p.Protocol == o.Protocol && !given(o)
	})
	used := nodePorts(ports)
	find(func(p, o *snapshot.ServicePort) bool {
		return patch && p.Name == o.Name && !slices.Contains(used, o.NodePort)
	})
}

// prune removes the selected objects that the Overlay lacks, and returns the workloads among them,
// without pods.
func (a *applied) prune() (gone []*snapshot.Workload) {
	selected := func(object string, name ir.Name) bool {
		return slices.ContainsFunc(a.Prune, func(s Selection) bool { return s.has(name, a.Was[object].Labels) })
	}
	for _, svc := range a.snap.Services() {
		if svc.Name == apiServer || a.Objects.Service(svc.Name) != nil || a.Objects.InvalidService(svc.Name) != nil || !selected(svc.Object, svc.Name) {
			continue
		}
		a.snap.DeleteService(svc.Name)
		a.replace(svc.Name, nil)
	}
	before := map[string]bool{}
	for _, w := range a.snap.Workloads() {
		before[w.Object] = true
		if a.Objects.Workload(w.Object) == nil && !a.kept[w.Object] && selected(w.Object, w.Name) {
			a.snap.DeleteWorkload(w.Object)
			none := *w
			none.Pods, none.AnyNumber = 0, false
			gone = append(gone, &none)
		}
	}
	for collected := len(gone) > 0; collected; { // the ReplicaSets and Pods of the removed workloads
		collected = false
		for _, w := range a.snap.Workloads() {
			if !before[w.Object] {
				a.snap.DeleteWorkload(w.Object)
				collected = true
			}
		}
	}
	return gone
}
