package history

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

var (
	lastsFlag  = flag.Duration("lasts", 0, "how long TestHistory lasts in each mode; 45 s when 0, 12 s without -tags all")
	proxycFlag = flag.String("proxyc", "", "binary to use; built from the module above when empty")
)

// planes are the modes that a daemon supports, with the variants of the iptables tools.
var planes = []string{"nftables", "iptables-nft", "iptables-legacy"}

const (
	// quietLimit is how long after the last fault the kernel may differ from the wanted rules.
	quietLimit = 2 * time.Minute
	// maxFailures is the number of failures after which a history ends.
	maxFailures = 10
)

// noticeTime is how long the daemon may take to notice a change of the API or of the rules. The kernel
// reports changes of nf_tables. The daemon reads the legacy tables every second or two.
var noticeTime = map[string]time.Duration{"nftables": 2 * time.Second, "iptables-nft": 2 * time.Second, "iptables-legacy": 5 * time.Second}

// TestHistory runs a daemon through random bursts of API changes, foreign edits, kills, new configurations,
// and faults of the kernel, the tools and the API server. After each burst all faults end, and two things
// must hold.
//
//   - Within two minutes `apply --check` finds no difference, and /readyz returns 200.
//   - No poll of /readyz returned 200 while `apply --check` had a difference. A 200 is wrong if the check
//     that ended before the poll and the check that began after it both report the same line, and the daemon
//     had noticeTime to notice the last change. A daemon that started after the last change has no such
//     time: it must read everything before it is ready. After the API server was out of reach, its return
//     counts as a change when the daemon watches all resources again.
//
// Polls are judged only in pauses, including short ones during which faults of the kernel and the
// tools continue. -seed repeats the choices of a history, but not their times.
func TestHistory(t *testing.T) {
	seed := applytest.Seed(t)
	applytest.RequireRoot(t)
	proxyc := *proxycFlag
	if proxyc == "" {
		var err error
		if proxyc, err = kube.Proxyc(t.Context(), t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	lasts := *lastsFlag
	switch {
	case lasts != 0:
	case !applytest.All:
		lasts = 12 * time.Second
	default:
		lasts = 45 * time.Second
	}
	for _, plane := range planes {
		t.Run(plane, func(t *testing.T) {
			h := newHistory(t, plane, proxyc, seed)
			for began := time.Now(); time.Since(began) < lasts && h.failures < maxFailures; {
				h.burst()
				h.settle()
			}
			h.t.Logf("-seed=%d: %d bursts of %d moves, %d API changes; slowest pause %s; %d polls, %d of them 200, %d judged; %d failures",
				seed, h.bursts, h.moves, h.cluster.changes, h.slowest.Round(time.Millisecond), len(h.polls), h.ready(), h.judged, h.failures)
			if h.ready() == 0 || h.bursts == 0 {
				t.Error("the daemon was never ready")
			}
		})
	}
}

// A history is one run of TestHistory in one mode.
type history struct {
	t       *testing.T
	ns      *applytest.Namespace
	plane   string
	binary  string
	seed    uint64
	r       *rand.Rand
	cluster *cluster
	dir     string // of all files
	machine *kube.Container
	args    []string // of all verbs
	proxy   *kube.Proxy
	began   time.Time
	deck    []move
	faults  []fault // that have not ended
	down    bool    // no daemon runs

	changed time.Time // last change of the API, of the rules, or of the daemon's access to them
	started time.Time // start of the daemon
	cut     bool      // the API server was unreachable, and the daemon may not have caught up

	logged int64 // size of the daemon's log at the beginning of the burst
	polled atomic.Pointer[kube.Proxy]
	mu     sync.Mutex
	polls  []poll

	bursts, moves, judged, failures int
	slowest                         time.Duration
}

// A poll is one request of /readyz.
type poll struct {
	began, ended time.Time
	code         int    // 0 without a response
	body         string // of the response, or the error
}

// A fault lasts until end is called.
type fault struct {
	name string
	// unknown means that the daemon cannot determine the wanted rules meanwhile, or that rules may
	// change at any time.
	unknown bool
	// process marks a fault of the daemon's process, which ends with the process.
	process bool
	end     func()
}

func newHistory(t *testing.T, plane, binary string, seed uint64) *history {
	t.Helper()
	dir, ns := t.TempDir(), applytest.RequireNamespace(t)
	mode, variant, _ := strings.Cut(plane, "-")
	h := &history{t: t, ns: ns, plane: plane, binary: binary, seed: seed, r: rand.New(rand.NewPCG(seed, 1)), dir: dir, began: time.Now(),
		machine: &kube.Container{Files: map[string]string{"/run": filepath.Join(dir, "run")},
			Env: []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")}},
		args: []string{"--config", filepath.Join(dir, "config.yaml"), "--hostname-override", "node1", "--mode", mode}}
	if variant != "" {
		h.args = append(h.args, "--iptables-variant", variant)
	}
	server, err := newAPI(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	h.cluster = &cluster{api: server, r: h.r}
	server.apply(node("a", "192.0.2.11"), serviceCIDR("kubernetes", "10.96.0.0/12", "fd00:10:96::/108"))
	for range 60 {
		h.cluster.step()
	}
	for _, empty := range []string{"run", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, empty), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.run("ip address add 192.0.2.11/32 dev lo; ip address add fd00:2::11/128 dev lo")
	h.wrapTools()
	h.configure()
	h.launch()
	polling, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); h.poll(polling) }()
	t.Cleanup(func() { stop(); <-ended })
	h.settle()
	return h
}

// burst makes some random moves, with short pauses among them.
func (h *history) burst() {
	h.bursts++
	if info, err := os.Stat(h.proxy.Log); err == nil {
		h.logged = info.Size()
	}
	for range 1 + h.r.IntN(30) {
		if len(h.deck) == 0 {
			h.deck = h.newDeck()
		}
		m := h.deck[0]
		h.deck = h.deck[1:]
		h.moves++
		h.play(m)
		time.Sleep(time.Duration(h.r.IntN(150)) * time.Millisecond)
		if h.r.IntN(20) == 0 {
			h.logf("look")
			h.judge(h.look(noticeTime[h.plane]+4*time.Second, false))
		}
	}
}

// settle ends all faults, and waits until the rules are correct and the daemon is ready.
func (h *history) settle() {
	h.t.Helper()
	for len(h.faults) > 0 {
		h.endFault(0)
	}
	if h.down {
		h.launch()
	}
	h.logf("rest")
	began := time.Now()
	checks := h.look(quietLimit, true)
	h.slowest = max(h.slowest, time.Since(began))
	h.judge(checks)
	last := checks[len(checks)-1]
	if !last.fine {
		h.fail("%s after the last fault: %s\n%s\n%s", time.Since(began).Round(time.Second), last, h.lastPoll(), h.state())
		h.stop(syscall.SIGKILL) // so that later bursts can succeed
		h.launch()
	}
}

// A check is one `apply --check`.
type check struct {
	began, ended time.Time
	lines        []string // the differences
	err          error    // why there is no result
	fine         bool     // no difference, and the daemon is ready
}

func (c check) String() string {
	switch {
	case c.err != nil:
		return "apply --check: " + c.err.Error()
	case len(c.lines) == 0:
		return "apply --check: nothing to change"
	}
	return "apply --check:\n  " + strings.Join(c.lines[:min(10, len(c.lines))], "\n  ")
}

// look checks the node until the limit is reached or, with untilFine, until the node is fine.
func (h *history) look(limit time.Duration, untilFine bool) (checks []check) {
	h.t.Helper()
	wait := 50 * time.Millisecond
	for began := time.Now(); ; {
		h.supervise()
		if h.cut && h.cluster.watched() {
			h.cut = false
			h.change()
		}
		c := check{began: time.Now()}
		out, err := h.check()
		c.ended = time.Now()
		// The exit code also depends on errors in objects.
		switch c.lines = differences(out); {
		case !strings.Contains(out, "nothing to change\n") && !strings.Contains(out, "\ntotal: "):
			c.err = fmt.Errorf("%w\n%s", err, out)
		case len(c.lines) == 0:
			c.fine = h.pollNow().code == http.StatusOK
		}
		checks = append(checks, c)
		if untilFine && c.fine || time.Since(began) > limit {
			return checks
		}
		time.Sleep(wait)
		wait = min(2*wait, 2*time.Second)
	}
}

// check runs `apply --check` with the API's objects. It has its own /run.
func (h *history) check() (string, error) {
	file := filepath.Join(h.dir, "snapshot.json")
	if err := h.cluster.snapshot(file); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	args := append([]string{"-m", "sh", "-c", `mount -t tmpfs tmpfs /run && exec "$0" "$@"`, h.binary, "apply", "--check", "-s", file}, h.args...)
	out, err := h.ns.Run(h.ns.Command(ctx, "unshare", args...))
	return string(out), err
}

// differences returns the lines of the output of `apply --check` that show a difference.
func differences(out string) (lines []string) {
	for line := range strings.Lines(out) {
		if other.MatchString(line) {
			continue
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}

// other matches lines that show no difference: details and totals, and those that must be
// accepted.
var other = regexp.MustCompile(`^($| |foreign rules|net\.|route to |not served: |keep |total: |nothing to change|.* added, \d+ changed, )`)

// judge fails the test for polls that returned 200 while the rules were wrong. TestHistory states
// the rule.
func (h *history) judge(checks []check) {
	h.t.Helper()
	if h.cut || slices.ContainsFunc(h.faults, func(f fault) bool { return f.unknown }) {
		return
	}
	notice := h.changed.Add(applytest.ScaledTimeout(noticeTime[h.plane]))
	if h.started.After(h.changed) {
		notice = h.started
	}
	h.mu.Lock()
	polls := h.polls
	h.mu.Unlock()
	for i := 1; i < len(checks); i++ {
		before, after := checks[i-1], checks[i]
		same := slices.DeleteFunc(slices.Clone(before.lines), func(l string) bool { return !slices.Contains(after.lines, l) })
		for _, p := range slices.Backward(polls) {
			if p.began.Before(before.ended) {
				break
			}
			if p.ended.After(after.began) || p.began.Before(notice) {
				continue
			}
			h.judged++
			if p.code == http.StatusOK && len(same) > 0 {
				h.fail("/readyz returned 200 at %s, %s after the last change, while the rules differed: %s", h.at(p.began), p.began.Sub(h.changed).Round(time.Millisecond),
					check{lines: same})
				return
			}
		}
	}
}

func (h *history) fail(format string, args ...any) {
	h.t.Helper()
	h.failures++
	h.t.Errorf("-seed=%d, %s, burst %d, at %s: %s\nlog of the daemon:\n%s", h.seed, h.plane, h.bursts, h.at(time.Now()), fmt.Sprintf(format, args...), h.newLog())
}

// newLog returns the daemon's log since the burst began.
func (h *history) newLog() string {
	data, err := os.ReadFile(h.proxy.Log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data[min(h.logged, int64(len(data))):])), "\n")
	const most = 60
	if len(lines) > most {
		lines = slices.Concat(lines[:most/2], []string{"..."}, lines[len(lines)-most/2:])
	}
	return strings.Join(lines, "\n")
}

func (h *history) at(t time.Time) string { return t.Sub(h.began).Round(time.Millisecond).String() }

func (h *history) logf(format string, args ...any) {
	h.t.Helper()
	h.t.Logf("%s: %s", h.at(time.Now()), fmt.Sprintf(format, args...))
}

// poll requests /readyz until ctx ends.
func (h *history) poll(ctx context.Context) {
	for ctx.Err() == nil {
		h.pollNow()
		time.Sleep(50 * time.Millisecond)
	}
}

func (h *history) pollNow() poll {
	p := poll{began: time.Now()}
	var err error
	if p.code, p.body, err = h.polled.Load().Get(h.t.Context(), "http://127.0.0.1:10256/readyz"); err != nil {
		p.code, p.body = 0, err.Error()
	}
	p.ended = time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.polls = append(h.polls, p)
	return p
}

func (h *history) ready() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.polls {
		if p.code == http.StatusOK {
			n++
		}
	}
	return n
}

// state returns the state of the daemon's process.
func (h *history) state() string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.proxy.Pid()))
	return fmt.Sprint(regexp.MustCompile(`State:.*|TracerPid:.*`).FindAllString(string(data), -1))
}

