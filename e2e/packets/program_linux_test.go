package packets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/ir"
)

// A plane is a mode and variant of rules.
type plane struct{ mode, variant string }

// planes returns the planes that this kernel supports.
var planes = func() []plane {
	all := []plane{{"iptables", "nft"}, {"iptables", "legacy"}, {mode: "nftables"}}
	if haveIPVS() {
		all = append(all, plane{mode: "ipvs"})
	}
	return all
}()

func haveIPVS() bool {
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
}

func (p plane) String() string {
	if p.variant == "" {
		return p.mode
	}
	return p.mode + "-" + p.variant
}

// args returns the flags that select the plane.
func (p plane) args() []string {
	args := []string{"--mode", p.mode}
	if p.variant != "" {
		args = append(args, "--iptables-variant", p.variant)
	}
	return args
}

func eachPlane(t *testing.T, f func(t *testing.T, p plane)) {
	applytest.RequireRoot(t)
	applytest.HaveIPVS(t)
	for _, p := range planes {
		t.Run(p.String(), func(t *testing.T) {
			f(t, p)
		})
	}
}

func TestMain(m *testing.M) { nodetest.Main(m, nil) }

// A machine is a namespace in which programs run as on a node.
type machine struct {
	*applytest.Namespace
	t      testing.TB
	binary string
	dir    string   // for its files
	env    []string // in addition to the test's own

	kubelet bool // a kubelet runs, and created KUBE-FIREWALL before kube-proxy started
}

// newMachine makes ns a machine; nil creates an empty namespace.
func newMachine(t testing.TB, ns *applytest.Namespace) *machine {
	t.Helper()
	applytest.RequireRoot(t)
	nodetest.Program(t)
	binary, err := exec.LookPath("proxyc")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Namespace: ns, t: t, binary: binary, dir: t.TempDir()}
	if ns == nil {
		ns, err := applytest.NewNamespace("machine")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		m.Namespace = ns
	}
	m.env = []string{"XTABLES_LOCKFILE=" + filepath.Join(m.dir, "xtables.lock")}
	t.Cleanup(func() { os.Remove(m.lockFile()) })
	return m
}

// lockFile returns proxyc's lock file for the machine.
func (m *machine) lockFile() string {
	var st unix.Stat_t
	if err := unix.Fstat(m.Fd(), &st); err != nil {
		m.t.Fatal(err)
	}
	return fmt.Sprintf("/run/proxyc/proxyc-%d.lock", st.Ino)
}

// file writes a file that programs on the machine may read.
func (m *machine) file(name, text string) string {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// ran is the result of a run of proxyc.
type ran struct {
	args           []string
	code           int
	stdout, stderr string
}

func (r ran) String() string {
	return fmt.Sprintf("proxyc %s: exit %d\n%s%s", strings.Join(r.args, " "), r.code, r.stdout, r.stderr)
}

func (m *machine) prepare(name string, args ...string) *exec.Cmd {
	cmd := m.Command(context.Background(), name, args...)
	cmd.Env = append(os.Environ(), m.env...)
	return cmd
}

// start starts a run of proxyc; wait returns its result. change, if not nil, modifies the command
// first.
func (m *machine) start(change func(*exec.Cmd), args ...string) (cmd *exec.Cmd, wait func() ran) {
	m.t.Helper()
	cmd = m.prepare(m.binary, args...)
	cmd.SysProcAttr.Setpgid = true
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if change != nil {
		change(cmd)
	}
	ended, err := m.Start(cmd)
	if err != nil {
		m.t.Fatal(err)
	}
	return cmd, func() ran {
		m.t.Helper()
		err := ended()
		r := ran{args: args, stdout: stdout.String(), stderr: stderr.String()}
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			r.code = exit.ExitCode()
		} else if err != nil {
			m.t.Fatal(err)
		}
		return r
	}
}

func (m *machine) proxyc(args ...string) ran {
	m.t.Helper()
	_, wait := m.start(nil, args...)
	return wait()
}

// apply runs proxyc apply for node1.
func (m *machine) apply(p plane, config, snapshot string, more ...string) ran {
	m.t.Helper()
	return m.proxyc(applyArgs(p, config, snapshot, more...)...)
}

func applyArgs(p plane, config, snapshot string, more ...string) []string {
	return slices.Concat([]string{"apply", "-c", config, "-s", snapshot, "--hostname-override", "node1"}, p.args(), more)
}

// must fails the test unless proxyc exited with the code.
func (m *machine) must(code int, r ran) ran {
	m.t.Helper()
	if r.code != code {
		m.t.Fatalf("want exit %d, got: %s", code, r)
	}
	return r
}

