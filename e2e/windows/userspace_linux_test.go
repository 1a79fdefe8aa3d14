package windows

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/proxyc/proxyc/e2e/kube"
)

// ipHelper changes the addresses of the node's interface as iphlpapi.dll requests.
type ipHelper struct {
	lab      *lab
	link     netlink.Link
	listener net.Listener

	mu    sync.Mutex
	calls []string
}

// wineHelper is wine's own library.
const wineHelper = "/usr/lib/x86_64-linux-gnu/wine/x86_64-windows/iphlpapi.dll"

// newIPHelper replaces wine's library by dll/iphlpapi.c until the test ends, and serves it.
func (l *lab) newIPHelper(t *testing.T) *ipHelper {
	t.Helper()
	own, err := os.ReadFile(wineHelper)
	if err != nil {
		t.Fatal(err)
	}
	system := filepath.Join(l.prefix, "drive_c/windows/system32")
	library := filepath.Join(system, "iphlpapi.dll")
	t.Cleanup(func() {
		if err := os.WriteFile(library, own, 0o600); err != nil {
			t.Error(err)
		}
	})
	mark := bytes.Index(own, []byte("Wine builtin DLL")) // wine loads a library with this mark by its name alone
	if mark < 0 {
		t.Fatalf("%s is no library of wine", wineHelper)
	}
	renamed := bytes.Clone(own)
	copy(renamed[mark:], "Copy")
	if err := os.WriteFile(filepath.Join(system, "wineiphl.dll"), renamed, 0o600); err != nil {
		t.Fatal(err)
	}
	exports, err := exec.Command(strings.TrimSuffix(compiler, "gcc")+"objdump", "-p", wineHelper).Output()
	if err != nil {
		t.Fatal(err)
	}
	def := "LIBRARY iphlpapi\nEXPORTS\nCreateUnicastIpAddressEntry\nDeleteUnicastIpAddressEntry\n"
	for _, m := range regexp.MustCompile(`(?m)^\t\[ *\d+\] (\w+)$`).FindAllSubmatch(exports, -1) {
		def += fmt.Sprintf("%s = wineiphl.%s\n", m[1], m[1])
	}
	definition := filepath.Join(t.TempDir(), "iphlpapi.def")
	if err := os.WriteFile(definition, []byte(def), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-Wall", "-Werror", "-O1", "-shared", "-o", library, "dll/iphlpapi.c", definition, "-lws2_32"}
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("iphlpapi.dll: %v: %s", err, out)
	}
	h := &ipHelper{lab: l}
	if h.link, err = l.node.Netlink().LinkByName("eth0"); err != nil {
		t.Fatal(err)
	}
	err = l.node.Do(func() (err error) {
		h.listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.listener.Close() })
	go h.serve()
	return h
}

func (h *ipHelper) env() []string {
	return []string{"WINEDLLOVERRIDES=iphlpapi=n", "INTERFACE_TO_ADD_SERVICE_IP=eth0", fmt.Sprintf("IPHLP_PORT=%d", h.listener.Addr().(*net.TCPAddr).Port)}
}

func (h *ipHelper) serve() {
	for {
		c, err := h.listener.Accept()
		if err != nil {
			return
		}
		var call [27]byte
		if _, err := io.ReadFull(c, call[:]); err == nil {
			c.Write(binary.LittleEndian.AppendUint32(nil, h.do(call)))
		}
		c.Close()
	}
}

// do adds or removes an address, and returns the error code of Windows.
func (h *ipHelper) do(call [27]byte) uint32 {
	const exists, notFound, failed = 5010, 1168, 31
	addr := netip.AddrFrom16([16]byte(call[11:27]))
	if call[1] == 4 {
		addr = netip.AddrFrom4([4]byte(call[11:15]))
	}
	prefix := netip.PrefixFrom(addr, int(call[2]))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, string(call[0])+prefix.String())
	a, err := netlink.ParseAddr(prefix.String())
	if err != nil {
		return failed
	}
	switch nl := h.lab.node.Netlink(); call[0] {
	case '+':
		if err = nl.AddrAdd(h.link, a); errors.Is(err, os.ErrExist) {
			return exists
		}
	case '-':
		if nl.AddrDel(h.link, a) != nil {
			return notFound
		}
	}
	if err != nil {
		return failed
	}
	return 0
}

func (h *ipHelper) took() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	return calls
}