func (h *history) lastPoll() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.polls[len(h.polls)-1]
	return fmt.Sprintf("/readyz: %d %s", p.code, p.body)
}

// launch starts the daemon and does not wait for anything.
func (h *history) launch() {
	h.t.Helper()
	args := append([]string{h.binary, "watch", "--master", "http://" + h.cluster.addr, "--boot-from", filepath.Join(h.dir, "boot.json"), "-v", "4"}, h.args...)
	binary, args := h.machine.Command(args...)
	p, err := kube.StartProxy(h.ns, h.dir, "proxyc", binary, args...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { p.Kill() })
	h.started, h.down = time.Now(), false
	h.proxy = p
	h.polled.Store(p)
}

// supervise restarts a daemon that has ended by itself, like a kubelet.
func (h *history) supervise() {
	h.t.Helper()
	if h.down || h.proxy.Signal(syscall.Signal(0)) == nil {
		return
	}
	h.logf("the daemon has ended by itself: %s", h.proxy.Wait(h.t.Context()))
	if log := h.newLog(); strings.Contains(log, "goroutine ") {
		h.fail("the daemon has crashed")
	}
	h.launch()
}

// stop ends the daemon by a signal.
func (h *history) stop(by os.Signal) {
	h.t.Helper()
	h.supervise()
	h.proxy.Signal(by)
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	if err := h.proxy.Wait(ctx); ctx.Err() != nil {
		h.fail("%s: %v", by, err)
		h.proxy.Kill()
	}
	h.down = true
}

