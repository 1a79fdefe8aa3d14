package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// workloadGroups are the groups of the kinds that make pods. The decoded fields are the same in all
// their versions.
var workloadGroups = [...]struct {
	group, kind string
	pods        func(*workloadFields) pods
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

// workloadFields are the fields of all these kinds together.
type workloadFields struct {
	metav1.TypeMeta `json:",inline"`

	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     workloadSpec      `json:"spec"`
	Status   podStatus         `json:"status"`
}

// workloadSpec has the fields of all specs. A Pod has those of the PodSpec, which the other kinds
// have in their template.
type workloadSpec struct {
	corev1.PodSpec `json:",inline"`

	Replicas    *int32                 `json:"replicas"`
	Parallelism *int32                 `json:"parallelism"`
	Suspend     bool                   `json:"suspend"`
	Completion  batchv1.CompletionMode `json:"completionMode"`
	Ordinals    struct {
		Start int `json:"start"`
	} `json:"ordinals"`
	ServiceName string                  `json:"serviceName"`
	Selector    json.RawMessage         `json:"selector"`
	Template    *corev1.PodTemplateSpec `json:"template"`
	JobTemplate *struct {
		Metadata unread       `json:"metadata"`
		Spec     workloadSpec `json:"spec"`
	} `json:"jobTemplate"`

	BackoffLimit                         unread `json:"backoffLimit"`
	BackoffLimitPerIndex                 unread `json:"backoffLimitPerIndex"`
	Completions                          unread `json:"completions"`
	ConcurrencyPolicy                    unread `json:"concurrencyPolicy"`
	FailedJobsHistoryLimit               unread `json:"failedJobsHistoryLimit"`
	ManagedBy                            unread `json:"managedBy"`
	ManualSelector                       unread `json:"manualSelector"`
	MaxFailedIndexes                     unread `json:"maxFailedIndexes"`
	MinReadySeconds                      unread `json:"minReadySeconds"`
	Paused                               unread `json:"paused"`
	PersistentVolumeClaimRetentionPolicy unread `json:"persistentVolumeClaimRetentionPolicy"`
	PodFailurePolicy                     unread `json:"podFailurePolicy"`
	PodManagementPolicy                  unread `json:"podManagementPolicy"`
	PodReplacementPolicy                 unread `json:"podReplacementPolicy"`
	ProgressDeadlineSeconds              unread `json:"progressDeadlineSeconds"`
	RevisionHistoryLimit                 unread `json:"revisionHistoryLimit"`
	RollbackTo                           unread `json:"rollbackTo"` // of extensions/v1beta1
	Schedule                             unread `json:"schedule"`
	StartingDeadlineSeconds              unread `json:"startingDeadlineSeconds"`
	Strategy                             unread `json:"strategy"`
	SuccessPolicy                        unread `json:"successPolicy"`
	SuccessfulJobsHistoryLimit           unread `json:"successfulJobsHistoryLimit"`
	TTLSecondsAfterFinished              unread `json:"ttlSecondsAfterFinished"`
	TimeZone                             unread `json:"timeZone"`
	UpdateStrategy                       unread `json:"updateStrategy"`
	VolumeClaimTemplates                 unread `json:"volumeClaimTemplates"`
}

// unread is a field whose value does not concern a Service proxy.
type unread struct{}

// UnmarshalJSON accepts any value.
func (unread) UnmarshalJSON([]byte) error { return nil }

// podStatus is the status of a Pod. The other fields, and those of the other kinds, are not checked.
type podStatus struct {
	Phase  corev1.PodPhase `json:"phase"`
	PodIPs []corev1.PodIP  `json:"podIPs"`
}

// UnmarshalJSON accepts other fields.
func (s *podStatus) UnmarshalJSON(text []byte) error {
	type fields podStatus
	return kjson.UnmarshalCaseSensitivePreserveInts(text, (*fields)(s))
}

// pods are what a workload makes.
type pods struct {
	count    int    // snapshot.PerNode for one on each Node
	field    string // of the count
	template *corev1.PodTemplateSpec
	path     string // of the template; "" for a Pod
}

// helmHook is the annotation of objects that exist only during an action of Helm, such as a test.
const helmHook = "helm.sh/hook"

// decodeWorkload returns the decoder of a kind of workload.
func decodeWorkload(kind string, made func(*workloadFields) pods) decoder {
	return func(text []byte, namespace string, read unmarshal) (object, []finding, error) {
		var in workloadFields
		found, err := read(text, &in)
		defaultNamespace(&in.Metadata, namespace)
		in.Metadata.Name = cmp.Or(in.Metadata.Name, in.Metadata.GenerateName)
		if !isLive(&in.Metadata) { // the API server ignores the status of a manifest
			in.Status = podStatus{}
		}
		name := snapshot.NameOf(&in.Metadata)
		p := made(&in)
		if p.template == nil {
			p.template = &corev1.PodTemplateSpec{}
		}
		spec := &p.template.Spec
		w := &snapshot.Workload{Kind: kind, Name: name, Object: snapshot.ObjectName(kind, name),
			Pods: p.count, AnyNumber: in.Spec.Replicas == nil && kind != "Pod" && p.count != 0, Labels: p.template.Labels, Identity: snapshot.IdentityOf(p.template.Annotations, spec),
			HostNetwork: spec.HostNetwork, NodeName: spec.NodeName, ServiceName: in.Spec.ServiceName, First: in.Spec.Ordinals.Start,
			Indexed: in.Spec.Completion == batchv1.IndexedCompletion, Tolerations: spec.Tolerations, NodeSelector: spec.NodeSelector}
		if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
			w.Affinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
		if owner := metav1.GetControllerOfNoCopy(&in.Metadata); owner != nil {
			w.Owner = snapshot.ObjectName(owner.Kind, ir.Name{Namespace: name.Namespace, Name: owner.Name})
		}
		w.AllPorts = !injected(&p.template.ObjectMeta)
		containers, commands := append(slices.Clip(spec.Containers), sidecars(spec)...), []corev1.Container{}
		for _, c := range containers { // the first port of a name counts
			commands = append(commands, corev1.Container{Name: c.Name, Command: c.Command, Args: c.Args, Env: c.Env, EnvFrom: c.EnvFrom})
			w.Ports = append(w.Ports, c.Ports...)
			w.AllPorts = w.AllPorts && len(c.Ports) > 0
			w.Numbers = append(w.Numbers, numbers(&c)...)
		}
		for _, ip := range in.Status.PodIPs {
			w.IPs = append(w.IPs, ip.IP)
		}
		if err != nil { // a Snapshot keeps no earlier version of a workload: see Keep
			return object{name: w.Object, has: func(*snapshot.Snapshot) bool { return true }}, nil, err
		}
		if in.Metadata.Name != in.Metadata.GenerateName {
			found = append(found, checkMeta(&in.Metadata)...)
		}
		var wrong []finding
		w.Selector, wrong = checkSelector(kind, in.Spec.Selector, w.Labels)
		found = append(found, wrong...)
		found = append(found, checkPods(kind, &p)...)
		found = append(found, checkTemplate(kind, &p)...)
		w.Pods = p.count
		_, hook := in.Metadata.Annotations[helmHook]
		written := writtenMeta(&in.Metadata)
		written.Labels = in.Metadata.Labels
		others := w.NodePorts()
		if hook {
			others = nil
		} else if w.Owner == "" {
			if len(others) > 0 {
				others = append(others, snapshot.Uncompared{Object: "commands and environment on the Node of " + w.Object, Name: name, Content: commands})
			}
			placed := snapshot.PlacingOf(in.Metadata.Annotations, spec, containers)
			others = append(others, snapshot.Uncompared{Object: "scheduling and readiness of " + w.Object, Name: name, Content: placed})
		}
		return object{name: w.Object, value: w, written: written, uncompared: others,
			has: func(s *snapshot.Snapshot) bool { return s.Workload(w.Object) != nil },
			put: func(s *snapshot.Snapshot) {
				if !hook {
					s.SetWorkload(w)
				}
			},
		}, found, nil
	}
}

// sidecars returns the init containers that run beside the containers (KEP-753).
func sidecars(spec *corev1.PodSpec) []corev1.Container {
	return slices.DeleteFunc(slices.Clone(spec.InitContainers), func(c corev1.Container) bool {
		return ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways
	})
}

// wholeNumber matches a number that can be that of a port.
var wholeNumber = regexp.MustCompile(`\b\d{1,5}\b`)

// numbers returns the numbers in the command, the variables and the probes of a container.
func numbers(c *corev1.Container) (out []int32) {
	words := slices.Concat(c.Command, c.Args)
	for _, v := range c.Env {
		words = append(words, v.Value)
	}
	for _, text := range wholeNumber.FindAllString(strings.Join(words, " "), -1) {
		out = append(out, int32(numeric(text)))
	}
	for _, p := range [...]*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		switch {
		case p == nil:
		case p.HTTPGet != nil:
			out = append(out, p.HTTPGet.Port.IntVal)
		case p.TCPSocket != nil:
			out = append(out, p.TCPSocket.Port.IntVal)
		case p.GRPC != nil:
			out = append(out, p.GRPC.Port)
		}
	}
	return out
}