// tool runs another program, and fails the test if that fails.
func (m *machine) tool(stdin, name string, args ...string) string {
	m.t.Helper()
	cmd := m.prepare(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := m.Run(cmd)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(out)
}

var (
	counters  = regexp.MustCompile(`\[\d+:\d+\]|counter packets \d+ bytes \d+`)
	elements  = regexp.MustCompile(`elements = \{([^}]*)\}`)
	emptySave = regexp.MustCompile(`\*\w+\n(:[A-Z]+ ACCEPT \[0:0\]\n)+COMMIT\n`)
	ofTools   = regexp.MustCompile(`^ip6? (filter|nat|mangle|raw|security)$`)
)

// dump returns every rule, set, element and virtual server of the machine, in every kernel
// interface, without counters and empty tables.
func (m *machine) dump() string {
	m.t.Helper()
	var b strings.Builder
	for line := range strings.Lines(m.tool("", "nft", "list", "tables")) {
		table := strings.TrimPrefix(strings.TrimSpace(line), "table ")
		if ofTools.MatchString(table) {
			continue
		}
		b.WriteString(listed(m.tool("", "nft", append([]string{"list", "table"}, strings.Fields(table)...)...)))
	}
	for _, variant := range []string{"nft", "legacy"} {
		for _, tool := range []string{"iptables", "ip6tables"} {
			name := tool + "-" + variant + "-save"
			fmt.Fprintf(&b, "# %s\n", name)
			b.WriteString(saved(m.tool("", name)))
		}
	}
	if haveIPVS() {
		b.WriteString(ipsets.ReplaceAllString(m.tool("", "ipset", "save", "-sorted"), ""))
		b.WriteString(virtualServers(m.tool("", "ipvsadm", "-Sn")))
		b.WriteString(m.addresses(ir.IPVSDevice))
	}
	return b.String()
}

// ipsets matches properties of sets that depend on their history: table sizes and hash seeds.
var ipsets = regexp.MustCompile(` (hashsize|bucketsize|initval) \w+`)

// virtualServers returns the output of ipvsadm-save, sorted, since the kernel's order is arbitrary.
func virtualServers(text string) string {
	lines := strings.SplitAfter(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// addresses returns the addresses of an interface, if it exists.
func (m *machine) addresses(link string) string {
	m.t.Helper()
	l, err := m.Netlink().LinkByName(link)
	if err != nil {
		return ""
	}
	addrs, err := m.Netlink().AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		m.t.Fatal(err)
	}
	lines := []string{"# " + link + " " + l.Type() + "\n"}
	for _, a := range addrs {
		lines = append(lines, a.IPNet.String()+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// listed returns nft's listing of a table without counters, with sets, chains and elements sorted,
// since the kernel's order is arbitrary.
func listed(text string) string {
	text = counters.ReplaceAllString(strings.TrimSuffix(text, "}\n"), "")
	text = elements.ReplaceAllStringFunc(text, func(s string) string {
		list := strings.Split(elements.FindStringSubmatch(s)[1], ",")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		slices.Sort(list)
		return "elements = {\n\t\t\t" + strings.Join(list, ",\n\t\t\t") + "\n\t\t}"
	})
	head, body, _ := strings.Cut(text, "\n")
	blocks := strings.Split(strings.Trim(body, "\n"), "\n\n")
	slices.Sort(blocks)
	return head + "\n" + strings.Join(blocks, "\n\n") + "\n}\n"
}

// saved returns the output of iptables-save without comments, counters and empty tables.
func saved(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(counters.ReplaceAllString(line, "[0:0]"))
		}
	}
	return emptySave.ReplaceAllString(b.String(), "")
}

// same fails the test if the machine has changed.
func (m *machine) same(want, what string) {
	m.t.Helper()
	if diff := cmp.Diff(want, m.dump()); diff != "" {
		m.t.Errorf("%s: rules (-want +got):\n%s", what, diff)
	}
}

// lacks fails the test if any rule of the machine contains one of the words.
func (m *machine) lacks(words ...string) {
	m.t.Helper()
	for line := range strings.Lines(m.dump()) {
		for _, w := range words {
			if strings.Contains(line, w) {
				m.t.Errorf("still there: %s", line)
			}
		}
	}
}

// shim replaces a tool by a shell script, in which "$real" is the tool.
func (m *machine) shim(name, script string) {
	m.t.Helper()
	real, err := exec.LookPath(name)
	if err != nil {
		m.t.Fatal(err)
	}
	bin := filepath.Join(m.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		m.t.Fatal(err)
	}
	text := fmt.Sprintf("#!/bin/sh\nreal=%s\n%s\n", real, script)
	if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.env = append(m.env, "PATH="+bin+":"+os.Getenv("PATH"))
}
