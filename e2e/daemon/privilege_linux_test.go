package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

const (
	deployDir = "../../docs/deploy/"
)

func TestMain(m *testing.M) {
	nodetest.Main(m, map[string]func(){"contained": contained, "denied": denied})
}

// A watched is a daemon whose system calls can be recorded.
type watched struct {
	*nodetest.Daemon
	record *recorder
}

func newWatched(t *testing.T, plane string) *watched {
	t.Helper()
	return &watched{Daemon: nodetest.New(t, plane)}
}

func eachDataplane(t *testing.T, test func(t *testing.T, w *watched)) {
	nodetest.Each(t, func(t *testing.T, plane string) { test(t, newWatched(t, plane)) })
}

// udpCluster is a Service at 10.96.0.5:53 that has one endpoint.
const udpCluster = `{apiVersion: v1, kind: Service, metadata: {name: u, namespace: ns}, spec: {type: ClusterIP, clusterIP: 10.96.0.5, clusterIPs: [10.96.0.5],
  ipFamilies: [IPv4], ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: u-1, namespace: ns, labels: {kubernetes.io/service-name: u}},
  addressType: IPv4, endpoints: [{addresses: [%s]}], ports: [{port: 53, protocol: UDP, name: ""}]}
---
`

// A container is what a container runtime makes of a pod's container: the files are
// read-only but for volumes, and root has no rights but those that are named.
type container struct {
	Capabilities []string // as in a manifest
	Volumes      []volume
	Profile      string   // the file of a seccomp profile; empty: none
	Record       bool     // the system calls
	Command      []string // the program, and its arguments
}

type volume struct {
	Name, From, At string
	ReadOnly       bool
}

// contained becomes the program of the container that its argument describes.
func contained() {
	var c container
	err := json.Unmarshal([]byte(os.Args[1]), &c)
	if err == nil {
		err = c.enter()
	}
	if err == nil {
		err = syscall.Exec(c.Command[0], c.Command, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "contained:", err)
	os.Exit(nodetest.ExitBad)
}

// emptied are the directories in which volumes are, and nothing else.
var emptied = []string{"/run", "/var/lib"}

func (c *container) enter() (err error) {
	runtime.LockOSThread()
	if c.Command[0], err = exec.LookPath(c.Command[0]); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("/: %w", err)
	}
	for _, v := range c.Volumes {
		within := func(path string) bool {
			return slices.ContainsFunc(emptied, func(dir string) bool { return strings.HasPrefix(path, dir+"/") })
		}
		if within(v.From) || !within(v.At) { // a file of the machine would be made for it
			return fmt.Errorf("volume %s: must be from outside %v, and in one of them: %s, %s", v.Name, emptied, v.From, v.At)
		}
	}
	for _, dir := range emptied {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if err := unix.Mount("tmpfs", "/usr/lib/modules", "tmpfs", 0, "mode=755"); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("/usr/lib/modules: %w", err)
	}
	for _, v := range c.Volumes {
		if err := v.point(); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	if err := unix.MountSetattr(-1, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("read-only: %w", err)
	}
	for _, v := range c.Volumes {
		if err := v.mount(); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	if err := keep(c.Capabilities); err != nil {
		return err
	}
	if err := seccomp.SetNoNewPrivs(); err != nil { // allowPrivilegeEscalation: false
		return err
	}
	if c.Profile != "" {
		p, err := readProfile(c.Profile)
		if err == nil {
			err = seccomp.LoadFilter(seccomp.Filter{Policy: p.policy()})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Profile, err)
		}
	}
	if c.Record {
		return listen()
	}
	return nil
}

func (c *container) mounts() (list []string) {
	for _, v := range c.Volumes {
		kind := "written"
		if v.ReadOnly {
			kind = "read-only"
		}
		list = append(list, v.At+" "+kind)
	}
	return list
}

// point makes what the volume is mounted at.
func (v *volume) point() error {
	info, err := os.Stat(v.From)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(v.At, 0o755)
	}
	return os.WriteFile(v.At, nil, 0o644)
}

