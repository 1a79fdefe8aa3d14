package daemon

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// localhostCluster is a Service of both families, whose endpoints are the node itself.
const localhostCluster = `apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: node1}
  status: {addresses: [{type: InternalIP, address: 192.0.2.11}, {type: InternalIP, address: "2001:db8::11"}]}
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: default}
  spec: {type: NodePort, ipFamilies: [IPv4, IPv6], clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00:10:96::10"], ports: [{port: 80, nodePort: 30080, protocol: TCP}]}
- apiVersion: v1
  kind: Service
  metadata: {name: dns, namespace: default}
  spec: {type: NodePort, clusterIP: 10.96.0.53, clusterIPs: [10.96.0.53], ports: [{port: 53, nodePort: 30053, protocol: UDP}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-4, namespace: default, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{name: "", port: 8080, protocol: TCP}]
  endpoints: [{addresses: [192.0.2.11], nodeName: node1, conditions: {ready: true}}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-6, namespace: default, labels: {kubernetes.io/service-name: web}}
  addressType: IPv6
  ports: [{name: "", port: 8080, protocol: TCP}]
  endpoints: [{addresses: ["2001:db8::11"], nodeName: node1, conditions: {ready: true}}]
`

// localhostConfig asks for node ports at localhost in mode nftables, with the gate or without.
func localhostConfig(gate bool) string {
	return fmt.Sprintf(nodetest.Config, "nftables") + fmt.Sprintf("nodePortAddresses: [primary, localhost]\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: %t}\n", gate)
}

// newLocalhost returns a daemon on a node whose servers send back what they are sent.
func newLocalhost(t *testing.T) *watched {
	t.Helper()
	w := newWatched(t, "nftables")
	for _, args := range []string{"link add pods type bridge", "addr add 192.0.2.11/24 dev pods", "addr add 2001:db8::11/64 dev pods nodad", "link set pods up"} {
		w.Must("ip " + args)
	}
	for _, at := range []string{"192.0.2.11:8080", "[2001:db8::11]:8080"} {
		w.echo(at)
	}
	w.Write("cluster.yaml", localhostCluster)
	w.Write("config", localhostConfig(true))
	return w
}

// refused waits until connections to an address are refused.
func (w *watched) refused(what, to string) {
	w.T.Helper()
	applytest.Until(w.T, 10*time.Second, what+": a refusal at "+to, func() bool {
		conn, err := w.connect(to)
		if err == nil {
			conn.Close()
		}
		return err != nil && strings.Contains(err.Error(), "refused")
	})
}

// answered waits until an address answers, and returns the connection.
func (w *watched) answered(what, to string) (conn net.Conn) {
	w.T.Helper()
	applytest.Until(w.T, 10*time.Second, what+": an answer at "+to, func() (ok bool) {
		var err error
		conn, err = w.reaches(to)
		return err == nil
	})
	return conn
}

const atLocalhost4, atLocalhost6, atNode = "127.0.0.1:30080", "[::1]:30080", "192.0.2.11:30080"

