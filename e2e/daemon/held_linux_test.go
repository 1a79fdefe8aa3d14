package daemon

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// listedKinds are the kinds that a node's daemon requests from an API server.
var listedKinds = map[string]struct{ version, kind string }{
	"services":       {"v1", "Service"},
	"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"},
	"nodes":          {"v1", "Node"},
	"servicecidrs":   {"networking.k8s.io/v1", "ServiceCIDR"},
}

// serveAPI starts an API server on the node that lists the objects of a text and sends no further
// events, and configures it as the daemon's source.
func (w *watched) serveAPI(text string) *httptest.Server {
	w.T.Helper()
	lists := map[string][]any{}
	for doc := range strings.SplitSeq(text, "---\n") {
		var object map[string]any
		must(w.T, yaml.Unmarshal([]byte(doc), &object))
		for resource, of := range listedKinds {
			if object["kind"] == of.kind {
				lists[resource] = append(lists[resource], object)
			}
		}
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		resource := path.Base(r.URL.Path)
		of, known := listedKinds[resource]
		out.Header().Set("Content-Type", "application/json")
		switch {
		case !known: // an event
			out.WriteHeader(http.StatusNotFound)
		case r.URL.Query().Get("sendInitialEvents") != "": // as a server of before 1.32
			out.WriteHeader(http.StatusUnprocessableEntity)
		case r.URL.Query().Get("watch") != "":
			out.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			json.NewEncoder(out).Encode(map[string]any{"apiVersion": of.version, "kind": of.kind + "List",
				"metadata": map[string]string{"resourceVersion": "1"}, "items": lists[resource]})
		}
	}))
	if err := w.NS.Do(func() (err error) {
		server.Listener.Close()
		server.Listener, err = net.Listen("tcp4", "127.0.0.1:8001")
		return err
	}); err != nil {
		w.T.Fatal(err)
	}
	server.Start()
	w.T.Cleanup(server.Close)
	w.withoutSnapshot()
	w.Args = append(w.Args, "--master", "http://127.0.0.1:8001")
	return server
}

const nodeYAML = "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n"

// repairs removes rules, and waits until the daemon has restored and reported them.
func (w *watched) repairs(what, service string) {
	w.T.Helper()
	before, _ := w.Status()
	for _, f := range w.Plane.Flushes {
		if f.Late {
			continue
		}
		w.Must(f.Command)
		w.Holds(5*time.Second, service, true)
	}
	w.Until("the repair is reported, "+what, func(st status.Status) bool {
		return st.LastDrift != nil && (before.LastDrift == nil || st.LastDrift.At.After(before.LastDrift.At))
	})
}

// While no object is known, the daemon keeps the boot file's rules in force, repairs them, and
// keeps them under a new configuration. The status says that they are in force.
func TestWatchHoldsBootFile(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.saveBootFile()
		config := w.withoutServer()
		w.Start("proxyc", "watch")
		held := func(from string) func(status.Status) bool {
			return func(st status.Status) bool {
				return !st.Synced && strings.Contains(st.Restored, from) && strings.HasPrefix(st.Reason, "waiting for the initial objects")
			}
		}
		w.Until("the boot file is held", held("the boot file "+w.File("boot")))
		w.repairs("from the boot file", "a")
		w.Until("it still is", held("the boot file "+w.File("boot")))
		text, _ := w.NS.Run(w.NS.Command(t.Context(), "proxyc", "status")) // it exits 1
		if want := "restored     rules of the boot file " + w.File("boot") + ", saved "; !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
		if n := strings.Count(w.Log.String(), "the previous rules are restored"); n != 1 {
			t.Errorf("reported %d times", n)
		}
		if drift := value(t, w.page("/metrics"), "proxyc_drift_repaired_total"); drift == "0" {
			t.Error("the repair is not counted")
		}
		for path, want := range map[string]int{"/livez": 200, "/readyz": 503} {
			if code := w.ask(t, "127.0.0.1:10256", path); code != want {
				t.Errorf("%s: %d, want %d", path, code, want)
			}
		}
		before, _ := w.Status()
		w.Write("config", strings.Replace(config, "verbosity: 4", "verbosity: 5", 1))
		w.Until("the boot file is held under another configuration", func(st status.Status) bool {
			return st.Started.After(before.Started) && held("the boot file "+w.File("boot"))(st)
		})
		w.repairs("after another configuration", "a")
	})
}

