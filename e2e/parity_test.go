package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// parityFile contains the configurations and command lines. Its head describes the format.
const parityFile = "../testdata/parity/cases.yaml"

// A parityCase is the input of both programs.
type parityCase struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	// File is the configuration below its apiVersion and kind; Raw is all of it.
	File *string `json:"file"`
	Raw  *string `json:"raw"`
	Late bool    `json:"late"` // proxyc rejects it only when it starts
	// Want is what kube-proxy does: starts, refuses, or ends.
	Want string `json:"want"`
	// Proxyc is what proxyc does if that is different, and Why the reason.
	Proxyc string `json:"proxyc"`
	Why    string `json:"why"`
}

const parityHeader = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// command returns the command of a program under kube-proxy's name, on a host that has the name
// of its Node.
func (c *parityCase) command(dir string, ours bool) ([]string, error) {
	args := slices.Clone(c.Args)
	text := c.Raw
	if c.File != nil {
		whole := parityHeader + *c.File
		text = &whole
	}
	if text != nil {
		file := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(file, []byte(*text), 0o644); err != nil {
			return nil, err
		}
		args = append([]string{"--config=" + file}, args...)
	}
	if ours {
		args = append([]string{"--status-socket=" + filepath.Join(dir, statusSocket)}, args...)
	}
	return append([]string{"unshare", "--uts", "sh", "-ec", `hostname node1; exec "$@"`, "sh", peerPath}, args...), nil
}

// TestParity starts a real kube-proxy, and proxyc in its place, with the same configuration or
// command line. Both start, both refuse, or both do one thing and end. The list gives the reason
// of each difference.
func TestParity(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	peer, err := kube.Tool(ctx, kube.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	put(ctx, t, dropinNode())
	data, err := os.ReadFile(parityFile)
	if err != nil {
		t.Fatal(err)
	}
	var cases []parityCase
	if err := yaml.UnmarshalStrict(data, &cases); err != nil {
		t.Fatal(err)
	}
	t.Run("cases", func(t *testing.T) {
		for i, c := range cases {
			if !c.Late && c.Want != "ends" && i%32 != 0 && !applytest.All { // cmd/proxyc checks all but late ones against the list
				continue
			}
			t.Run(cmp.Or(c.Name, strings.Join(c.Args, " ")), func(t *testing.T) {
				t.Parallel()
				want := cmp.Or(c.Proxyc, c.Want)
				theirs := play(ctx, t, &c, c.Want, peer, begun)
				ours := play(ctx, t, &c, want, proxyc, synced)
				if theirs.outcome != c.Want || ours.outcome != want {
					t.Errorf("kube-proxy %s (want %s): %s\nproxyc %s (want %s): %s", theirs.outcome, c.Want, theirs.last, ours.outcome, want, ours.last)
				}
			})
		}
	})
}

// played is the result of a program in a case.
type played struct {
	outcome string // starts, refuses, ends
	last    string // the last line of its output
}

// play starts a program and returns the result, which should be want.
func play(ctx context.Context, t *testing.T, c *parityCase, want, binary string, started func(n *node, log string) bool) played {
	t.Helper()
	n := newNode(t)
	container := n.container(t, binary, kube.KubeProxyUser)
	host, port, _ := strings.Cut(n.gate.Addr(), ":")
	container.Env = []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	command, err := c.command(n.dir, binary == proxyc)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	p := n.runAs(t, "program", container, command...)
	defer p.Kill()
	ended := make(chan error, 1)
	go func() { ended <- p.Wait(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	settle := applytest.ReplyTimeout // it still ends, for example since a port is in use
	if want == "starts" {
		settle = 300 * time.Millisecond
	}
	var settled <-chan time.Time
	for {
		select {
		case err := <-ended:
			outcome, last := outcomeOf(err), lastLine(p.Log)
			if outcome == "refuses" && !hasIPVS() && lacksIPVS(last) {
				outcome = "starts"
			}
			return played{outcome, last}
		case <-settled:
			return played{"starts", ""}
		case <-ctx.Done():
			t.Fatal("neither starts nor ends: ", p.Tail())
		case <-tick.C:
			if settled == nil && started(n, p.Log) {
				settled = time.After(settle)
			}
			if settled == nil && time.Since(began) > 30*time.Second {
				return played{"hangs", lastLine(p.Log)}
			}
		}
	}
}

func outcomeOf(err error) string {
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		return "refuses"
	}
	if err != nil {
		return fmt.Sprint(err)
	}
	return "ends"
}

// hasIPVS reports whether the kernel supports virtual servers.
func hasIPVS() bool {
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
}

// lacksIPVS reports whether only the kernel prevented a start. By then the program had checked
// the whole configuration.
func lacksIPVS(said string) bool {
	return strings.Contains(said, "can't use the IPVS proxier: ipvs not supported") ||
		strings.Contains(said, "mode ipvs: the kernel has no ip_vs") || strings.Contains(said, "iptables match ipvs: the kernel has none")
}

// begun reports whether kube-proxy logs that it follows the cluster.
func begun(_ *node, log string) bool {
	data, err := os.ReadFile(log)
	return err == nil && strings.Contains(string(data), "config controller")
}

// synced reports whether proxyc reports that its rules are in force.
func synced(n *node, _ string) bool {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.dir, statusSocket))
	}}}
	resp, err := client.Get("http://localhost/proxyc/status")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var status struct{ Synced bool }
	return json.NewDecoder(resp.Body).Decode(&status) == nil && status.Synced
}

const statusSocket = "status"

func lastLine(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}