func (v *volume) mount() error {
	if err := unix.Mount(v.From, v.At, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if v.ReadOnly {
		return nil // as the file system that it is from
	}
	return unix.MountSetattr(-1, v.At, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
}

// capabilityNumbers are those of the kernel's header that containers of the manifests have.
var capabilityNumbers = map[string]uint{"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW}

// keep leaves to root, and to what it becomes, no capabilities but some.
func keep(names []string) error {
	var kept uint64
	for _, name := range names {
		number, ok := capabilityNumbers[name]
		if !ok {
			return fmt.Errorf("capability %s: is none that the test knows", name)
		}
		kept |= 1 << number
	}
	for c := uint(0); c <= unix.CAP_LAST_CAP; c++ {
		if kept&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
	low, high := uint32(kept), uint32(kept>>32)
	data := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
}

// manifestOf returns the daemon's container of docs/deploy, with the volumes of its pod.
func manifestOf(t *testing.T) (corev1.Container, []corev1.Volume) {
	t.Helper()
	text, err := os.ReadFile(deployDir + "daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		t.Fatal(err)
	}
	pod := set.Spec.Template.Spec
	return pod.Containers[0], pod.Volumes
}

// containerOf returns the container that the manifest describes, with the files of the
// node in w.Dir.
func (w *watched) containerOf() container {
	w.T.Helper()
	from, volumes := manifestOf(w.T)
	security := from.SecurityContext
	is := func(field *bool, want bool) bool { return field != nil && *field == want }
	if !is(security.ReadOnlyRootFilesystem, true) || !is(security.AllowPrivilegeEscalation, false) ||
		!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		w.T.Fatalf("the test plays a container with a read-only root file system, without ways to more rights, and all capabilities dropped: %+v", security)
	}
	c := container{Command: []string{"proxyc", "watch"}}
	for _, name := range security.Capabilities.Add {
		c.Capabilities = append(c.Capabilities, string(name))
	}
	for _, arg := range from.Args {
		c.Command = append(c.Command, strings.ReplaceAll(arg, "$(NODE_NAME)", "node1"))
	}
	c.Command = append(c.Command, "-s", "/var/lib/kube-proxy/cluster.yaml")
	if v := w.Plane.Variant; v != "" {
		c.Command = append(c.Command, "--iptables-variant="+v)
	}
	for _, m := range from.VolumeMounts {
		v := volume{Name: m.Name, From: w.onNode(m.Name), At: m.MountPath, ReadOnly: m.ReadOnly}
		i := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at := volumes[i].HostPath; at != nil && *at.Type == corev1.HostPathFileOrCreate {
			if err := os.WriteFile(v.From, nil, 0o600); err != nil {
				w.T.Fatal(err)
			}
		} else if err := os.MkdirAll(v.From, 0o755); err != nil { // as a kubelet makes it
			w.T.Fatal(err)
		}
		c.Volumes = append(c.Volumes, v)
	}
	// The score of a pod is its kubelet's to set, here that of the test; the rest is what the init container does.
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		w.T.Fatal(err)
	}
	w.Write("volumes/config/config.conf", fmt.Sprintf(nodetest.Config, w.Plane.Mode)+"oomScoreAdj: "+string(score))
	w.Must("proxyc watch --init-only --config " + w.onNode("config", "config.conf") + " --hostname-override node1")
	return c
}

// onNode is where a file of a volume is outside the container.
func (w *watched) onNode(names ...string) string {
	return filepath.Join(append([]string{w.Dir, "volumes"}, names...)...)
}

// runIn runs the daemon in a container, and returns "" if it did all that is its work, or
// else what it said.
func (w *watched) runIn(c container) (trouble string) {
	w.T.Helper()
	spec, err := json.Marshal(c)
	if err != nil {
		w.T.Fatal(err)
	}
	w.Write("volumes/config/cluster.yaml", ownNode+applytest.Services("a")+fmt.Sprintf(udpCluster, "10.244.1.5"))
	if err := os.Remove(w.onNode("boot", "boot.json")); err != nil && !errors.Is(err, os.ErrNotExist) { // of the container before
		w.T.Fatal(err)
	}
	w.Args, w.Log = nil, &applytest.Buffer{}
	w.Start("contained", string(spec))
	var all sync.WaitGroup
	defer all.Wait()
	ended := make(chan struct{})
	all.Go(func() { w.Wait(); close(ended) })
	if c.Record {
		all.Go(func() {
			if err := w.record.follow(w.Process.Pid, ended); err != nil {
				w.T.Errorf("recording: %v", err)
			}
		})
	}
	// within reports whether something comes to be before the daemon complains.
	within := func(what string, holds func() bool) bool {
		limit := time.After(applytest.ScaledTimeout(30 * time.Second))
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if trouble = w.complaint(); trouble != "" {
				return false
			}
			select {
			case <-ended:
				trouble = cmp.Or(w.complaint(), "it ended: "+w.Log.String())
				return false
			case <-limit:
				trouble = what + ": did not come"
				return false
			case <-tick.C:
			}
			if holds() {
				return true
			}
		}
	}
	socket := w.onNode("lock", "status.sock")
	well := func() bool {
		_, err := w.NS.Run(w.NS.Command(w.T.Context(), "proxyc", "status", "--status-socket", socket))
		return err == nil
	}
	flow := "conntrack -I -t 3600 -u SEEN_REPLY -s 198.18.0.1 -d 10.96.0.5 -r 10.244.1.5 -q 198.18.0.1 -p udp --sport 1000 --dport 53 --reply-port-src 53 --reply-port-dst 1000"
	_ = within("the first sync", func() bool { return well() && w.Has("a") }) &&
		within("a flow", func() bool { w.Must(flow); return true }) &&
		within("a change", func() bool {
			w.Write("volumes/config/cluster.yaml", ownNode+applytest.Services("b")+fmt.Sprintf(udpCluster, "10.244.1.6"))
			return true
		}) &&
		within("the change in the rules", func() bool { return w.Has("b") && !w.Has("a") }) &&
		within("the end of the stale flow", func() bool { out, _ := w.Run("conntrack", "-C"); return out == "0\n" }) &&
		within("drift", func() bool { w.Must(w.Plane.Flushes[0].Command); return true }) &&
		within("the repair", func() bool {
			return strings.Contains(w.Log.String(), repaired) && w.Has("b") && well()
		}) &&
		within("the boot file", func() bool { _, err := os.Stat(w.onNode("boot", "boot.json")); return err == nil })
	if trouble == "" {
		for _, file := range []string{w.onNode("boot", "boot.json"), w.onNode("lock", "status.sock")} {
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				w.T.Errorf("%s: %v, %v, want mode 0600: it tells of the whole cluster", file, info.Mode(), err)
			}
		}
		w.Process.Signal(syscall.SIGTERM)
		if err := w.Wait(); err != nil {
			trouble = fmt.Sprintf("it ended with %v", err)
		}
	}
	w.Process.Kill()
	<-ended
	w.Must("conntrack -F")
	w.Must("proxyc cleanup")
	return trouble
}

