package manifest

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// uncompared returns the content of an object of a kind that is not read, and that may change traffic. Custom
// resources may, since programs make Services and policies from them.
func (l *leaf) uncompared(namespace string) (u snapshot.Uncompared) {
	group, _ := splitVersion(l.apiVersion)
	var in map[string]any
	if unrelated.MatchString(group+"/"+l.kind) || group == "" && !slices.Contains(plain, l.kind) || l.kind == "CustomResourceDefinition" && !conversion.Match(l.text) ||
		kjson.UnmarshalCaseSensitivePreserveInts(l.text, &in) != nil {
		return u
	}
	meta := l.meta(namespace)
	if clusterScoped.MatchString(group + "/" + l.kind) {
		meta.Namespace = ""
	}
	for _, key := range [...]string{"apiVersion", "kind", "status"} {
		delete(in, key)
	}
	spec, _ := in["spec"].(map[string]any)
	decides := strings.HasSuffix(l.kind, "Policy") && !admission.MatchString(group) && (len(spec) == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(spec)), selecting.MatchString))
	switch {
	case decides: // whatever its labels
		meta.Labels = nil
	case l.kind == "CustomResourceDefinition":
		in, meta.Annotations, meta.Labels = map[string]any{"conversion": spec["conversion"]}, nil, nil
	case l.kind == "Namespace": // policies select it by any of them
		in["labels"] = meta.Labels
	}
	in["metadata"] = snapshot.MetadataOf(meta)
	name := snapshot.NameOf(meta)
	return snapshot.Uncompared{Object: strings.Map(named, snapshot.ObjectName(l.kind, name)), Name: name, Content: in, Decides: decides,
		Renders: renders(group+"/"+l.kind, spec)}
}

// renders reports whether programs make objects from all fields of an object.
func renders(kind string, spec map[string]any) bool {
	return renderer.MatchString(kind) || slices.ContainsFunc(slices.Collect(maps.Keys(spec)), rendered.MatchString)
}

// renderer matches the groups and kinds of objects from which Flux, Argo CD, k3s, Fleet, Crossplane and others make objects.
var renderer = regexp.MustCompile(`^(helm|kustomize|source)\.(toolkit|extensions)\.fluxcd\.io/|^fluxcd\.controlplane\.io/|^argoproj\.io/Application|^helm\.cattle\.io/|^fleet\.cattle\.io/|` +
	`^(apiextensions|helm|kubernetes|pkg)(\.m)?\.crossplane\.io/|^kro\.run/|k14s\.io/App$|carvel\.dev/PackageInstall$|open-cluster-management\.io/|^configsync\.gke\.io/|^install\.istio\.io/|^template\.openshift\.io/`)

// rendered matches the fields of objects of other groups that name a chart, its values, or a composition.
var rendered = regexp.MustCompile(`^(chart|composition|values)`)

// clusterScoped matches the groups and kinds of objects without a namespace.
var clusterScoped = regexp.MustCompile(`registration\.k8s\.io/|/(Cluster.+|.*Class|Namespace|CustomResourceDefinition)$`)

// conversion matches a definition of custom resources that the API server converts by a webhook, which receives traffic.
var conversion = regexp.MustCompile(`"strategy"\s*:\s*"Webhook"`)

// selecting matches the fields in which a policy for traffic names its pods and their peers. Others are about images,
// backups or objects.
var selecting = regexp.MustCompile(`(?i)selector|target|subject|appliedto|gress$|^rules$|^action$`)

// admission matches the groups of policies for objects instead of packets.
var admission = regexp.MustCompile(`(^|\.)(kyverno|kubewarden)\.io$`)

// unrelated matches the groups and kinds of Kubernetes on which no packet depends, and those of workloads and of settings
// of programs.
var unrelated = regexp.MustCompile(`^(apps|batch|policy|discovery\.k8s\.io)/|^(extensions/(DaemonSet|Deployment|ReplicaSet)|networking\.k8s\.io/(IPAddress|ServiceCIDR))$|` +
	`(^|\.)(apiserver|audit|authentication|authorization|autoscaling|certificates|config|coordination|events|metrics|node|scheduling|storage)\.k8s\.io/`)

// plain are the kinds without a group that matter: a ConfigMap may contain manifests, settings or names, and a Secret values
// of a chart.
var plain = []string{"ConfigMap", "Namespace", "ResourceQuota", "Secret"}

// named replaces a character that no name of an object has, nor the blank after its kind: a tool may
// replace ${APP} in a name, and the text of others is not for output.
func named(c rune) rune {
	if c > '~' || c < ' ' || strings.ContainsRune("\"'`$&*<>()[]{}|\\!#%=;,?^~", c) {
		return '?'
	}
	return c
}