// KEP-6032: node ports answer at localhost over TCP, in both families. Connections
// outlive what becomes of endpoints and Service.
func TestLocalhost(t *testing.T) {
	t.Parallel()
	w := newLocalhost(t)
	w.Start("proxyc", "watch")
	w.Until("first sync", nodetest.Synced)
	kept := w.answered("first", atLocalhost4)
	w.answered("first", atLocalhost6)
	w.answered("first", atNode)
	// UDP is rejected, although another program of the node listens there.
	var server net.PacketConn
	if err := w.NS.Do(func() (err error) { server, err = net.ListenPacket("udp", "127.0.0.1:30053"); return err }); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if conn, err := w.NS.Dial(t.Context(), "udp", netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:30053")); err == nil {
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		io.WriteString(conn, "?")
		if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("UDP at localhost: want a refusal, got %v", err)
		}
	}
	metrics := w.page("/metrics")
	for _, want := range []string{
		`kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv4"} 1`, `kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv6"} 1`,
		`kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv4"} 0`,
		`kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family="IPv4",protocol="UDP"} 1`,
		`kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family="IPv6",protocol="SCTP"} 0`,
		`proxyc_proxy_clients_total{ip_family="IPv6",protocol="tcp"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}

	w.Write("cluster.yaml", strings.Replace(localhostCluster, "addresses: [192.0.2.11], nodeName: node1, conditions: {ready: true}", "addresses: [192.0.2.11], nodeName: node1, conditions: {ready: false}", 1))
	w.refused("no endpoint", atLocalhost4)
	w.answered("no endpoint of the other family", atLocalhost6)
	w.Write("cluster.yaml", localhostCluster)
	w.answered("an endpoint again", atLocalhost4)

	// Only endpoints of the node count under policy Local.
	elsewhere := strings.NewReplacer("ports: [{port: 80,", "externalTrafficPolicy: Local, ports: [{port: 80,",
		"[192.0.2.11], nodeName: node1", "[192.0.2.11], nodeName: node2").Replace(localhostCluster)
	w.Write("cluster.yaml", elsewhere)
	w.refused("policy Local, an endpoint elsewhere", atLocalhost4)
	w.answered("policy Local, an endpoint here", atLocalhost6)
	w.Write("cluster.yaml", localhostCluster)
	w.answered("policy Cluster", atLocalhost4)

	if err := answers(kept); err != nil {
		t.Errorf("the connection that there was: %v", err)
	}
	w.Write("config", strings.Replace(localhostConfig(true), "[primary, localhost]", "[primary]", 1))
	w.refused("without localhost", atLocalhost4)
	applytest.Until(w.T, 10*time.Second, "without localhost: a rejected packet", func() bool {
		w.refused("without localhost", atLocalhost4)
		_, metrics, _ := w.Get(nodetest.MetricsPort, "/metrics")
		return strings.Contains(metrics, `rejected_packets_total{ip_family="IPv4",protocol="TCP"} `)
	})
	before, _ := w.Status()
	w.Write("config", localhostConfig(false))
	w.Until("without the gate", func(st status.Status) bool { return st.Started.After(before.Started) && nodetest.Synced(st) })
	w.refused("without the gate", atLocalhost4)
	w.refused("without the gate", atLocalhost6)
	w.answered("without the gate", atNode)
	if strings.Contains(w.page("/metrics"), "localhost_nodeport") {
		t.Error("without the gate there are metrics of it")
	}
	w.Write("config", localhostConfig(true))
	w.answered("with the gate again", atLocalhost4)
	w.Write("config", fmt.Sprintf(nodetest.Config, "iptables"))
	w.refused("mode iptables", atLocalhost4)
}

// Takeover by another process: the next daemon listens after this one has ended, while this one
// drains its connections, and after this one was killed.
func TestLocalhostEnds(t *testing.T) {
	t.Parallel()
	w := newLocalhost(t)
	w.Start("proxyc", "watch", "--drain-timeout=60s")
	w.Until("first sync", nodetest.Synced)
	kept := w.answered("first", atLocalhost4)
	first, wait := w.Process, w.Wait
	first.Signal(syscall.SIGTERM)
	w.refused("at the end", atLocalhost4)
	w.Start("proxyc", "watch")
	w.Until("the next process", nodetest.Synced)
	w.answered("the next process", atLocalhost4)
	if err := answers(kept); err != nil {
		t.Errorf("the connection that there was: %v", err)
	}
	kept.Close()
	if err := wait(); err != nil {
		t.Errorf("the first process: %v", err)
	}
	w.Stop(syscall.SIGKILL)
	w.refused("after the kill", atLocalhost4)
	w.Start("proxyc", "watch")
	w.answered("after the kill", atLocalhost4)
	w.Stop(syscall.SIGTERM)
	if out, err := w.NS.Run(w.NS.Command(t.Context(), "proxyc", "cleanup")); err != nil || !strings.Contains(string(out), "remove table ip proxyc") {
		t.Errorf("cleanup: %s, %v", out, err)
	}
}

// apply writes rules. It does not serve node ports at localhost, and says so.
func TestLocalhostApply(t *testing.T) {
	t.Parallel()
	w := newLocalhost(t)
	run := func(args ...string) string {
		t.Helper()
		out, code := w.Proxyc("apply", args...)
		if code != 0 {
			t.Errorf("apply %s: exit %d, %s", args, code, out)
		}
		return out
	}
	const line = "not served: 127.0.0.1:30080/tcp of default/web: only proxyc watch serves node ports on localhost"
	if out := run(); !strings.Contains(out, line) {
		t.Errorf("apply does not say that it does not serve:\n%s", out)
	}
	if out := run("--check"); !strings.Contains(out, line) {
		t.Errorf("--check does not say that nobody serves:\n%s", out)
	}
	w.Start("proxyc", "watch")
	w.answered("watch", atLocalhost4)
	w.answered("watch", atLocalhost6)
	if out := run("--check"); strings.Contains(out, "not served") {
		t.Errorf("--check beside watch:\n%s", out)
	}
}