const ownNode = `apiVersion: v1
kind: Node
metadata: {name: node1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
`

// repaired is the log's last word about what the test itself took away, and drift the
// file that has it.
const repaired, drift = "the rules are repaired", " drift.go:"

// deprecated is what is said of mode ipvs whatever it may, and removed of the test's own change.
const deprecated, removed = "is now deprecated", "Services are no longer in the snapshot"

// complaints are the lines of a log that are none of information.
var complaints = regexp.MustCompile(`(?m)^([EW]\d{4} .*|contained: .*|proxyc: .*)$`)

// complaint returns the first thing that the daemon complains of.
func (w *watched) complaint() string {
	for _, line := range complaints.FindAllString(w.Log.String(), -1) {
		if !strings.Contains(line, drift) && !strings.Contains(line, deprecated) && !strings.Contains(line, removed) {
			return line
		}
	}
	return ""
}

// least is what a way to write rules needs of a container, row by row of the page's table.
func (w *watched) least(whole container) map[string]string {
	w.T.Helper()
	works := func(c container) bool {
		trouble := w.runIn(c)
		if trouble != "" {
			w.T.Logf("with %v and %v: %s", c.Capabilities, c.mounts(), trouble)
		}
		return trouble == ""
	}
	if !works(whole) {
		w.T.Fatal("the daemon does not work in the container of the manifest")
	}
	need := map[string]string{}
	for i, name := range whole.Capabilities {
		without := whole
		without.Capabilities = slices.Delete(slices.Clone(whole.Capabilities), i, i+1)
		need[name] = "needed"
		if works(without) {
			need[name] = "–"
		}
	}
	for i, v := range whole.Volumes {
		without := whole
		without.Volumes = slices.Delete(slices.Clone(whole.Volumes), i, i+1)
		readOnly := whole
		readOnly.Volumes = slices.Clone(whole.Volumes)
		readOnly.Volumes[i].ReadOnly = true
		switch {
		case works(without):
			need[v.At] = "–"
		case v.ReadOnly || works(readOnly):
			need[v.At] = "read-only"
		default:
			need[v.At] = "written"
		}
	}
	return need
}

