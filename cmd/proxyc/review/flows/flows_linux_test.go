package flows_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m, nil) }

const service = `{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}]
endpoints:
`

// Connections through the rules are right until their endpoint goes. A flow that is older than the rules is
// wrong, and the command that flows prints deletes its entry.
func TestKernelFlows(t *testing.T) {
	t.Parallel()
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { topo.Close() })
	w := nodetest.New(t, "nftables")
	w.NS = topo.Namespace("node1")
	w.Write("cluster.yaml", service+"- {addresses: [10.244.1.10], nodeName: node1}\n- {addresses: [10.244.1.11], nodeName: node1, conditions: {ready: false}}\n")
	w.Must("proxyc apply " + strings.Join(w.Args, " "))
	open, err := topo.StartConnections(time.Second, applytest.Probe{From: "ext", To: netip.MustParseAddrPort("10.96.0.10:80")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { open.Stop() })

	// Without the rules a flow is not translated; apply would delete it.
	w.Must("nft delete table ip proxyc; nft 'table ip tracks { chain c { type filter hook output priority 0; ct state new accept; }; }'",
		"ip route replace 10.96.0.0/16 dev cni0; bash -c 'echo >/dev/udp/10.96.0.10/53'")

	const untranslated = "error: never translated: it is older than the Service's endpoints, or rules are missing: ns/web:dns ClusterIP 10.96.0.10:53/udp -> 10.96.0.10:53, from "
	const served = "info: ns/web:http ClusterIP 10.96.0.10:80/tcp -> 10.244.1.10:8080, from 192.0.2.200:"
	out, code := w.Proxyc("flows", "--all")
	if code != nodetest.ExitFindings || !strings.Contains(out, served) || !strings.Contains(out, ", ESTABLISHED: ok\n") {
		t.Errorf("exit %d, want 1 and %q in:\n%s", code, served, out)
	}
	out, _ = w.Proxyc("flows")
	_, remedy, found := strings.Cut(out, "(delete them: ")
	if !found || !strings.Contains(out, untranslated) {
		t.Fatalf("want %q in:\n%s", untranslated, out)
	}
	remedy, _, _ = strings.Cut(remedy, ")")
	w.Must(remedy)
	if out, code := w.Proxyc("flows"); code != nodetest.ExitDone || !strings.Contains(out, "1         0         0  ns/web:http/tcp\n") {
		t.Errorf("after %s: exit %d:\n%s", remedy, code, out)
	}

	w.Write("cluster.yaml", service+"- {addresses: [10.244.1.11], nodeName: node1}\n")
	gone := "error: the backend is no endpoint of the Service: ns/web:http ClusterIP 10.96.0.10:80/tcp -> 10.244.1.10:8080, from 192.0.2.200:"
	if out, code := w.Proxyc("flows"); code != nodetest.ExitFindings || !strings.Contains(out, gone) {
		t.Errorf("endpoint removed: exit %d, want 1 and %q in:\n%s", code, gone, out)
	}
}