// injected reports whether a label or annotation asks a webhook for another container, as those of
// service meshes do, such as linkerd.io/inject.
func injected(m *metav1.ObjectMeta) bool {
	for _, all := range [...]map[string]string{m.Labels, m.Annotations} {
		for key, value := range all {
			if (strings.Contains(key, "inject") || key == "dapr.io/enabled") && value != "false" && value != "disabled" {
				return true
			}
		}
	}
	return false
}

func replicas(in *workloadFields) pods {
	return pods{int(ptr.Deref(in.Spec.Replicas, 1)), "spec.replicas", in.Spec.Template, "spec.template."}
}

func onePerNode(in *workloadFields) pods {
	return pods{snapshot.PerNode, "", in.Spec.Template, "spec.template."}
}

func job(in *workloadFields) pods { return jobOf(&in.Spec, false, "spec.") }

func cronJob(in *workloadFields) pods {
	if in.Spec.JobTemplate == nil {
		return pods{count: 1}
	}
	return jobOf(&in.Spec.JobTemplate.Spec, in.Spec.Suspend, "spec.jobTemplate.spec.")
}

func jobOf(spec *workloadSpec, suspended bool, path string) pods {
	p := pods{int(ptr.Deref(spec.Parallelism, 1)), path + "parallelism", spec.Template, path + "template."}
	if suspended || spec.Suspend {
		p.count = 0
	}
	return p
}