// TestLeastPrivilege takes away from the manifest's container each capability and each
// volume, and holds what each mode needs against the table of docs/operate.md, and the manifest
// against all of it: it gives nothing that no mode needs.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(deployDir + "../operate.md")
	if err != nil {
		t.Fatal(err)
	}
	table, heads := privilegeTable(t, string(page))
	eachDataplane(t, func(t *testing.T, w *watched) {
		plane := strings.TrimPrefix(t.Name(), "TestLeastPrivilege/")
		if plane != "nftables" {
			applytest.Long(t)
		}
		column := slices.Index(heads, plane)
		if column < 0 {
			t.Fatalf("docs/operate.md: the table has %q, and not %s", heads, plane)
		}
		need := w.least(w.containerOf())
		for _, thing := range slices.Sorted(maps.Keys(need)) {
			if got := table[thing]; len(got) <= column || got[column] != need[thing] {
				t.Errorf("docs/operate.md: %s in mode %s: the page says %q, and it is %q", thing, plane, got, need[thing])
			}
		}
	})
	from, _ := manifestOf(t)
	given := map[string]string{}
	for _, name := range from.SecurityContext.Capabilities.Add {
		given[string(name)] = "needed"
	}
	for _, m := range from.VolumeMounts {
		given[m.MountPath] = "written"
		if m.ReadOnly {
			given[m.MountPath] = "read-only"
		}
	}
	for thing, modes := range table {
		if !slices.Contains(modes, given[thing]) {
			t.Errorf("daemonset.yaml gives %s as %q, which no mode needs: %q", thing, given[thing], modes)
		}
	}
	if len(table) != len(given) {
		t.Errorf("docs/operate.md names %q, daemonset.yaml gives %q", slices.Sorted(maps.Keys(table)), slices.Sorted(maps.Keys(given)))
	}
}

// privilegeTable reads the table of the page that has a row for NET_ADMIN.
func privilegeTable(t *testing.T, page string) (rows map[string][]string, heads []string) {
	t.Helper()
	cells := func(line string) []string {
		parts := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range parts {
			parts[i] = strings.Trim(parts[i], " `")
		}
		return parts
	}
	rows = map[string][]string{}
	var above []string
	for line := range strings.Lines(page) {
		switch {
		case !strings.HasPrefix(line, "|"):
			above = nil
			if rows["NET_ADMIN"] != nil {
				return rows, heads
			}
			clear(rows)
		case strings.HasPrefix(line, "|---"):
			heads = above[1:]
		case above == nil:
			above = cells(line)
		default:
			row := cells(line)
			rows[row[0]] = row[1:]
		}
	}
	t.Fatal("docs/operate.md has no table of what each mode needs")
	return nil, nil
}
