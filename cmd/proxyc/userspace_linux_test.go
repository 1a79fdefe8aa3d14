package main

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
	w.ip("link add pods type bridge")
	w.ip("addr add 192.0.2.11/24 dev pods")
	w.ip("link set pods up")
	w.ip("route add 10.96.0.0/16 dev pods")
	w.echo("192.0.2.11:8080")
	w.write("cluster.yaml", userspaceCluster)
	w.write("config", fmt.Sprintf(watchConfig, "userspace"))
	return w
}

// listen listens on the node until the test ends.
func (w *watched) listen(at string) net.Listener {
	w.t.Helper()
	var l net.Listener
	if err := w.ns.Do(func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	return l
}

// echo sends back on the node what it is sent there, until the test ends.
func (w *watched) echo(at string) {
	w.t.Helper()
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
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	conn, err := w.ns.Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort(to))
	if err == nil {
		w.t.Cleanup(func() { conn.Close() })
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
	w.start("proxyc", "watch")
	w.until("first sync", synced)
	kept, err := w.reaches("10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.reaches("192.0.2.11:30080"); err != nil {
		t.Errorf("node port: %v", err)
	}
	for _, life := range []struct{ name, config string }{
		{"another setting", fmt.Sprintf(watchConfig, "userspace") + "udpIdleTimeout: 10s\n"},
		{"mode iptables", fmt.Sprintf(watchConfig, "iptables")},
		{"mode userspace again", fmt.Sprintf(watchConfig, "userspace")},
		{"mode nftables", fmt.Sprintf(watchConfig, "nftables")},
		{"and back", fmt.Sprintf(watchConfig, "userspace")},
	} {
		n := strings.Count(w.log.String(), "restarting with it")
		w.write("config", life.config)
		within(w, 10*time.Second, life.name, func() (struct{}, bool) {
			return struct{}{}, strings.Count(w.log.String(), "restarting with it") > n
		})
		mode := strings.Fields(life.config[strings.Index(life.config, "mode: ")+len("mode: "):])[0]
		w.until(life.name, func(st status.Status) bool { return string(st.Mode) == mode && synced(st) })
		if err := answers(kept); err == nil {
			t.Errorf("%s: a connection outlived the program that carried it", life.name)
		}
		if _, err := w.reaches("10.96.0.10:80"); err != nil {
			t.Errorf("%s: a new connection: %v", life.name, err)
		}
		within(w, 10*time.Second, life.name+": the rules of the mode alone", func() (struct{}, bool) {
			return struct{}{}, strings.Contains(w.rules(), "KUBE-PORTALS-CONTAINER -d") == (mode == "userspace")
		})
	}
}

// At shutdown, the daemon removes the rules first, so that they do not lead to closed ports.
// Connections continue until they end or the time is up.
func TestUserspaceEnds(t *testing.T) {
	t.Parallel()
	w := newEcho(t)
	w.start("proxyc", "watch", "--drain-timeout=60s")
	w.until("first sync", synced)
	kept, err := w.reaches("10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	w.process.Signal(syscall.SIGTERM)
	within(w, 10*time.Second, "the rules go", func() (struct{}, bool) {
		return struct{}{}, !strings.Contains(w.rules(), "10.96.0.10")
	})
	if err := answers(kept); err != nil {
		t.Errorf("the connection that there was: %v", err)
	}
	kept.Close()
	if took := w.stop(syscall.SIGTERM); took > 20*time.Second {
		t.Errorf("took %s to end, with nothing to wait for", took)
	}

	w.start("proxyc", "watch", "--drain-timeout=100ms")
	w.until("another first sync", synced)
	if kept, err = w.reaches("10.96.0.10:80"); err != nil {
		t.Fatal(err)
	}
	if took := w.stop(syscall.SIGTERM); took > 20*time.Second {
		t.Errorf("took %s to end", took)
	}
	if err := answers(kept); err == nil {
		t.Error("a connection outlived the process that carries it")
	}
	if !strings.Contains(w.log.String(), "remaining connections were closed") {
		t.Error("that a connection was cut off is not reported")
	}
}

// A killed process leaves rules without a listener. The next one listens on the same ports.
func TestUserspaceKilled(t *testing.T) {
	t.Parallel()
	w := newEcho(t)
	w.start("proxyc", "watch")
	w.until("first sync", synced)
	if _, err := w.reaches("10.96.0.10:80"); err != nil {
		t.Fatal(err)
	}
	before := w.rules()
	w.stop(syscall.SIGKILL)
	// A tool that the process was about to execute keeps its sockets open until exec.
	within(w, 5*time.Second, "a refusal without the process", func() (struct{}, bool) {
		c, err := w.connect("10.96.0.10:80")
		if err == nil {
			c.Close()
		}
		return struct{}{}, err != nil && strings.Contains(err.Error(), "refused")
	})
	w.start("proxyc", "watch")
	w.until("synced again", synced)
	if _, err := w.reaches("10.96.0.10:80"); err != nil {
		t.Errorf("with the next process: %v", err)
	}
	if led := func(s string) string { return s[strings.Index(s, "--to-ports"):][:20] }; led(w.rules()) != led(before) {
		t.Errorf("the rules lead elsewhere:\n%s\n%s", before, w.rules())
	}
}

// apply does not write rules, because they would lead nowhere after it has ended. It still checks
// them.
func TestUserspaceApply(t *testing.T) {
	t.Parallel()
	w := newEcho(t)
	run := func(args ...string) (string, error) {
		cmd := w.ns.Command(t.Context(), "proxyc", append(append([]string{"apply"}, args...), w.args...)...)
		out, err := w.ns.Run(cmd)
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
	w.start("proxyc", "watch")
	w.until("first sync", synced)
	if out, err := run("--check"); err != nil {
		t.Errorf("apply --check beside watch: %s, %v", out, err)
	}
	w.stop(syscall.SIGTERM)
	if out, err := w.ns.Run(w.ns.Command(t.Context(), "proxyc", "cleanup")); err != nil {
		t.Errorf("cleanup: %s, %v", out, err)
	}
	if rules := w.rules(); strings.Contains(rules, "KUBE-") {
		t.Errorf("after cleanup:\n%s", rules)
	}
}