func pod(in *workloadFields) pods {
	t := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: in.Metadata.Labels}, Spec: in.Spec.PodSpec}
	if in.Status.Phase == corev1.PodSucceeded || in.Status.Phase == corev1.PodFailed {
		return pods{template: t}
	}
	return pods{count: 1, template: t}
}

// checkSelector returns the text of a selector. It reports one that does not match the workload's own
// pods.
func checkSelector(kind string, text json.RawMessage, has map[string]string) (string, []finding) {
	if len(text) == 0 || kind == "Job" || kind == "CronJob" || kind == "Pod" { // the API server sets that of a Job
		return "", nil
	}
	var of metav1.LabelSelector
	into := any(&of)
	if kind == "ReplicationController" {
		into = &of.MatchLabels
	}
	err := kjson.UnmarshalCaseSensitivePreserveInts(text, into)
	selector, wrong := metav1.LabelSelectorAsSelector(&of)
	effect := "the API server rejects the " + kind
	if err = cmp.Or(err, wrong); err != nil {
		return "", []finding{rejects(diag.FieldType, "spec.selector", "must be a label selector", effect)}
	}
	if selector.Matches(labels.Set(has)) {
		return selector.String(), nil
	}
	why := "does not match the labels of the pod template"
	if differs := Mismatches(of.MatchLabels, has); len(differs) > 0 {
		why += ", which has " + strings.Join(differs, " and ")
	}
	return "", []finding{rejects(diag.WorkloadSelector, "spec.selector", why, effect)}
}

