package windows

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/hns/hnstest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// control is wine's service control manager. It lives as long as a program under wine that is no
// service.
type control struct {
	*lab
	t      *testing.T
	exe    string // of scm
	events string // file with what services log to the event log
}

const serviceName = "proxyc"

// newControl starts it again, since it gives services the environment of the registry at its own
// start.
func (l *lab) newControl(t *testing.T, h *host) *control {
	t.Helper()
	c := &control{lab: l, t: t, exe: filepath.Join(l.dir, "scm.exe"), events: filepath.Join(t.TempDir(), "events")}
	if _, err := os.Stat(c.exe); err != nil {
		if err := buildForWindows(t.Context(), ".", c.exe, "./scm"); err != nil {
			t.Fatal(err)
		}
	}
	const environment = `HKLM\System\CurrentControlSet\Control\Session Manager\Environment`
	_, port, _ := strings.Cut(h.listener.Addr().String(), ":")
	c.must(l.wine(t.Context(), wine64, "reg", "add", environment, "/v", "HCN_PORT_OF_SERVICES", "/d", port, "/f"))
	_ = l.wine(t.Context(), wineserver, "-k", "-w").Run()

	// A shell that waits for a command keeps it alive. Wine's libraries print the entries of the
	// event log.
	events, err := os.Create(c.events)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	shell := l.node.Command(context.Background(), wine64, "cmd")
	shell.Env = append(os.Environ(), "WINEPREFIX="+l.prefix, "WINEDEBUG=-all,+eventlog")
	shell.Stderr = events
	commands, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	wait, err := l.node.Start(shell)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		commands.Close()
		wait()
		_ = l.wine(context.Background(), wineserver, "-k", "-w").Run()
	})
	// The first program of wine starts the services, which keep its output open.
	if _, err := io.WriteString(commands, "echo ready\r\n"); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(answers); lines.Scan(); {
		if strings.Contains(lines.Text(), "ready") { // after a prompt
			return c
		}
	}
	t.Fatal("cmd.exe does not answer")
	return nil
}

func (c *control) must(cmd *exec.Cmd) string {
	c.t.Helper()
	out, err := c.node.Run(cmd)
	if err != nil {
		c.t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// scm acts on the service.
func (c *control) scm(verb string, command ...string) string {
	c.t.Helper()
	return c.must(c.wine(c.t.Context(), wine64, append([]string{c.exe, verb, serviceName}, command...)...))
}

// eventLog returns the entries of the event log.
func (c *control) eventLog() string {
	c.t.Helper()
	data, err := os.ReadFile(c.events)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(bytes.ReplaceAll(data, []byte("\r"), nil))
}

// TestService runs proxyc.exe as a service. It follows an overlay cluster whose network appears
// late, serves its status over loopback, and bounds its log. It stops on request, even before it
// has begun, and ends with an exit code if it must.
func TestService(t *testing.T) {
	l := inLab(t)
	w := world{server2022, overlay, false}
	h := l.newHost(t, w)
	c := l.newControl(t, h)
	dir := t.TempDir()
	file := clusterFile(t, dir, "nodeport")
	config := filepath.Join(dir, "config.yaml")
	// The directory of programs' data has another path for wine's services.
	log := filepath.Join(l.prefix, "drive_c/users/Public/proxyc/proxyc.log")
	if err := os.RemoveAll(filepath.Dir(log)); err != nil {
		t.Fatal(err)
	}
	configure := func(network string) {
		t.Helper()
		text := fmt.Sprintf("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: kernelspace\n"+
			"winkernel: {networkName: %s, sourceVip: 10.244.1.254}\n", network)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = c.node.Run(c.wine(t.Context(), wine64, c.exe, "delete", serviceName)) // of an aborted run
	c.scm("create", windowsPath(l.proxyc), "watch", "--windows-service", "--config", windowsPath(config), "--hostname-override", "node1",
		"-s", windowsPath(file), "--windows-priorityclass", "HIGH_PRIORITY_CLASS")
	defer c.scm("delete")
	until := func(what string, f func() error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
		defer cancel()
		if err := kube.Until(ctx, 50*time.Millisecond, func(context.Context) error { return f() }); err != nil {
			text, _ := os.ReadFile(log)
			t.Fatalf("%s: %v\n%s", what, err, text)
		}
	}
	contains := func(what string, text func() string, wants ...string) {
		t.Helper()
		until(what, func() error {
			for _, want := range wants {
				if got := text(); !strings.Contains(got, want) {
					return fmt.Errorf("want %q, got %q", want, got)
				}
			}
			return nil
		})
	}
	logged := func() string {
		text, _ := os.ReadFile(log)
		return string(text)
	}
	const running, stopped = "state 4, accepts 5, code 0, of its own 0, priority 0x80\n", "state 1, accepts 0, code 0, of its own 0, priority 0x0\n"

	// It starts before the network exists, and is stopped meanwhile.
	configure("late")
	c.scm("start")
	contains("start", func() string { return c.scm("query") }, running)
	contains("start", logged, "the container network creates it")
	if got := c.scm("stop"); got != stopped {
		t.Errorf("stopped while it starts: %s", got)
	}

	// It is started again, with a full log, and the container network creates its network.
	if err := os.Truncate(log, 32<<20); err != nil {
		t.Fatal(err)
	}
	c.scm("start")
	until("the log that was full", func() error {
		info, err := os.Stat(log + ".old")
		if err == nil && info.Size() != 32<<20 {
			err = fmt.Errorf("it has %d bytes", info.Size())
		}
		return err
	})
	contains("start with a full log", logged, "the container network creates it")
	network := h.AddNetwork(hnstest.Network{Name: "late", Type: overlay, Ipams: hnstest.Subnets("10.244.1.0/24"),
		Policies: []hnstest.Policy{hnstest.RemoteSubnet("10.244.2.0/24", "192.0.2.12")}})
	h.AddPod(network, netip.MustParseAddr("10.244.1.10"))
	until("the network is there", func() error {
		balancers, _ := h.State("")
		if want := "10.96.0.10 6 80->8080 flags 0 distribution 0 flags 0 source 10.244.1.254 -> 10.244.1.10 10.244.2.10"; len(balancers) != 2 || balancers[0] != want {
			return fmt.Errorf("got %q, want %q and the node port", balancers, want)
		}
		return nil
	})
	until("status over loopback", func() error {
		out, err := c.node.Run(c.proxycExe(t.Context(), h, "status"))
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if got := c.scm("stop"); got != stopped {
		t.Errorf("stopped: %s", got)
	}

	// It cannot continue. Its exit code reports that, and the event log where to read the reason.
	if err := os.WriteFile(config, []byte("mode: kernelspace\nsyncPeriods: 1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.scm("start")
	if got, want := c.scm("ended"), "state 1, accepts 0, code 1066, of its own 2, priority 0x0\n"; got != want {
		t.Errorf("bad configuration: %s, want %s", got, want)
	}
	contains("bad configuration", logged, "syncPeriods")
	contains("event log", c.eventLog, "proxyc starts", "proxyc ends\"", "proxyc ends: ")
}
