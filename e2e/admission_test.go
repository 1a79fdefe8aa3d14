package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// together is the number of Services that exist at the same time. Their fixed node ports and addresses are
// in the part of the ranges from which an API server allocates last.
const together = 40

// admitted is a pair of manifests, with what an API server made of them.
type admitted struct {
	reviewtest.ServicePair
	name               string
	before             *corev1.Service // nil if the API server rejected it
	after              *corev1.Service // of the update
	again              *corev1.Service // of the new version without an old one
	first, next, alone error           // why it was rejected
}

// portOf returns the number of a port in the new version. A port that stands for a node port has the number
// that it had in the version that got the node port.
func (a *admitted) portOf(port string) int32 {
	name := ""
	for _, svc := range []*corev1.Service{a.before, a.after, a.again} {
		for _, p := range ptr.Deref(svc, corev1.Service{}).Spec.Ports {
			if fmt.Sprintf("%d/%s", p.Port, strings.ToLower(string(p.Protocol))) == port {
				name = p.Name
			}
		}
	}
	number := int32(0)
	for _, svc := range []*corev1.Service{a.after, a.again} {
		for _, p := range ptr.Deref(svc, corev1.Service{}).Spec.Ports {
			if p.Name == name {
				number = p.Port
			}
		}
	}
	return number
}

// forgets reports whether the new version does not set a node port that the old one sets. A snapshot does
// not show who set it.
func (a *admitted) forgets() bool {
	set := func(m reviewtest.Manifest) (n int) {
		for _, p := range m["ports"].([]any) {
			if p.(map[string]any)["nodePort"] != nil {
				n++
			}
		}
		return n
	}
	return set(a.Old) > set(a.New)
}

func (a *admitted) object(spec reviewtest.Manifest, meta kube.Object) kube.Object {
	metadata := kube.Object{"name": a.name, "namespace": "default"}
	for key, value := range meta {
		metadata[key] = value
	}
	return kube.Object{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
}

// apply applies a version as kubectl apply --server-side does, and gives its load balancer an address of each
// family, as a controller does.
func (a *admitted) apply(ctx context.Context, client *kubernetes.Clientset, spec reviewtest.Manifest) (*corev1.Service, error) {
	text, err := json.Marshal(a.object(spec, nil))
	if err != nil {
		return nil, err
	}
	services := client.CoreV1().Services("default")
	svc, err := services.Patch(ctx, a.name, types.ApplyPatchType, text, metav1.PatchOptions{FieldManager: "kubectl", Force: ptr.To(true), FieldValidation: "Strict"})
	if err != nil || svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return svc, err
	}
	for _, family := range svc.Spec.IPFamilies {
		address := map[corev1.IPFamily]string{corev1.IPv4Protocol: fmt.Sprintf("198.18.0.%d", a.N), corev1.IPv6Protocol: fmt.Sprintf("2001:db8:18::%x", a.N)}[family]
		if !slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool { return in.IP == address }) {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address})
		}
	}
	return services.UpdateStatus(ctx, svc, metav1.UpdateOptions{})
}

// judge creates and updates the Service.
func (a *admitted) judge(ctx context.Context, client *kubernetes.Clientset) (err error) {
	services := client.CoreV1().Services("default")
	if a.before, a.first = a.apply(ctx, client, a.Old); a.first != nil {
		a.before = nil
	}
	if a.after, a.next = a.apply(ctx, client, a.New); a.next != nil {
		a.after = a.before
	}
	for _, rejected := range []error{a.first, a.next} {
		if rejected != nil && !apierrors.IsInvalid(rejected) && !apierrors.IsBadRequest(rejected) {
			err = errors.Join(err, fmt.Errorf("%s: %w", a.name, rejected))
		}
	}
	if a.before != nil && a.next != nil {
		err = errors.Join(err, services.Delete(ctx, a.name, metav1.DeleteOptions{}))
		if a.again, a.alone = a.apply(ctx, client, a.New); a.alone != nil {
			a.again = nil
			return err
		}
	}
	if a.before != nil || a.after != nil {
		err = errors.Join(err, services.Delete(ctx, a.name, metav1.DeleteOptions{}))
	}
	return err
}

