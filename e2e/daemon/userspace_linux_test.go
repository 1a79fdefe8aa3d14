package daemon

import (
	"context"
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

// userspaceCluster is a Service whose endpoint is the node itself.
const userspaceCluster = `apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: node1}
  status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: default}
  spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, nodePort: 30080, protocol: TCP}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{name: "", port: 8080, protocol: TCP}]
  endpoints: [{addresses: [192.0.2.11], nodeName: node1, conditions: {ready: true}}]
`

// newEcho returns a daemon on a node with an echo server.
func newEcho(t *testing.T) *watched {
	t.Helper()
	w := newWatched(t, "iptables-nft")
	w.Must("ip link add pods type bridge")
	w.Must("ip addr add 192.0.2.11/24 dev pods")
	w.Must("ip link set pods up")
	w.Must("ip route add 10.96.0.0/16 dev pods")
	w.echo("192.0.2.11:8080")
	w.Write("cluster.yaml", userspaceCluster)
	w.Write("config", fmt.Sprintf(nodetest.Config, "userspace"))
	return w
}

// listen listens on the node until the test ends.
func (w *watched) listen(at string) net.Listener {
	w.T.Helper()
	var l net.Listener
	if err := w.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { l.Close() })
	return l
}

// echo sends back on the node what it is sent there, until the test ends.
func (w *watched) echo(at string) {
	w.T.Helper()
	l := w.listen(at)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
}