// addrs returns the addresses of Services on the interface.
func (h *ipHelper) addrs(t *testing.T) (list []string) {
	t.Helper()
	all, err := h.lab.node.Netlink().AddrList(h.link, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p := a.IPNet.String(); strings.HasSuffix(p, "/32") {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

// serveOnNode serves TCP and UDP at an address of the node until the test ends. Each connection
// receives a name, and each datagram a reply.
func (l *lab) serveOnNode(t *testing.T, at, name string, answer func([]byte) []byte) {
	t.Helper()
	var listener net.Listener
	var socket net.PacketConn
	err := l.node.Do(func() (err error) {
		if listener, err = net.Listen("tcp4", at); err != nil {
			return err
		}
		socket, err = net.ListenPacket("udp4", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		listener.Close()
		socket.Close()
	})
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, name)
				io.Copy(c, c)
			}()
		}
	}()
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			socket.WriteTo(answer(buffer[:n]), from)
		}
	}()
}

func (l *lab) dial(t *testing.T, network, to string) (net.Conn, error) {
	t.Helper()
	var c net.Conn
	err := l.node.Do(func() (err error) {
		c, err = net.DialTimeout(network, to, 10*time.Second)
		return err
	})
	if err == nil {
		c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return c, err
}

// served returns the name of the backend that a connection reaches.
func (l *lab) served(t *testing.T, to string) string {
	t.Helper()
	c, err := l.dial(t, "tcp4", to)
	if err != nil {
		return "nobody"
	}
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "nobody"
	}
	return strings.TrimSpace(line)
}

// lookUp queries a DNS service for a name, and returns the name and the address in the reply.
func (l *lab) lookUp(t *testing.T, at, name string) string {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	ask, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.dial(t, "udp4", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buffer := make([]byte, 2048)
	n, err := 0, c.SetDeadline(time.Now().Add(20*time.Second))
	if err == nil {
		_, err = c.Write(ask)
	}
	if err == nil {
		n, err = c.Read(buffer)
	}
	if err == nil {
		err = m.Unpack(buffer[:n])
	}
	if err != nil {
		return err.Error()
	}
	out := m.RCode.String()
	for _, a := range m.Answers {
		out += " " + a.Header.Name.String()
	}
	return out
}

// resolver returns a DNS server that resolves one name.
func resolver(name string) func([]byte) []byte {
	return func(ask []byte) []byte {
		var m dnsmessage.Message
		if m.Unpack(ask) != nil {
			return ask
		}
		m.Response, m.RCode = true, dnsmessage.RCodeNameError
		if q := m.Questions[0]; q.Name.String() == name {
			m.RCode = dnsmessage.RCodeSuccess
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
				Body: &dnsmessage.AResource{A: [4]byte{10, 96, 0, 10}}}}
		}
		out, err := m.Pack()
		if err != nil {
			return ask
		}
		return out
	}
}

// userspaceCluster is a Service with every kind of address, a DNS service at an address that the
// node already has, and a Service that is removed.
const userspaceCluster = `apiVersion: v1
kind: Node
metadata: {name: node1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  externalIPs: [198.18.0.10]
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [192.0.2.11], conditions: {ready: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.53
  clusterIPs: [10.96.0.53]
  ipFamilies: [IPv4]
  ports: [{name: dns, port: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-4, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 8080, protocol: UDP}]
endpoints: [{addresses: [192.0.2.11], conditions: {ready: true}}]
`

const goingService = `---
apiVersion: v1
kind: Service
metadata: {name: going, namespace: default}
spec:
  clusterIP: 10.96.0.20
  clusterIPs: [10.96.0.20]
  ipFamilies: [IPv4]
  ports: [{name: http, port: 80}]
`

