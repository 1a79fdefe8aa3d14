package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/proxyc/proxyc/apply/applytest"
)

// A Gate is a way from a node to the API server: an address that forwards there, usually of the
// node's loopback interface.
type Gate struct {
	// FromServer and ToServer count the forwarded bytes, with TLS.
	FromServer, ToServer atomic.Int64
	// Connections counts the accepted connections.
	Connections atomic.Int64

	cluster  *Cluster
	listener net.Listener
	running  sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]bool
	shut bool
	thaw chan struct{} // closed while bytes may pass
}

// Gate opens a gate in a namespace, at its loopback interface.
func (c *Cluster) Gate(ns *applytest.Namespace) (*Gate, error) { return c.GateAt(ns, "127.0.0.1:0") }

// GateAt opens a gate at an address of a namespace; with nil, of this process's namespace.
func (c *Cluster) GateAt(ns *applytest.Namespace, addr string) (*Gate, error) {
	g := &Gate{cluster: c, open: map[net.Conn]bool{}, thaw: make(chan struct{})}
	close(g.thaw)
	listen := func() (err error) {
		g.listener, err = net.Listen("tcp", addr)
		return err
	}
	do := func(f func() error) error { return f() }
	if ns != nil {
		do = ns.Do
	}
	if err := do(listen); err != nil {
		return nil, err
	}
	g.running.Go(g.accept)
	return g, nil
}

// Addr returns the address of the gate.
func (g *Gate) Addr() string { return g.listener.Addr().String() }

// Kubeconfig writes a kubeconfig for a user to a file in dir, and returns its path.
func (g *Gate) Kubeconfig(dir, user string) (string, error) {
	file := filepath.Join(dir, "kubeconfig-"+strings.ReplaceAll(user, ":", "-"))
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: user, user: {token: %q}}]
contexts: [{name: context, context: {cluster: cluster, user: user}}]
current-context: context
`, g.Addr(), user)
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// Cut breaks all connections; new ones are possible immediately.
func (g *Gate) Cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.open {
		conn.Close()
	}
}

// Shut breaks all connections, and rejects new ones until Open.
func (g *Gate) Shut() {
	g.setShut(true)
	g.Cut()
}

// Open ends the effect of Shut.
func (g *Gate) Open() { g.setShut(false) }

func (g *Gate) setShut(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
}

// Freeze stops all bytes, as if packets were dropped: connections stay, and new ones can be made,
// but nothing comes back. Thaw ends it.
func (g *Gate) Freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.thaw = make(chan struct{})
}

// Thaw ends the effect of Freeze. Bytes in transit then arrive.
func (g *Gate) Thaw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.thaw:
	default:
		close(g.thaw)
	}
}

// wait waits while the gate is frozen.
func (g *Gate) wait() {
	g.mu.Lock()
	thaw := g.thaw
	g.mu.Unlock()
	<-thaw
}

// Close closes the gate and breaks its connections.
func (g *Gate) Close() error {
	err := g.listener.Close()
	g.Shut()
	g.Thaw()
	g.running.Wait()
	return err
}

func (g *Gate) accept() {
	for {
		conn, err := g.listener.Accept()
		if err != nil {
			return // closed
		}
		g.Connections.Add(1)
		g.running.Go(func() { g.relay(conn) })
	}
}

// relay copies bytes in both directions until one side closes.
func (g *Gate) relay(node net.Conn) {
	defer g.track(node)()
	server, err := g.cluster.dial(context.Background(), "tcp", apiAddr)
	if err != nil {
		return // the node sees its connection closed
	}
	defer g.track(server)()
	var both sync.WaitGroup
	both.Go(func() { g.pass(server, node, &g.ToServer) })
	both.Go(func() { g.pass(node, server, &g.FromServer) })
	both.Wait()
}

// track registers a connection for Cut until the returned function closes it.
func (g *Gate) track(conn net.Conn) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		conn.Close()
	}
	g.open[conn] = true
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.open, conn)
		conn.Close()
	}
}

// pass copies bytes and counts them as they arrive. At the end it closes both connections: none
// is ever half open.
func (g *Gate) pass(to, from net.Conn, count *atomic.Int64) {
	io.Copy(to, io.TeeReader(from, counter{g, count})) // either end may break it
	to.Close()
	from.Close()
}

type counter struct {
	gate  *Gate
	count *atomic.Int64
}

func (c counter) Write(p []byte) (int, error) {
	c.gate.wait()
	c.count.Add(int64(len(p)))
	return len(p), nil
}