// A comparison is a way to compare two versions.
type comparison struct {
	name     string
	old, new func(*admitted) kube.Object // nil for none
	overlay  bool
	states   bool // of a repository, in which a rejected update is a new object
	claimed  bool // the manifests have metadata of a cluster
}

func served(svc *corev1.Service) kube.Object {
	if svc == nil {
		return nil
	}
	text, _ := json.Marshal(svc)
	var o kube.Object
	_ = json.Unmarshal(text, &o)
	o["apiVersion"], o["kind"] = "v1", "Service"
	delete(o["metadata"].(kube.Object), "managedFields")
	return o
}

var comparisons = []comparison{
	{"two states of a repository", func(a *admitted) kube.Object { return a.object(a.Old, nil) }, func(a *admitted) kube.Object { return a.object(a.New, nil) }, false, true, false},
	{"a cluster and a repository", func(a *admitted) kube.Object { return served(a.before) }, func(a *admitted) kube.Object { return a.object(a.New, nil) }, false, true, false},
	{"two states of a cluster", func(a *admitted) kube.Object { return served(a.before) }, func(a *admitted) kube.Object { return served(a.after) }, false, false, false},
	{"an overlay", func(a *admitted) kube.Object { return served(a.before) }, func(a *admitted) kube.Object { return a.object(a.New, nil) }, true, false, false},
	{"an overlay with metadata of a cluster", func(a *admitted) kube.Object { return served(a.before) },
		func(a *admitted) kube.Object {
			return a.object(a.New, kube.Object{"uid": "u", "resourceVersion": "7", "creationTimestamp": "2020-01-01T00:00:00Z"})
		}, true, false, false},
	{"two states of a repository, with metadata of a cluster", func(a *admitted) kube.Object {
		return a.object(a.Old, kube.Object{"creationTimestamp": "2020-01-01T00:00:00Z"})
	},
		func(a *admitted) kube.Object {
			return a.object(a.New, kube.Object{"creationTimestamp": "2020-01-01T00:00:00Z"})
		}, false, true, true},
}

// diff returns what proxyc diff opens, by Service, and its findings.
func (c comparison) diff(t *testing.T, all []*admitted) (opened map[string][]string, findings []string) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var names []string
	byName := map[string]*admitted{}
	for _, a := range all {
		names = append(names, a.name)
		byName["default/"+a.name] = a
	}
	cluster := write("cluster.yaml", reviewtest.AdmissionCluster(names...))
	old, next := write("old.yaml", documents(t, all, c.old)), write("new.yaml", documents(t, all, c.new))
	args := []string{"diff", "-s", cluster, "-s", old, "--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16,fd00:10::/32", "--all-nodes", "--all-findings", "-o", "json"}
	if c.overlay {
		args = append(args, "--overlay", next)
	} else {
		args = append(args, "-S", cluster, "-S", next)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), proxyc, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // differences and rejected objects have exit codes of their own
	opened, err := reviewtest.Opened(stdout.Bytes(), func(service, nodePort string) int32 {
		a := byName[service]
		if standIn, ok := strings.CutPrefix(nodePort, "of "); ok {
			return a.portOf(standIn)
		}
		for _, svc := range []*corev1.Service{a.again, a.after, a.before} {
			for _, p := range ptr.Deref(svc, corev1.Service{}).Spec.Ports {
				if fmt.Sprintf("%d/%s", p.NodePort, strings.ToLower(string(p.Protocol))) == nodePort {
					return p.Port
				}
			}
		}
		return 0
	})
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, stderr.String())
	}
	return opened, strings.Split(stderr.String(), "\n")
}

// documents returns the manifests of all pairs as YAML.
func documents(t *testing.T, all []*admitted, of func(*admitted) kube.Object) string {
	var out strings.Builder
	for _, a := range all {
		if o := of(a); o != nil {
			text, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "---\n%s\n", text)
		}
	}
	return out.String()
}

