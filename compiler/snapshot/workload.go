package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/proxyc/proxyc/ir"
)

// Workload is an object that makes pods, or a Pod, reduced to what its pods mean for Services.
type Workload struct {
	Kind   string
	Name   ir.Name
	Object string // "Deployment shop/web", as in findings
	Owner  string // the object that controls this one, such as "Deployment shop/web"; "" for none
	// Pods is the number of pods that run at the same time; PerNode for one on each Node.
	Pods int
	// AnyNumber reports that the object does not set Pods, and that a cluster may have others.
	AnyNumber bool
	// Doubtful marks an object of another kind without any sign that its program makes pods.
	Doubtful bool
	Labels   map[string]string // of each pod
	Identity map[string]string // what else policies and meshes read of each pod: see IdentityOf
	Ports    []corev1.ContainerPort
	// AllPorts reports that each container declares ports, and that nothing asks for more containers.
	// Numbers are those in the commands, variables and probes of the containers: ports may be among them.
	AllPorts    bool
	Numbers     []int32
	HostNetwork bool
	ServiceName string // spec.serviceName of a StatefulSet
	Selector    string // spec.selector, in a form to compare; "" if unknown
	First       int    // the ordinal of the first pod of a StatefulSet
	Indexed     bool   // each pod of a Job has an index
	// Tolerations, NodeSelector and Affinity select the Nodes of the pods. Affinity is the part that is
	// required; nil for none.
	Tolerations  []corev1.Toleration
	NodeSelector map[string]string
	Affinity     *corev1.NodeSelector
	// Pending is the field because of which no Node has room for the pods, with the reason; zero if
	// there is none. Package assume sets it.
	Pending ir.Origin
	// NodeName and IPs are set for a Pod that runs: spec.nodeName and status.podIPs.
	NodeName string
	IPs      []string
}

// Template returns the path of a field of the workload's pods.
func (w *Workload) Template(field string) string {
	switch w.Kind {
	case "Pod":
		return field
	case "CronJob":
		return "spec.jobTemplate.spec.template." + field
	}
	return "spec.template." + field
}

// PerNode is the number of pods of a DaemonSet.
const PerNode = -1

// Assumed reports whether the slice stands for a workload.
func (s *EndpointSlice) Assumed() bool { return strings.HasPrefix(s.Object, AssumedFrom) }

// AssumedFrom begins the object of an Origin that is not in the input, but follows from an object
// that is.
const AssumedFrom = "assumed from "

// Workloads returns the objects that make pods, sorted by kind and name. It omits those that
// another one of them controls, whose pods are the same.
func (s *Snapshot) Workloads() []*Workload {
	selectors := map[string]labels.Selector{} // parsed once, of the makers of many Pods
	return slices.DeleteFunc(sorted(s.workloads), func(w *Workload) bool { return s.owned(w, selectors) })
}

// makers are the kinds whose pods another kind owns, which may be missing in the input. The owner has
// their name and a suffix.
var makers = map[string]string{"ReplicaSet": "Deployment", "Job": "CronJob"}

// owned reports whether another workload controls one.
func (s *Snapshot) owned(w *Workload, selectors map[string]labels.Selector) bool {
	if s.workloads[w.Owner] != nil {
		return true
	}
	kind, name, _ := strings.Cut(w.Owner, " ")
	i := strings.LastIndexByte(name, '-')
	if i < 0 || makers[kind] == "" {
		return false
	}
	maker := s.workloads[makers[kind]+" "+name[:i]]
	if maker == nil {
		return false
	}
	selector := selectors[maker.Selector]
	if selector == nil {
		var err error
		if selector, err = labels.Parse(maker.Selector); err != nil {
			selector = labels.Nothing()
		}
		selectors[maker.Selector] = selector
	}
	return selector.Matches(labels.Set(w.Labels))
}

func sorted(all map[string]*Workload) []*Workload {
	return slices.SortedFunc(maps.Values(all), func(a, b *Workload) int {
		return cmp.Or(a.Name.Compare(b.Name), strings.Compare(a.Object, b.Object))
	})
}

// Customs returns the objects of files that may make pods in a way that is unknown: custom resources,
// and workloads with errors. Each has only its name, and the labels of a pod template. It omits doubtful ones
// with the name of a workload, or with a name that the labels of one have: that one has the pods of the name.
func (s *Snapshot) Customs() []*Workload {
	has := map[ir.Name]bool{}
	for _, w := range s.workloads {
		has[w.Name] = true
		for _, value := range w.Labels {
			has[ir.Name{Namespace: w.Name.Namespace, Name: value}] = true
		}
	}
	return slices.DeleteFunc(sorted(s.customs), func(w *Workload) bool { return w.Doubtful && has[w.Name] })
}

// SetCustom adds or replaces such an object.
func (s *Snapshot) SetCustom(w *Workload) { s.customs[w.Object] = w }

// SetWorkload adds or replaces a workload.
func (s *Snapshot) SetWorkload(w *Workload) { s.workloads[w.Object] = w }

// DeleteWorkload removes a workload.
func (s *Snapshot) DeleteWorkload(object string) { delete(s.workloads, object) }

// Workload returns the workload of an object, or nil.
func (s *Snapshot) Workload(object string) *Workload { return s.workloads[object] }