func (w *watched) connect(to string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(w.T.Context(), 5*time.Second)
	defer cancel()
	conn, err := w.NS.Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort(to))
	if err == nil {
		w.T.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

// answers reports whether a connection gets back what it sends.
func answers(conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "ping"); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

// reaches makes a connection and uses it.
func (w *watched) reaches(to string) (net.Conn, error) {
	conn, err := w.connect(to)
	if err == nil {
		err = answers(conn)
	}
	return conn, err
}

// Another configuration ends proxied connections, and new ones are served, in this mode and in others.
func TestUserspaceLives(t *testing.T) {
	t.Parallel()
	w := newEcho(t)
	w.Start("proxyc", "watch")
	w.Until("first sync", nodetest.Synced)
	kept, err := w.reaches("10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.reaches("192.0.2.11:30080"); err != nil {
		t.Errorf("node port: %v", err)
	}
	for _, life := range []struct{ name, config string }{
		{"another setting", fmt.Sprintf(nodetest.Config, "userspace") + "udpIdleTimeout: 10s\n"},
		{"mode iptables", fmt.Sprintf(nodetest.Config, "iptables")},
		{"mode userspace again", fmt.Sprintf(nodetest.Config, "userspace")},
		{"mode nftables", fmt.Sprintf(nodetest.Config, "nftables")},
		{"and back", fmt.Sprintf(nodetest.Config, "userspace")},
	} {
		n := strings.Count(w.Log.String(), "restarting with it")
		w.Write("config", life.config)
		applytest.Until(w.T, 10*time.Second, life.name, func() bool {
			return strings.Count(w.Log.String(), "restarting with it") > n
		})
		mode := strings.Fields(life.config[strings.Index(life.config, "mode: ")+len("mode: "):])[0]
		w.Until(life.name, func(st status.Status) bool { return string(st.Mode) == mode && nodetest.Synced(st) })
		if err := answers(kept); err == nil {
			t.Errorf("%s: a connection outlived the program that carried it", life.name)
		}
		if _, err := w.reaches("10.96.0.10:80"); err != nil {
			t.Errorf("%s: a new connection: %v", life.name, err)
		}
		applytest.Until(w.T, 10*time.Second, life.name+": the rules of the mode alone", func() bool {
			return strings.Contains(w.Rules(), "KUBE-PORTALS-CONTAINER -d") == (mode == "userspace")
		})
	}
}

// At shutdown, the daemon removes the rules first, so that they do not lead to closed ports.
// Connections continue until they end or the time is up.
func TestUserspaceEnds(t *testing.T) {
	t.Parallel()
	w := newEcho(t)
	w.Start("proxyc", "watch", "--drain-timeout=60s")
	w.Until("first sync", nodetest.Synced)
	kept, err := w.reaches("10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	w.Process.Signal(syscall.SIGTERM)
	applytest.Until(w.T, 10*time.Second, "the rules go", func() bool {
		return !strings.Contains(w.Rules(), "10.96.0.10")
	})
	if err := answers(kept); err != nil {
		t.Errorf("the connection that there was: %v", err)
	}
	kept.Close()
	if took := w.Stop(syscall.SIGTERM); took > 20*time.Second {
		t.Errorf("took %s to end, with nothing to wait for", took)
	}

	w.Start("proxyc", "watch", "--drain-timeout=100ms")
	w.Until("another first sync", nodetest.Synced)
	if kept, err = w.reaches("10.96.0.10:80"); err != nil {
		t.Fatal(err)
	}
	if took := w.Stop(syscall.SIGTERM); took > 20*time.Second {
		t.Errorf("took %s to end", took)
	}
	if err := answers(kept); err == nil {
		t.Error("a connection outlived the process that carries it")
	}
	if !strings.Contains(w.Log.String(), "remaining connections were closed") {
		t.Error("that a connection was cut off is not reported")
	}
}

// A killed process leaves rules without a listener. The next one listens on the same ports.
func TestUserspaceKilled(t *testing.T) {
	t.Parallel()
	w := newEcho(t)
	w.Start("proxyc", "watch")
	w.Until("first sync", nodetest.Synced)
	if _, err := w.reaches("10.96.0.10:80"); err != nil {
		t.Fatal(err)
	}
	before := w.Rules()
	w.Stop(syscall.SIGKILL)
	// A tool that the process was about to execute keeps its sockets open until exec.
	applytest.Until(w.T, 5*time.Second, "a refusal without the process", func() bool {
		c, err := w.connect("10.96.0.10:80")
		if err == nil {
			c.Close()
		}
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	w.Start("proxyc", "watch")
	w.Until("synced again", nodetest.Synced)
	if _, err := w.reaches("10.96.0.10:80"); err != nil {
		t.Errorf("with the next process: %v", err)
	}
	if led := func(s string) string { return s[strings.Index(s, "--to-ports"):][:20] }; led(w.Rules()) != led(before) {
		t.Errorf("the rules lead elsewhere:\n%s\n%s", before, w.Rules())
	}
}

// apply does not write rules, because they would lead nowhere after it has ended. It still checks
// them.
func TestUserspaceApply(t *testing.T) {
	t.Parallel()
	w := newEcho(t)
	run := func(args ...string) (string, error) {
		cmd := w.NS.Command(t.Context(), "proxyc", append(append([]string{"apply"}, args...), w.Args...)...)
		out, err := w.NS.Run(cmd)
		return string(out), err
	}
	if _, err := run(); err == nil || !strings.Contains(err.Error(), "use proxyc watch") {
		t.Errorf("apply: want to be reported of watch, got %v", err)
	}
	if out, err := run("--dry-run"); err != nil || !strings.Contains(out, "total: ") {
		t.Errorf("apply --dry-run: %s, %v", out, err)
	}
	if _, err := run("--check"); err == nil {
		t.Error("apply --check finds nothing to do where nothing is")
	}
	w.Start("proxyc", "watch")
	w.Until("first sync", nodetest.Synced)
	if out, err := run("--check"); err != nil {
		t.Errorf("apply --check beside watch: %s, %v", out, err)
	}
	w.Stop(syscall.SIGTERM)
	if out, err := w.NS.Run(w.NS.Command(t.Context(), "proxyc", "cleanup")); err != nil {
		t.Errorf("cleanup: %s, %v", out, err)
	}
	if rules := w.Rules(); strings.Contains(rules, "KUBE-") {
		t.Errorf("after cleanup:\n%s", rules)
	}
}