// isOpen reports whether more than one answer is right.
func (c comparison) isOpen(a *admitted) bool {
	switch {
	case strings.Contains(fmt.Sprint(a.first, a.next, a.alone), "already allocated"):
		return true // the API server has not released the port of an update that it rejected
	case c.claimed && (a.first != nil || a.next != nil || a.Old["ipFamilyPolicy"] == "PreferDualStack" || a.New["ipFamilyPolicy"] == "PreferDualStack"):
		return true // what an API server has is not checked again, and may have one family since earlier
	}
	return c.name != "two states of a repository" && c.name != "two states of a cluster" && a.forgets()
}

// opens returns what a pair opens to clients outside. got is what proxyc diff opens.
func (c comparison) opens(a *admitted, got []string) []string {
	if rejected := a.next != nil && a.before != nil; !rejected || !c.states || got == nil {
		return reviewtest.Opens(a.before, a.after)
	}
	// In a repository, the new version may be another object, of which nothing is kept.
	if c.name == "a cluster and a repository" {
		return got
	}
	return reviewtest.Opens(reviewtest.Symbolic(a.before, a.Old), reviewtest.Symbolic(a.again, a.New))
}

// disagreements compares what proxyc diff opens with what the API server opens to clients outside.
func (c comparison) disagreements(t *testing.T, all []*admitted) (out []string) {
	opened, findings := c.diff(t, all)
	for _, a := range all {
		if c.isOpen(a) {
			continue
		}
		got := opened["default/"+a.name]
		lines := slices.DeleteFunc(slices.Clone(findings), func(line string) bool { return !strings.Contains(line, "default/"+a.name+":") })
		severity := "error: "
		if c.name == "two states of a repository" && a.next != nil && reflect.DeepEqual(a.Old, a.New) { // an object with errors that does not change fails no review
			severity = "warning: "
		}
		reported := slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasPrefix(line, severity) && strings.Contains(line, "/new.yaml:") && strings.Contains(line, "Service default/"+a.name+": ")
		})
		rejected := a.next != nil && (!c.states || a.before == nil || a.alone != nil) && c.name != "two states of a cluster"
		if d := cmp.Diff(c.opens(a, got), got); d != "" || rejected && !reported || reported && a.next == nil {
			oldText, _ := json.Marshal(a.Old)
			newText, _ := json.Marshal(a.New)
			out = append(out, fmt.Sprintf("%s, %s:\n  old %s\n  new %s\n  first: %v\n  next: %v\n  alone: %v\n  rejected %t, reported %t\n%s\n%s",
				c.name, a.name, oldText, newText, a.first, a.next, a.alone, rejected, reported, d, strings.Join(lines, "\n")))
		}
	}
	return out
}

// What an API server's defaults and allocations open to clients outside, proxyc diff opens, and nothing
// else, whatever the manifests set.
func TestAdmission(t *testing.T) {
	c := parallel(t)
	client := c.Client()
	pairs := reviewtest.ServicePairs(41, applytest.Of(250, 2000))
	counts := map[string]int{}
	for i := 0; i < len(pairs); i += together {
		var all []*admitted
		for _, p := range pairs[i:min(i+together, len(pairs))] {
			all = append(all, &admitted{ServicePair: p, name: fmt.Sprintf("s%d", i+p.N)})
		}
		errs := make([]error, len(all))
		var wg sync.WaitGroup
		for j, a := range all {
			wg.Go(func() { errs[j] = a.judge(t.Context(), client) })
		}
		if wg.Wait(); errors.Join(errs...) != nil {
			t.Fatal(errors.Join(errs...))
		}
		for _, way := range comparisons {
			for _, text := range way.disagreements(t, all) {
				if counts[way.name]++; counts[way.name] <= 20 {
					t.Error(text)
				}
			}
		}
		for _, a := range all {
			counts["pairs"]++
			if len(reviewtest.Opens(a.before, a.after)) > 0 {
				counts["pairs that open"]++
			}
			if a.next != nil {
				counts["rejected updates"]++
			}
		}
	}
	t.Log(counts)
	if counts["pairs that open"]*10 < counts["pairs"] || counts["rejected updates"]*20 < counts["pairs"] {
		t.Error("too few pairs open something, or are rejected, to show anything")
	}
}