// A boot file that is older than the rules in the kernel does not replace them: the daemon was killed
// before it saved a change. If the rules are gone, the old ones are better than none. The log has their
// age. Foreign rules in chains that no Service decides are removed meanwhile: they may block the API server.
func TestWatchBootFileOlder(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.saveBootFile()
		w.Start("proxyc", "watch")
		w.Until("the first sync", nodetest.Synced)
		applytest.Until(w.T, 5*time.Second, "the boot file is written", func() bool {
			info, err := os.Stat(w.File("boot"))
			return err == nil && info.ModTime().After(w.Started)
		})
		w.Write("cluster.yaml", applytest.Services("a", "b"))
		w.Until("the second Service", func(st status.Status) bool { return nodetest.Synced(st) && st.Objects.Services == 2 })
		w.Stop(syscall.SIGKILL)
		if boot, err := os.ReadFile(w.File("boot")); err != nil || strings.Contains(string(boot), "10.96.0.98") {
			t.Fatalf("the boot file is new, or unreadable: %v", err)
		}
		w.withoutServer()
		w.lockOut()
		w.Start("proxyc", "watch")
		st := w.Until("the file is invalid", func(st status.Status) bool { return st.BootFile != nil && st.BootFile.Invalid != "" })
		const why = "may be older than the rules in the kernel, which are kept: it was saved "
		if st.Restored != "" || st.Synced || !strings.HasPrefix(st.BootFile.Invalid, why) || !strings.Contains(w.Log.String(), why) {
			t.Errorf("restored %q, synced %t, invalid: %s", st.Restored, st.Synced, st.BootFile.Invalid)
		}
		if !w.Has("a") || !w.Has("b") {
			t.Error("newer rules were replaced")
		}
		w.let()
		w.lockOut()
		w.let()
		if !w.Has("a") || !w.Has("b") {
			t.Error("rules of Services were removed with foreign ones")
		}
		w.Stop(syscall.SIGTERM)
		if w.flush(); w.Has("b") { // other modes than nftables
			w.Must("proxyc cleanup")
		}
		must(t, os.Chtimes(w.File("boot"), time.Time{}, time.Now().Add(-time.Hour)))
		w.Start("proxyc", "watch")
		w.Until("the boot file is restored", func(st status.Status) bool { return st.Restored != "" })
		w.Holds(time.Second, "a", true)
		if !regexp.MustCompile(`W.* "the previous rules are restored, .* age="1h0m`).MatchString(w.Log.String()) {
			t.Error("no warning has the age of the rules")
		}
		text, _ := w.NS.Run(w.NS.Command(t.Context(), "proxyc", "status")) // it exits 1
		if want := "restored     rules of the boot file " + w.File("boot") + ", saved 1h0m"; !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	})
}

// A boot file without Services is restored on a kernel without rules.
func TestWatchBootFileWithoutServices(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Args = append(w.Args, "--boot-from", w.File("boot"), "--allow-empty")
	w.Sync(nodeYAML)
	w.Stop(syscall.SIGTERM)
	w.flush()
	must(t, os.Remove(w.note()))
	w.withoutServer()
	w.Start("proxyc", "watch")
	st := w.Until("the boot file is read", func(st status.Status) bool {
		return st.Restored != "" || st.BootFile != nil && st.BootFile.Invalid != ""
	})
	if st.Restored == "" {
		t.Errorf("invalid: %s", st.BootFile.Invalid)
	}
}

