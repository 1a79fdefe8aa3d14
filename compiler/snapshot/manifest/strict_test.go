package manifest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// A field that resembles a field of the API is reported with its position and a
// suggestion, and dropped as before. Other unknown fields are reported only if
// Strict.
func TestStrict(t *testing.T) {
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: x}\n"
	for _, tt := range []struct{ in, want string }{
		{head + "spec: {clusterIP: None, externalTraficPolicy: Local}\n", "warning: f:4:25: Service x/a: spec.externalTraficPolicy: is not a field of the API, which drops it (did you mean externalTrafficPolicy?)"},
		{head + "spec: {clusterIP: None, ports: [{port: 80, name: a}, {port: 81, nodeport: 30081, name: b}]}\n", "warning: f:4:65: Service x/a: spec.ports[1].nodeport: is not a field of the API, which drops it (did you mean nodePort?)"},
		{"apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: x, lables: {}}\nspec: {clusterIP: None}\n", "warning: f:3:35: Service x/a: metadata.lables: is not a field of the API, which drops it (did you mean labels?)"},
		{head + "sepc: {}\nspec: {clusterIP: None}\n", "warning: f:4:1: Service x/a: sepc: is not a field of the API, which drops it (did you mean spec?)"},
		{head + "spec: {clusterIP: None, quite: other}\n", "warning: f:4:25: Service x/a: spec.quite: is not a field of the API, which drops it"},
		{"apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: x, labels: {lables: x}}\nspec: {clusterIP: None}\n", ""},
	} {
		for _, strict := range []bool{true, false} {
			s := snapshot.New()
			r := Reader{Strict: strict}
			got := ""
			for _, d := range r.Decode(s, "f", []byte(tt.in), false) {
				got += d.Severity.String() + ": " + d.String()
			}
			want := tt.want
			if !strict && !strings.Contains(want, "did you mean") { // may belong to a newer API
				want = ""
			}
			if d := cmp.Diff(want, got); d != "" || len(s.Services()) != 1 {
				t.Errorf("strict %t, %d Services (-want +got):\n%s", strict, len(s.Services()), d)
			}
		}
	}
}

// Fields that affect no packet are recorded by object unless Forget. A port that repeats several others
// has one finding.
func TestWritten(t *testing.T) {
	const in = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: x, annotations: {proxyc.dev/lint-ignore: PX604}}\n" +
		"spec: {clusterIP: None, selector: {app: a}, ipFamilyPolicy: PreferDualStack, allocateLoadBalancerNodePorts: false, loadBalancerClass: c, publishNotReadyAddresses: true, trafficDistribution: PreferClose," +
		" ports: [{name: a, port: 80}, {name: b, port: 80}, {name: c, port: 80}]}\n---\n" +
		"apiVersion: v1\nkind: Node\nmetadata: {name: node1, labels: {a: b}}\nspec: {taints: [{key: a, effect: NoSchedule}]}\nstatus: {nodeInfo: {kernelVersion: 6.1.0}}\n"
	r := Reader{}
	if diags := r.Decode(snapshot.New(), "f", []byte(in), false); len(diags) > 0 {
		t.Fatal(diags)
	}
	want := map[string]Written{
		"Service x/a": {Ignore: "PX604", Selector: map[string]string{"app": "a"}, TargetPorts: []intstr.IntOrString{{IntVal: 80}, {IntVal: 80}, {IntVal: 80}}, NoTargets: true, FamilyPolicy: "PreferDualStack", NoNodePorts: true, Distribution: "PreferClose", Class: "c", NotReady: true, Rejected: []Rejection{
			{diag.Diagnostic{Severity: diag.Error, Code: diag.FieldWord, Object: "Service x/a", Path: "spec.loadBalancerClass", Msg: withoutBalancer, Hint: setBalancer}, true},
			{diag.Diagnostic{Severity: diag.Error, Code: diag.FieldWord, Object: "Service x/a", Path: "spec.allocateLoadBalancerNodePorts", Msg: withoutBalancer, Hint: setBalancer}, true},
			{diag.Diagnostic{Severity: diag.Error, Code: diag.PortDuplicate, Object: "Service x/a", Path: "spec.ports[1].port", Msg: "must be unique in the Service for protocol TCP, got 80", Hint: "use another port, or remove it"}, false},
			{diag.Diagnostic{Severity: diag.Error, Code: diag.PortDuplicate, Object: "Service x/a", Path: "spec.ports[2].port", Msg: "must be unique in the Service for protocol TCP, got 80", Hint: "use another port, or remove it"}, false}}, Order: 1,
			Settings: map[string]any{"spec": `true true map["app":"a"] 80 80 80`}},
		"Node node1": {Kernel: "6.1.0", Labels: map[string]string{"a": "b"}, Taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}, Order: 2},
	}
	if d := cmp.Diff(want, r.Written()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	forgets := Reader{NoPositions: true}
	forgets.Decode(snapshot.New(), "f", []byte(in), false)
	if d := cmp.Diff(map[string]Written{"Service x/a": {Rejected: want["Service x/a"].Rejected}}, forgets.Written()); d != "" {
		t.Errorf("without positions (-want +got):\n%s", d)
	}
}