// Mismatches describes the labels because of which a selector does not match.
func Mismatches(selector, has map[string]string) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if got, ok := has[key]; !ok {
			out = append(out, "no label "+key)
		} else if got != selector[key] {
			out = append(out, key+"="+got)
		}
	}
	return out
}

// checkPods reports numbers of pods and ports that the API server rejects.
func checkPods(kind string, p *pods) (out []finding) {
	reject := func(code diag.Code, path, fault string) {
		out = append(out, rejects(code, path, fault, "the API server rejects the "+kind))
	}
	if p.count < 0 && p.field != "" {
		reject(diag.FieldWord, p.field, fmt.Sprintf("must be 0 or more, got %d", p.count))
		p.count = 0
	}
	list := func(path string, all []corev1.Container) {
		for i := range all {
			for j, port := range all[i].Ports {
				at := fmt.Sprintf("%s[%d].ports[%d]", path, i, j)
				if n := port.ContainerPort; !isPort(n) {
					reject(diag.PortValue, at+".containerPort", fmt.Sprintf("must be 1-65535, got %d", n))
				}
				if port.Name != "" && len(validation.IsValidPortName(port.Name)) > 0 {
					reject(diag.ObjectName, at+".name", "must be "+portName+", got "+diag.Quote(port.Name))
				}
			}
		}
	}
	list(p.path+"spec.containers", p.template.Spec.Containers)
	list(p.path+"spec.initContainers", p.template.Spec.InitContainers)
	return out
}

// checkTemplate finds the values of a template of pods that the API server rejects.
func checkTemplate(kind string, p *pods) []finding {
	var v values
	v.labels(p.path+"metadata.labels", p.template.Labels)
	spec := &p.template.Spec
	policy, once := spec.RestartPolicy, kind == "Job" || kind == "CronJob"
	v.wrong(once && policy == corev1.RestartPolicyAlways, diag.FieldWord, "OnFailure or Never in a "+kind, string(policy), "%sspec.restartPolicy", p.path)
	v.wrong(!once && kind != "Pod" && policy != "" && policy != corev1.RestartPolicyAlways,
		diag.FieldWord, "Always in a "+kind, string(policy), "%sspec.restartPolicy", p.path)
	for i, c := range spec.Containers {
		for j, port := range c.Ports {
			v.wrong(spec.HostNetwork && port.HostPort != 0 && port.HostPort != port.ContainerPort, diag.PortValue,
				fmt.Sprintf("containerPort with hostNetwork, which is %d", port.ContainerPort), port.HostPort, "%sspec.containers[%d].ports[%d].hostPort", p.path, i, j)
		}
	}
	return v
}

// podless matches the kinds of usual custom resources from which no program makes pods.
var podless = regexp.MustCompile(`(Alert|Certificate|Export|Import|Ingress|Issuer|Monitor|Monitoring|Plugin|Policy|Probe|Repository|Route|Rule|Secret|SecretStore)$|^(BackendConfig|DestinationRule|Mapping|ScaledObject|ServiceEntry|ServiceProfile|TransportServer|TriggerAuthentication|VirtualServer|VirtualService)$`)

// makesPods matches the fields of custom resources from which programs make pods, or install what does.
var makesPods = regexp.MustCompile(`"(affinity|chart|chartRef|containers|image|imageName|instances|members|nodeSelector|nodeSets|podTemplate|replicas|resources|serviceAccountName|size|sourceRef|storage|template|tolerations|workloadRef)"\s*:`)

// isCustom reports whether a group belongs to custom resources, which may make pods of their own.
func isCustom(group string) bool {
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
}