// Without a boot file, foreign rules are removed from the chains that the configuration alone decides,
// and rules that depend on objects stay.
func TestWatchRepairsWithoutObjects(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		if w.Plane.Mode == "ipvs" || w.Plane.Mode == "userspace" {
			t.Skip("not repaired without a boot file")
		}
		w.Write("config", fmt.Sprintf(nodetest.Config, w.Plane.Mode)+"nodePortAddresses: [primary]\n")
		w.Write("cluster.yaml", nodeYAML+"---\n"+"{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/12]}}\n---\n"+applytest.Services("a"))
		if out, code := w.Run("proxyc", append([]string{"apply"}, w.Args...)...); code != 0 {
			t.Fatal(out)
		}
		counts := regexp.MustCompile(`#.*|\[\d+:\d+\]|packets \d+ bytes \d+`)
		rules := func() []string { return strings.Split(counts.ReplaceAllString(w.Rules(), ""), "\n") }
		before := rules()
		w.Write("config", w.withoutServer()+"nodePortAddresses: [primary]\n")
		w.lockOut()
		w.Start("proxyc", "watch")
		w.let()
		if diff := cmp.Diff(before, rules()); diff != "" {
			t.Errorf("rules (-before +after):\n%s", diff)
		}
	})
}

// lockOut makes chains that all packets to the node pass drop them.
func (w *watched) lockOut() {
	w.T.Helper()
	command := "iptables-" + w.Plane.Variant + " -I KUBE-NODEPORTS -m comment --comment lockout -j DROP"
	switch w.Plane.Mode {
	case "nftables":
		command = `nft insert rule ip proxyc nat-prerouting drop comment lockout`
		w.Must("nft 'add chain ip proxyc foreign { type filter hook input priority -1; policy drop; }'")
	case "ipvs":
		command = strings.Replace(command, "NODEPORTS", "FORWARD", 1)
	}
	w.Must(command)
}

// let waits until lockOut has no effect.
func (w *watched) let() {
	w.T.Helper()
	applytest.Until(w.T, 40*time.Second, "the foreign rules are removed", func() bool {
		out, err := w.NS.Run(w.NS.Command(w.T.Context(), "sh", "-c", "nft list ruleset; iptables-legacy-save; iptables-nft-save"))
		return err == nil && !strings.Contains(string(out), "lockout") && !strings.Contains(string(out), "chain foreign")
	})
}

// Rules of kube-proxy are newer than a boot file: kube-proxy served the node since.
func TestWatchBootFileAfterKubeProxy(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.saveBootFile()
	w.flush()
	if out, code := w.Run("nft", "-f", filepath.Join("..", "..", "testdata", "apply", "takeover", "kube-proxy.nft")); code != 0 {
		t.Fatal(out)
	}
	before := w.Rules()
	w.withoutServer()
	w.Start("proxyc", "watch")
	st := w.Until("the file is invalid", func(st status.Status) bool { return st.BootFile != nil && st.BootFile.Invalid != "" })
	if want := "may be older than the rules of kube-proxy (table ip kube-proxy"; st.Restored != "" || !strings.HasPrefix(st.BootFile.Invalid, want) {
		t.Errorf("restored %q, invalid: %s, want %s", st.Restored, st.BootFile.Invalid, want)
	}
	if w.Rules() != before {
		t.Error("the rules of kube-proxy were replaced")
	}
}