// configurations are the alternatives for each part of a new configuration.
var configurations = [][]string{
	{"clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.244.0.0/17", "clusterCIDR: 10.0.0.0/8"},
	{"nodePortAddresses: []", "nodePortAddresses: [primary]", "nodePortAddresses: [192.0.2.0/24]"},
	{"iptables: {masqueradeAll: false}\nnftables: {masqueradeAll: false}", "iptables: {masqueradeAll: true}\nnftables: {masqueradeAll: true}",
		"iptables: {minSyncPeriod: 20ms}\nnftables: {minSyncPeriod: 20ms}"},
}

// configure writes a random configuration.
func (h *history) configure() {
	h.t.Helper()
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nenableProfiling: true\n" +
		"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n"
	for _, choices := range configurations {
		text += choices[h.r.IntN(len(choices))] + "\n"
	}
	file := filepath.Join(h.dir, "config.yaml")
	h.write(file+".new", text)
	if err := os.Rename(file+".new", file); err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) write(file, text string) {
	h.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

// wrapTools puts wrappers of the iptables tools first in the daemon's PATH. Each runs tool.sh,
// and then the real tool.
func (h *history) wrapTools() {
	h.t.Helper()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"nft", "legacy"} {
			for _, verb := range []string{"save", "restore"} {
				h.write(filepath.Join(h.dir, "tool.sh"), "")
				name := fmt.Sprintf("%s-%s-%s", family, variant, verb)
				file := filepath.Join(h.dir, "bin", name)
				h.write(file, fmt.Sprintf("#!/bin/sh\nreal=$(PATH=%q command -v %s)\n. %s/tool.sh\nexec \"$real\" \"$@\"\n", os.Getenv("PATH"), name, h.dir))
			}
		}
	}
}

// setTools sets the script that the wrappers run first.
func (h *history) setTools(script string) {
	h.t.Helper()
	file := filepath.Join(h.dir, "tool.sh")
	h.write(file+".new", script)
	if err := os.Rename(file+".new", file); err != nil {
		h.t.Fatal(err)
	}
}

// lockTools holds the lock of the legacy tools until the returned function is called.
func (h *history) lockTools() (release func()) {
	h.t.Helper()
	lock, err := os.OpenFile(filepath.Join(h.dir, "run", "xtables.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return func() { lock.Close() }
}