// TestUserspace checks mode userspace. Addresses are added to the interface and removed again,
// connections and DNS queries reach their backends, and cleanup removes only what proxyc added.
func TestUserspace(t *testing.T) {
	l := inLab(t)
	h, helper := l.newHost(t, world{server2022, l2bridge, false}), l.newIPHelper(t)
	h.more = helper.env()
	const byHand = "10.96.0.53/32"
	addr, err := netlink.ParseAddr(byHand)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.node.Netlink().AddrAdd(helper.link, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.node.Netlink().AddrDel(helper.link, addr) })
	l.serveOnNode(t, "192.0.2.11:8080", "web-1", resolver("web.default.svc.cluster.local."))

	dir := t.TempDir()
	file := filepath.Join(dir, "cluster.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(userspaceCluster + goingService)
	run := func(code int, args ...string) string {
		t.Helper()
		return l.run(t, h, code, args...)
	}
	// A client must not be forgotten before a slow machine replies.
	flags := []string{"--mode", "userspace", "--udp-timeout", "1m", "-s", windowsPath(file), "--hostname-override", "node1"}
	apply := func(code int, args ...string) string {
		t.Helper()
		return run(code, append(append([]string{"apply"}, flags...), args...)...)
	}
	if out := apply(1, "--check", "-o", "wide"); !strings.Contains(out, "address 10.96.0.10") {
		t.Errorf("--check: %s", out)
	}
	if out := apply(2); !strings.Contains(out, "use proxyc watch") {
		t.Errorf("apply: %s", out)
	}
	if calls := helper.took(); len(calls) != 0 {
		t.Fatalf("addresses were changed: %q", calls)
	}

	watch := func() *kube.Proxy {
		t.Helper()
		daemon, err := l.start(h, dir, "proxyc", l.proxyc, append([]string{"watch"}, flags...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { daemon.Kill() })
		ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
		defer cancel()
		if err := daemon.Ready(ctx); err != nil {
			t.Fatalf("watch: %v\n%s", err, daemon.Tail())
		}
		return daemon
	}
	daemon := watch()
	served := func(when string) {
		t.Helper()
		for _, at := range []string{"10.96.0.10:80", "198.18.0.10:80", "203.0.113.10:80", "192.0.2.11:30080", "127.0.0.1:30080"} {
			if got := l.served(t, at); got != "web-1" {
				t.Errorf("%s: %s is served by %s\n%s", when, at, got, daemon.Tail())
			}
		}
	}
	served("at first")
	all := []string{"10.96.0.10/32", "10.96.0.20/32", byHand, "198.18.0.10/32", "203.0.113.10/32"}
	if diff := cmp.Diff(all, helper.addrs(t)); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"+10.96.0.10/32", "+10.96.0.20/32", "+198.18.0.10/32", "+203.0.113.10/32"}, helper.took()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := l.served(t, "10.96.0.20:80"); got != "nobody" {
		t.Errorf("a Service without endpoints is served by %s", got)
	}
	if got, want := l.lookUp(t, "10.96.0.53:53", "web."), "RCodeSuccess web."; got != want {
		t.Errorf("a short name: %s, want %s", got, want)
	}
	if got, want := l.lookUp(t, "10.96.0.53:53", "no."), "RCodeNameError"; got != want {
		t.Errorf("an unknown name: %s, want %s", got, want)
	}
	if out := apply(0, "--check"); !strings.Contains(out, "nothing to change") {
		t.Errorf("--check during watch: %s", out)
	}

	held, err := l.dial(t, "tcp4", "10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	until := func(what string, ok func() bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
		defer cancel()
		err := kube.Until(ctx, 50*time.Millisecond, func(context.Context) error {
			if !ok() {
				return errors.New(what)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, daemon.Tail())
		}
	}
	write(userspaceCluster)
	without := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return a == "10.96.0.20/32" })
	until("the address of a Service that went stays", func() bool { return slices.Equal(helper.addrs(t), without) })
	held.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintln(held, "still here")
	if line := bufio.NewReader(held); true {
		first, _ := line.ReadString('\n')
		second, err := line.ReadString('\n')
		if first != "web-1\n" || second != "still here\n" {
			t.Errorf("a connection under way: %q, %q, %v", first, second, err)
		}
	}

	gone, err := netlink.ParseAddr("10.96.0.10/32")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.node.Netlink().AddrDel(helper.link, gone); err != nil {
		t.Fatal(err)
	}
	until("an address that another removed does not come back", func() bool {
		return slices.Equal(helper.addrs(t), without) && l.served(t, "10.96.0.10:80") == "web-1"
	})

	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(without, helper.addrs(t)); diff != "" {
		t.Errorf("after the process was killed (-want +got):\n%s", diff)
	}
	helper.took()
	daemon = watch()
	served("after the process was killed")
	if calls := helper.took(); len(calls) != 0 {
		t.Errorf("addresses were there: %q", calls)
	}
	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	run(0, "cleanup")
	if diff := cmp.Diff([]string{byHand}, helper.addrs(t)); diff != "" {
		t.Errorf("after cleanup (-want +got):\n%s", diff)
	}
}
