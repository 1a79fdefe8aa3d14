package demo_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m, nil) }

// liveDemo is a demo that runs.
type liveDemo struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   applytest.Buffer
	ended chan error
	mark  string // in the environment of all its processes
}

func startDemo(t *testing.T, args ...string) *liveDemo {
	t.Helper()
	applytest.RequireRoot(t)
	nodetest.Program(t)
	d := &liveDemo{t: t, cmd: exec.Command("proxyc", append([]string{"demo", "--live"}, args...)...), ended: make(chan error, 1)}
	d.mark = "PROXYC_DEMO_OF=" + strings.ReplaceAll(t.Name(), "/", "-") + "-" + strconv.Itoa(os.Getpid())
	d.cmd.Env = append(os.Environ(), d.mark)
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.ended <- d.cmd.Wait() }()
	t.Cleanup(func() { d.cmd.Process.Kill() })
	return d
}

// end returns the exit code, after the demo has ended and nothing is left of it.
func (d *liveDemo) end() int {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(applytest.ScaledTimeout(time.Minute)):
		d.t.Fatalf("it does not end:\n%s", &d.out)
	}
	applytest.Until(d.t, 0, "nothing is left", func() bool { return len(d.processes()) == 0 })
	if _, err := os.Stat("/run/demo"); err == nil {
		d.t.Error("files are left")
	}
	return d.cmd.ProcessState.ExitCode()
}

// processes are those of the demo, with the kinds of their command lines.
func (d *liveDemo) processes() map[int]string {
	found := map[int]string{}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, dir := range all {
		environ, _ := os.ReadFile(dir + "/environ") // of one that has ended there is none
		if !bytes.Contains(environ, []byte(d.mark+"\x00")) {
			continue
		}
		line, _ := os.ReadFile(dir + "/cmdline")
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			d.t.Fatal(err)
		}
		found[pid] = string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
	}
	return found
}

// node returns the process of the node.
func (d *liveDemo) node() *os.Process {
	for pid, line := range d.processes() {
		if strings.Contains(line, "--part=node") {
			p, err := os.FindProcess(pid)
			if err != nil {
				d.t.Fatal(err)
			}
			return p
		}
	}
	d.t.Fatalf("no process of the node: %v", d.processes())
	return nil
}

// ours are the rules of the namespace where the tests run.
func ours(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "tables").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// The live demo shows what it says, by real connections, and leaves nothing.
func TestDemoLive(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, "--mode", mode)
			before := ours(t)
			if code := d.end(); code != nodetest.ExitDone {
				t.Errorf("exit code %d", code)
			}
			if after := ours(t); after != before {
				t.Errorf("the machine has the tables\n%s\nand had\n%s", after, before)
			}
			text := d.out.String()
			for _, want := range []string{
				`=> 10\.244\.1\.10:8080 10\.244\.1\.11:8080\n  actual: by web-1, client address 10\.244\.1\.20; by web-2, client address 10\.244\.1\.20\n`,
				`\+snat 10\.244\.1\.11:8080\+snat\n  actual: by web-1, client address 10\.244\.1\.1; by web-2, client address 10\.244\.1\.1\n`,
				`=> rejected\n(?:  .*\n)*?  actual: refused\n`,
				`=> dropped\n(?:  .*\n)*?  actual: no answer\n`,
				`Pod web-2 is killed\n.*applied after .*\n(?:.*\n)*?  => 10\.244\.1\.10:8080\n  actual: by web-1, client address 10\.244\.1\.20\n`,
				`Another program adds a rule: .*\n  actual: no answer\n`,
				`because: table inet firewall, chain forward, rule 1 \(foreign\) drops the packet`,
				`# All connections match their traces\.`,
			} {
				if !regexp.MustCompile(want).MatchString(text) {
					t.Errorf("want %s in\n%s", want, text)
				}
			}
		})
	}
}

// However the demo ends, and whichever of its processes does, nothing of it is left.
func TestDemoLiveLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]struct {
		how  func(*liveDemo) error
		code int
	}{
		"interrupt":        {func(d *liveDemo) error { return d.cmd.Process.Signal(os.Interrupt) }, 130},
		"terminate":        {func(d *liveDemo) error { return d.cmd.Process.Signal(syscall.SIGTERM) }, 143},
		"kill":             {func(d *liveDemo) error { return d.cmd.Process.Kill() }, -1},
		"the node is gone": {func(d *liveDemo) error { return d.node().Kill() }, nodetest.ExitBad},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t)
			applytest.Until(d.t, 0, "rules", func() bool { return strings.Contains(d.out.String(), "applied after") })
			if n := len(d.processes()); n < 3 {
				t.Fatalf("%d processes: %v", n, d.processes())
			}
			if err := ends.how(d); err != nil {
				t.Fatal(err)
			}
			if code := d.end(); code != ends.code {
				t.Errorf("exit code %d, want %d", code, ends.code)
			}
			if text := d.out.String(); strings.Contains(text, "All went") || ends.code == nodetest.ExitBad && !strings.Contains(text, "proxyc: ") {
				t.Errorf("it does not say that it was ended:\n%s", text)
			}
		})
	}
}

// The demo rejects unsupported flags.
func TestDemoLiveRefuses(t *testing.T) {
	t.Parallel()
	nodetest.Program(t)
	for args, want := range map[string]string{
		"demo --live --mode ipvs": `--live: mode must be nftables or iptables, got "ipvs"`,
		"demo --live --write x":   "--live, --write: cannot be combined",
		"demo --part node":        "--part: is only for --live",
	} {
		cmd := exec.Command("proxyc", strings.Fields(args)...)
		out, _ := cmd.CombinedOutput() // the exit code contains more than the error
		if code := cmd.ProcessState.ExitCode(); code != nodetest.ExitBad || !strings.Contains(string(out), want) {
			t.Errorf("%s: exit code %d, %s; want %s", args, code, out, want)
		}
	}
}
