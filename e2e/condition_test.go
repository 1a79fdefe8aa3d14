package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxyc/proxyc/e2e/kube"
)

// TestNodeCondition checks that Node condition ServicesProgrammed shows whether the rules
// implement the Services, and that the daemon writes it only when that changes.
func TestNodeCondition(t *testing.T) {
	parallel(t)
	s := newTestEnv(t, "iptables-legacy")
	s.grant(t)
	s.args = append(s.args, "--iptables-sync-period", "1s", "--iptables-min-sync-period", "10ms", "--lock-timeout", "1s")
	machine := s.container(t, proxyc, kube.ProxycUser)
	host, port, _ := strings.Cut(s.gate.Addr(), ":")
	machine.Env = []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	start := func() {
		t.Helper()
		s.proxy = s.runAs(t, "proxyc", machine, slices.Concat([]string{peerPath, "--node-condition", "--unready-after", "1s", "--hostname-override", "node1"}, s.args)...)
		if err := s.proxy.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stop := func() {
		t.Helper()
		if _, err := s.proxy.Stop(); err != nil {
			t.Fatalf("%v\n%s", err, s.proxy.Tail())
		}
	}
	began := time.Now()
	patches := func() int { return s.patches(t, began) }

	s.set(some(0, 5, "pod1a")...)
	start()
	s.awaitCondition(t, corev1.ConditionTrue, "RulesInForce")
	if n := patches(); n != 1 {
		t.Errorf("%d patches for a start, want one", n)
	}
	before := patches()
	for n := range 5 {
		s.set(some(5+n, 6+n, "pod1c")...)
	}
	s.converges(10*time.Second, "changes")
	if n := patches(); n != before {
		t.Errorf("%d patches while Services change and rules follow, want none", n-before)
	}

	lock, err := os.OpenFile(filepath.Join(machine.Files["/run"], "xtables.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s.set(some(20, 21, "pod1c")...)
	s.awaitCondition(t, corev1.ConditionFalse, "Behind")
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	s.awaitCondition(t, corev1.ConditionTrue, "RulesInForce")

	binding := kube.Object{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": kube.Object{"name": "proxyc"}}
	defer mayRefuse(s.cluster)()
	if err := s.cluster.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	rbac, err := kube.Manifests("../docs/deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer s.send(rbac...)
	s.gate.Cut() // from now on its watches are rejected
	s.awaitCondition(t, corev1.ConditionUnknown, "InputStale")
	s.send(rbac...)
	set := s.awaitCondition(t, corev1.ConditionTrue, "RulesInForce")
	if n := patches() - before; n != 4 {
		t.Errorf("%d patches, want 4: behind and back, stale and back", n)
	}

	before = patches()
	stop()
	start() // the rules stayed
	s.set(some(21, 22, "pod1c")...)
	s.converges(10*time.Second, "a change after a restart")
	if n := patches(); n != before {
		t.Errorf("%d patches for a restart, want none", n-before)
	}
	stop()
	uptime := filepath.Join(t.TempDir(), "uptime")
	writeFile(t, uptime, "0.00 0.00\n")
	machine.Files["/proc/uptime"] = uptime // the machine restarts, and its rules are gone
	s.empty()
	start()
	eventually(t, 20*time.Second, "the condition is of the machine's start", func() error {
		if c := s.condition(t); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.After(set.LastTransitionTime.Time) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// grant grants the daemon the right to write the condition.
func (n *node) grant(t *testing.T) {
	t.Helper()
	objects, err := kube.Manifests("../docs/deploy/node-condition/rbac.yaml")
	if err == nil {
		err = n.cluster.Apply(t.Context(), objects...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// condition returns the current condition of the Node.
func (s *testEnv) condition(t *testing.T) (c corev1.NodeCondition) {
	t.Helper()
	n, err := s.cluster.Client().CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "ServicesProgrammed" {
			return c
		}
	}
	return c
}

// awaitCondition waits until the Node has a status and reason of the condition.
func (s *testEnv) awaitCondition(t *testing.T, status corev1.ConditionStatus, reason string) (c corev1.NodeCondition) {
	t.Helper()
	took := eventually(t, catchUp, cmp.Or(reason, "no reason"), func() error {
		if c = s.condition(t); c.Status != status || c.Reason != reason {
			return fmt.Errorf("the Node has %+v\n%s", c, s.proxy.Tail())
		}
		return nil
	})
	t.Logf("after %s %s %s: %s", took.Round(time.Millisecond), c.Status, c.Reason, c.Message)
	return c
}

// patches counts the patches of Nodes since a time.
func (s *testEnv) patches(t *testing.T, since time.Time) (n int) {
	t.Helper()
	requests, err := s.cluster.Requests(kube.ProxycUser, since)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if r.Verb == "patch" && r.ObjectRef.Resource == "nodes" {
			n++
		}
	}
	return n
}

// TestNodeStatusPolicy checks that the policy restricts the right to the daemon's own Node, and to its
// condition.
func TestNodeStatusPolicy(t *testing.T) {
	cluster := clusterOf(t) // not in parallel: the policy applies to the accounts of other tests
	t.Cleanup(func() { cluster.DeleteAll(context.Background()) })
	var policy []kube.Object
	for _, file := range []string{"rbac.yaml", "policy.yaml"} {
		objects, err := kube.Manifests("../docs/deploy/node-condition/" + file)
		if err == nil {
			err = cluster.Apply(t.Context(), objects...)
		}
		if err != nil {
			t.Fatal(err)
		}
		policy = objects
	}
	for _, name := range []string{"node1", "node2"} {
		if err := cluster.Apply(t.Context(), kube.Object{"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": name}}); err != nil {
			t.Fatal(err)
		}
	}
	heartbeat := 0
	patch := func(of, node, condition string) error {
		heartbeat++
		request := cluster.Client().CoreV1().RESTClient().Patch(types.StrategicMergePatchType).Resource("nodes").Name(node).SubResource("status").
			SetHeader("Impersonate-User", kube.ProxycUser).
			Body(fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":"True","message":"%d"}]}}`, condition, heartbeat))
		if of != "" {
			request.SetHeader("Impersonate-Extra-authentication.kubernetes.io%2fnode-name", of)
		}
		return request.Do(t.Context()).Error()
	}
	eventually(t, 30*time.Second, "the policy is in force", func() error { // the API server compiles it asynchronously
		if patch("node1", "node2", "ServicesProgrammed") == nil {
			return errors.New("another Node can be patched")
		}
		return nil
	})
	for _, c := range []struct{ of, node, condition, want string }{
		{"node1", "node1", "ServicesProgrammed", ""},
		{"node1", "node2", "ServicesProgrammed", "only the status of its own Node"},
		{"", "node1", "ServicesProgrammed", "only the status of its own Node"},
		{"node1", "node1", "Ready", "only condition ServicesProgrammed"},
	} {
		if err := patch(c.of, c.node, c.condition); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("the daemon of node %q patches %s of %s: %v, want %q", c.of, c.condition, c.node, err, c.want)
		}
	}
	if err := cluster.Delete(t.Context(), policy...); err != nil {
		t.Error(err)
	}
	eventually(t, 30*time.Second, "the policy is gone", func() error { return patch("", "node1", "ServicesProgrammed") })
}