// Rules of apply are newer than a boot file, also in another mode, and on a node that was restarted
// since the file was saved.
func TestWatchBootFileAfterApply(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{"nftables", "iptables-nft"} {
		t.Run(plane, func(t *testing.T) {
			w := newWatched(t, "nftables")
			w.saveBootFile()
			w.flush()
			must(t, os.Remove(w.note()))
			config := w.withoutServer()
			w.Plane = nodetest.Planes[plane]
			w.Write("config", fmt.Sprintf(nodetest.Config, w.Plane.Mode))
			w.Write("cluster.yaml", applytest.Services("a", "b"))
			if out, code := w.Run("proxyc", "apply", "-c", w.File("config"), "-s", w.File("cluster.yaml"), "--hostname-override", "node1"); code != 0 {
				t.Fatalf("apply: exit %d:\n%s", code, out)
			}
			w.Write("config", config)
			w.Start("proxyc", "watch")
			st := w.Until("the file is invalid", func(st status.Status) bool {
				return st.Restored != "" || st.BootFile != nil && st.BootFile.Invalid != ""
			})
			if st.Restored != "" || !w.Has("b") {
				t.Errorf("restored %q, and the rules\n%s", st.Restored, w.Rules())
			}
		})
	}
}

// A daemon that is killed while it restores the boot file leaves a part of its rules. They do not count
// as newer.
func TestWatchKilledWhileRestoring(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "iptables-nft")
	w.saveBootFile()
	must(t, os.WriteFile(w.note(), nil, 0o600))
	w.own("ip nat") // each commit fails
	w.withoutServer()
	w.Start("proxyc", "watch")
	applytest.Until(w.T, 20*time.Second, "the note has the boot file", func() bool {
		note, err := os.ReadFile(w.note())
		return err == nil && strings.HasPrefix(string(note), w.File("boot")+"\n")
	})
	if st, ok := w.Status(); !ok || st.Restored != "" {
		t.Errorf("restored %q", st.Restored)
	}
}

// note is the file beside the node's lock.
func (w *watched) note() string {
	w.T.Helper()
	var st unix.Stat_t
	must(w.T, w.NS.Do(func() error { return unix.Stat("/proc/thread-self/ns/net", &st) }))
	return fmt.Sprintf("/run/proxyc/proxyc-%d.note", st.Ino)
}

// A boot file of another mode is not restored: the rules in the kernel stay until objects are known.
func TestWatchBootFileOfAnotherMode(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.saveBootFile()
	w.Write("config", strings.Replace(w.withoutServer(), "mode: nftables", "mode: iptables", 1))
	w.Start("proxyc", "watch")
	st := w.Until("the first objects are waited for", func(st status.Status) bool { return strings.HasPrefix(st.Reason, "waiting for the initial objects") })
	if st.Mode != "iptables" || st.Restored != "" || st.BootFile.Invalid != "" || !strings.Contains(w.Log.String(), "the boot file is of another mode") {
		t.Errorf("mode %s, restored %q, refused %q", st.Mode, st.Restored, st.BootFile.Invalid)
	}
	if !w.Has("a") {
		t.Errorf("the rules are gone:\n%s", w.Rules())
	}
}

// A start that removes most of the rules in force reports it, as a running daemon does.
func TestWatchStartTellsOfLoss(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		var names []string
		for name := 'a'; name < 'a'+15; name++ {
			names = append(names, string(name))
		}
		w.Sync(applytest.Services(names...))
		w.Stop(syscall.SIGTERM)
		const reported = `"most Services from before the start no longer exist: their rules are removed" frontends removed=`
		starts := func(what, cluster string, warned int) {
			t.Helper()
			w.Write("cluster.yaml", cluster)
			w.Log = &applytest.Buffer{}
			w.Start("proxyc", "watch", "--allow-empty")
			w.Until("the first sync", nodetest.Synced)
			w.Stop(syscall.SIGTERM)
			if n := strings.Count(w.Log.String(), reported); n != warned {
				t.Errorf("%s: reported %d times, want %d", what, n, warned)
			}
		}
		starts("most stay", applytest.Services(names[:10]...), 0)
		starts("most are gone, but few", applytest.Services(names[:4]...), 0)
		starts("more come", applytest.Services(names...), 0)
		starts("most go", applytest.Services(names[:4]...), 1)
		starts("all go", nodeYAML, 1)
		starts("nothing was there", nodeYAML, 0)
	})
}
