package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// workloadGroups are the groups of the kinds that make pods. The decoded fields are the same in all
// their versions.
var workloadGroups = [...]struct {
	group, kind string
	pods        func(*workloadFields) (int, *podTemplate)
}{
	{"", "Pod", pod},
	{"", "ReplicationController", replicas},
	{"apps", "Deployment", replicas},
	{"apps", "StatefulSet", replicas},
	{"apps", "ReplicaSet", replicas},
	{"apps", "DaemonSet", onePerNode},
	{"extensions", "Deployment", replicas},
	{"extensions", "ReplicaSet", replicas},
	{"extensions", "DaemonSet", onePerNode},
	{"batch", "Job", job},
	{"batch", "CronJob", cronJob},
}

// podFields are the fields of a PodSpec that decide which packets its containers receive. Other
// fields are not checked: they do not concern a Service proxy.
type podFields struct {
	HostNetwork    bool             `json:"hostNetwork"`
	NodeName       string           `json:"nodeName"`
	Containers     []containerField `json:"containers"`
	InitContainers []containerField `json:"initContainers"`
}

type containerField struct {
	Ports         []corev1.ContainerPort `json:"ports"`
	RestartPolicy string                 `json:"restartPolicy"`
}

type podTemplate struct {
	Metadata struct {
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec podFields `json:"spec"`
}

// workloadFields are the fields of all these kinds together.
type workloadFields struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		HostNetwork    bool             `json:"hostNetwork"`
		NodeName       string           `json:"nodeName"`
		Containers     []containerField `json:"containers"`
		InitContainers []containerField `json:"initContainers"`
		Replicas       *int32           `json:"replicas"`
		Parallelism    *int32           `json:"parallelism"`
		Suspend        bool             `json:"suspend"`
		Template       *podTemplate     `json:"template"`
		JobTemplate    struct {
			Spec struct {
				Parallelism *int32      `json:"parallelism"`
				Template    podTemplate `json:"template"`
			} `json:"spec"`
		} `json:"jobTemplate"`
	} `json:"spec"`
	Status struct {
		Phase  string         `json:"phase"`
		PodIPs []corev1.PodIP `json:"podIPs"`
	} `json:"status"`
}

// decodeWorkload returns the decoder of a kind of workload. pods returns the number of pods and
// their template.
func decodeWorkload(kind string, pods func(*workloadFields) (int, *podTemplate)) decoder {
	return func(text []byte, _ unmarshal) (object, []finding, error) {
		var in workloadFields
		err := kjson.UnmarshalCaseSensitivePreserveInts(text, &in)
		defaultNamespace(&in.Metadata)
		name := snapshot.NameOf(&in.Metadata)
		n, template := pods(&in)
		if template == nil {
			template = &podTemplate{}
		}
		w := &snapshot.Workload{Kind: kind, Name: name, Object: snapshot.ObjectName(kind, name),
			Pods: n, AnyNumber: in.Spec.Replicas == nil && kind != "Pod" && n != 0, Labels: template.Metadata.Labels,
			HostNetwork: template.Spec.HostNetwork, NodeName: template.Spec.NodeName}
		if owner := metav1.GetControllerOfNoCopy(&in.Metadata); owner != nil {
			w.Owner = snapshot.ObjectName(owner.Kind, ir.Name{Namespace: name.Namespace, Name: owner.Name})
		}
		for _, c := range template.Spec.Containers {
			w.Ports = append(w.Ports, c.Ports...)
		}
		for _, c := range template.Spec.InitContainers {
			if c.RestartPolicy == string(corev1.ContainerRestartPolicyAlways) { // a sidecar (KEP-753)
				w.Ports = append(w.Ports, c.Ports...)
			}
		}
		for _, ip := range in.Status.PodIPs {
			w.IPs = append(w.IPs, ip.IP)
		}
		if err != nil { // a Snapshot keeps no earlier version of a workload: see Keep
			return object{name: w.Object, has: func(*snapshot.Snapshot) bool { return true }}, nil, err
		}
		written := writtenMeta(&in.Metadata)
		written.Labels = in.Metadata.Labels
		return object{name: w.Object, written: written,
			has: func(s *snapshot.Snapshot) bool { return s.HasWorkload(w.Object) },
			put: func(s *snapshot.Snapshot) { s.SetWorkload(w) },
		}, nil, nil
	}
}

func replicas(in *workloadFields) (int, *podTemplate) {
	return int(ptr.Deref(in.Spec.Replicas, 1)), in.Spec.Template
}

func onePerNode(in *workloadFields) (int, *podTemplate) { return snapshot.PerNode, in.Spec.Template }

func job(in *workloadFields) (int, *podTemplate) {
	if in.Spec.Suspend {
		return 0, in.Spec.Template
	}
	return int(ptr.Deref(in.Spec.Parallelism, 1)), in.Spec.Template
}

func cronJob(in *workloadFields) (int, *podTemplate) {
	if in.Spec.Suspend {
		return 0, &in.Spec.JobTemplate.Spec.Template
	}
	return int(ptr.Deref(in.Spec.JobTemplate.Spec.Parallelism, 1)), &in.Spec.JobTemplate.Spec.Template
}

func pod(in *workloadFields) (int, *podTemplate) {
	t := &podTemplate{Spec: podFields{in.Spec.HostNetwork, in.Spec.NodeName, in.Spec.Containers, in.Spec.InitContainers}}
	t.Metadata.Labels = in.Metadata.Labels
	if in.Status.Phase == string(corev1.PodSucceeded) || in.Status.Phase == string(corev1.PodFailed) {
		return 0, t
	}
	return 1, t
}

// isCustom reports whether a group belongs to custom resources, which may make pods of their own.
func isCustom(group string) bool {
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
}
