package watch

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

func serviceYAML(name, ip string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: ns}\nspec: {clusterIP: " + ip + ", ports: [{port: 80}]}\n"
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// followFiles runs a Files source. It returns its Store as a follower, and the findings of each
// read.
func followFiles(t *testing.T, paths ...string) (*follower, <-chan diag.List) {
	t.Helper()
	reports := make(chan diag.List, 100)
	g := &follower{t: t, API: &API{Store: NewStore(time.Now)}}
	f := &Files{Paths: paths, Store: g.Store, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Report: func(l diag.List, _ []*snapshot.Skipped) { reports <- l }}
	done := make(chan error, 1)
	go func() {
		done <- f.Run(t.Context(), func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g, reports
}

// Unlike the deletion of a Node on an API server, files without a Node remove it.
func TestFilesWithoutTheNode(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), serviceYAML("a", "10.0.0.1"))
	write(t, filepath.Join(dir, "nodes.yaml"), "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\n")
	g, _ := followFiles(t, dir)
	g.until(func(s *snapshot.Snapshot) bool { return has("a")(s) && s.Node("node1") != nil })
	if err := os.Remove(filepath.Join(dir, "nodes.yaml")); err != nil {
		t.Fatal(err)
	}
	g.until(func(s *snapshot.Snapshot) bool { return has("a")(s) && s.Node("node1") == nil })
}

// Several paths are merged into one snapshot, and a change of any path is read.
func TestFilesMerge(t *testing.T) {
	file, dir := filepath.Join(t.TempDir(), "a.yaml"), t.TempDir()
	write(t, file, serviceYAML("a", "10.0.0.1"))
	write(t, filepath.Join(dir, "b.yaml"), serviceYAML("b", "10.0.0.2"))
	g, _ := followFiles(t, file, dir)
	all := func(names ...string) func(*snapshot.Snapshot) bool {
		return func(s *snapshot.Snapshot) bool {
			return len(s.Services()) == len(names) && !slices.ContainsFunc(names, func(n string) bool { return !has(n)(s) })
		}
	}
	g.until(all("a", "b"))
	write(t, filepath.Join(dir, "c.yaml"), serviceYAML("c", "10.0.0.3"))
	g.until(all("a", "b", "c"))
	write(t, file, serviceYAML("d", "10.0.0.4"))
	g.until(all("b", "c", "d"))
}

func has(name_ string) func(*snapshot.Snapshot) bool {
	return func(s *snapshot.Snapshot) bool { return s.Service(name(name_)) != nil }
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cluster.yaml")
	write(t, path, serviceYAML("a", "10.0.0.1"))
	g, reports := followFiles(t, path)
	g.until(has("a"))

	next := filepath.Join(dir, "next")
	write(t, next, serviceYAML("c", "10.0.0.3"))
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	g.until(func(s *snapshot.Snapshot) bool { return has("c")(s) && !has("a")(s) })
	if n := len(reports); n != 2 { // one per version
		t.Errorf("read %d times, want 2", n)
	}

	write(t, path, serviceYAML("a", "10.0.0.1")+"---\n"+serviceYAML("b", "10.0.0.2"))
	g.until(has("b"))

	write(t, path, serviceYAML("d", "10.0.0.4")+"---\n"+serviceYAML("c", "10.0.0.3")+"---\n"+"apiVersion: v1\nkind: Service\nmetadata: {name: e, namespace: ns}\nspec: {ports: 3}\n")
	g.until(has("d"))
	reported := false
	for len(reports) > 0 {
		reported = (<-reports).HasErrors()
	}
	if !reported {
		t.Error("a broken Service is not reported")
	}
}

func TestFilesDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), serviceYAML("a", "10.0.0.1"))
	g, _ := followFiles(t, dir)
	g.until(has("a"))
	write(t, filepath.Join(dir, "b.yaml"), serviceYAML("b", "10.0.0.2"))
	g.until(has("b"))
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	g.until(func(s *snapshot.Snapshot) bool { return !has("a")(s) })
}

// Subdirectories are followed when they are added and removed. Files are read in the formats that
// the other commands read.
func TestFilesNested(t *testing.T) {
	dir := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, ".gz") {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			w.Write([]byte(text))
			w.Close()
			text = b.String()
		}
		write(t, path, text)
	}
	put("first/below/a.yaml", serviceYAML("a", "10.0.0.1"))
	put("first/below/menu.json", `{"soup": 1}`) // no Kubernetes object
	put("first/.git/broken.yaml", "{ [")
	g, _ := followFiles(t, dir)
	g.until(has("a"))
	put("first/below/b.yaml.gz", serviceYAML("b", "10.0.0.2"))
	g.until(has("b"))
	put("second/of/many/c.yml", serviceYAML("c", "10.0.0.3"))
	g.until(has("c"))
	put("second/of/many/c.yml", serviceYAML("d", "10.0.0.4"))
	g.until(func(s *snapshot.Snapshot) bool { return has("d")(s) && !has("c")(s) })
	if err := os.Rename(filepath.Join(dir, "second"), filepath.Join(dir, ".second")); err != nil {
		t.Fatal(err)
	}
	g.until(func(s *snapshot.Snapshot) bool { return has("b")(s) && !has("d")(s) })
	if err := os.Rename(filepath.Join(dir, ".second"), filepath.Join(dir, "third")); err != nil {
		t.Fatal(err)
	}
	g.until(has("d"))
	if err := os.RemoveAll(filepath.Join(dir, "first")); err != nil {
		t.Fatal(err)
	}
	g.until(func(s *snapshot.Snapshot) bool { return has("d")(s) && !has("a")(s) && !has("b")(s) })
	put("first/a.yaml", serviceYAML("a", "10.0.0.1"))
	g.until(has("a"))
	put("first/a.yaml", serviceYAML("e", "10.0.0.5"))
	g.until(has("e"))
}

// A requested read takes place whether or not anything changed.
func TestFilesAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	write(t, path, serviceYAML("a", "10.0.0.1"))
	again, reads := make(chan struct{}), make(chan error)
	f := &Files{Paths: []string{path}, Store: NewStore(time.Now), Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Skipped) {}, Reread: again}
	done := make(chan error, 1)
	go func() { done <- f.Run(t.Context(), func(err error) { reads <- err }) }()
	t.Cleanup(func() { <-done })
	for range 3 {
		if err := <-reads; err != nil {
			t.Fatal(err)
		}
		again <- struct{}{}
	}
	<-reads
}

// A mounted ConfigMap changes when a link is replaced that the file's own link leads through.
func TestFilesConfigMap(t *testing.T) {
	dir := t.TempDir()
	link := func(to, name string) {
		t.Helper()
		temp := filepath.Join(dir, name+"_tmp")
		if err := os.Symlink(to, temp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for version, text := range map[string]string{"..1": serviceYAML("a", "10.0.0.1"), "..2": serviceYAML("b", "10.0.0.2")} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "cluster.yaml"), text)
	}
	link("..1", "..data")
	link("..data/cluster.yaml", "cluster.yaml")
	g, _ := followFiles(t, filepath.Join(dir, "cluster.yaml"))
	g.until(has("a"))
	link("..2", "..data")
	g.until(func(s *snapshot.Snapshot) bool { return has("b")(s) && !has("a")(s) })
}

// Invalid YAML may be an incomplete file: nothing changes.
func TestFilesHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	write(t, path, serviceYAML("a", "10.0.0.1"))
	s := NewStore(time.Now)
	f := &Files{Paths: []string{path}, Store: s, Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Skipped) {}}
	if err := f.Read(); err != nil {
		t.Fatal(err)
	}
	write(t, path, serviceYAML("b", "10.0.0.2")+"---\napiVersion: v1\nkind: Service\nmetadata: {name: \"a")
	if err := f.Read(); err == nil {
		t.Error("half a file is read without an error")
	}
	s.Follow(func(s *snapshot.Snapshot, _ Changes) {
		if !has("a")(s) || has("b")(s) {
			t.Error("half a file changed the Snapshot")
		}
	})
}

// A file that lacks most of the Services in force, and at least ten, or ends in the middle of a line, may be
// incomplete: nothing changes, whatever --allow-empty says.
func TestFilesLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	text := func(services int) (out string) {
		for i := range services {
			out += "---\n" + serviceYAML(fmt.Sprintf("s%d", i), fmt.Sprintf("10.0.0.%d", i+1))
		}
		return out
	}
	write(t, path, text(21))
	s := NewStore(time.Now)
	f := &Files{Paths: []string{path}, Store: s, AllowEmpty: true, Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Skipped) {}}
	if err := f.Read(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		text, want string
		has        int
	}{
		{text(10), "contains 10 Services, but 21 are in force", 21},
		{strings.TrimSuffix(text(20), "\n"), "ends in the middle of a line", 21},
		{text(11), "", 11},
		{text(1), "contains 1 Services, but 11 are in force", 11},
		{text(10), "", 10},
		{text(1), "", 1},
		{"", "", 0},
	} {
		write(t, path, tc.text)
		if err := f.Read(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%d bytes: got %v, want %q", len(tc.text), err, tc.want)
		}
		s.View(func(s *snapshot.Snapshot) {
			if n, _, _ := s.Count(); n != tc.has {
				t.Errorf("%d bytes: %d Services, want %d", len(tc.text), n, tc.has)
			}
		})
	}
}

// A named file is followed whatever its extension is.
func TestFilesNames(t *testing.T) {
	for _, tc := range []struct{ name, path string }{
		{"bare", "live.yaml"},
		{"dotted", "./live.yaml"},
		{"detour", "../dir/live.yaml"},
		{"double slash", ".//live.yaml"},
		{"this directory", "."},
		{"this directory by another name", "../dir/"},
		{"link in another directory", "../links/file"},
		{"link to the directory", "../links/dir/live.yaml"},
		{"directory by a link", "../links/dir"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "dir")
			for _, d := range []string{dir, filepath.Join(root, "links")} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for name, to := range map[string]string{"file": "../dir/live.yaml", "dir": "../dir"} {
				if err := os.Symlink(to, filepath.Join(root, "links", name)); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			write(t, "live.yaml", serviceYAML("a", "10.0.0.1"))
			g, _ := followFiles(t, tc.path)
			g.until(has("a"))
			write(t, "live.yaml", serviceYAML("b", "10.0.0.2"))
			g.until(func(s *snapshot.Snapshot) bool { return has("b")(s) && !has("a")(s) })
			write(t, "next", serviceYAML("c", "10.0.0.3"))
			if err := os.Rename("next", "live.yaml"); err != nil {
				t.Fatal(err)
			}
			g.until(func(s *snapshot.Snapshot) bool { return has("c")(s) && !has("b")(s) })
		})
	}
}

// A directory on the way to a file may be replaced.
func TestFilesParentReplaced(t *testing.T) {
	root := t.TempDir()
	put := func(version, service string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(root, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, version, "live.yaml"), serviceYAML(service, "10.0.0.1"))
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(root, from), filepath.Join(root, to)); err != nil {
			t.Fatal(err)
		}
	}
	put("dir", "a")
	put("next", "b")
	g := &follower{t: t, API: &API{Store: NewStore(time.Now)}}
	f := &Files{Paths: []string{filepath.Join(root, "dir", "live.yaml")}, Store: g.Store, Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Skipped) {}}
	reads := make(chan error, 100)
	done := make(chan error, 1)
	go func() { done <- f.Run(t.Context(), func(err error) { reads <- err }) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	g.until(has("a"))
	rename("dir", "old")
	for err := range reads { // until the removal is noticed
		if err != nil {
			break
		}
	}
	rename("next", "dir")
	g.until(has("b"))
	write(t, filepath.Join(root, "dir", "live.yaml"), serviceYAML("c", "10.0.0.1"))
	g.until(has("c"))
}

// pace is a clock that a test controls. It reports the requested waits.
type pace struct {
	asked chan time.Duration
	tick  chan time.Time
}

// until waits for a requested wait of length want and counts the others.
func (p *pace) until(t *testing.T, want time.Duration) (others int) {
	t.Helper()
	for {
		select {
		case got := <-p.asked:
			if got == want {
				return others
			}
			others++
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody waits for %s", want)
		}
	}
}

// A file is not read while it is being rewritten, however long that takes.
func TestFilesBeingWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "live.yaml")
	write(t, path, serviceYAML("a", "10.0.0.1"))
	w, err := watchPaths([]string{path}, newNotifier)
	if err != nil {
		t.Fatal(err)
	}
	p := &pace{asked: make(chan time.Duration, 100), tick: make(chan time.Time)}
	changed := make(chan string, 100)
	done := make(chan error, 1)
	go func() {
		done <- w.run(t.Context(), func(d time.Duration) <-chan time.Time {
			if d == maxDelay {
				return nil
			}
			p.asked <- d
			return p.tick
		}, nil, 0, func() time.Duration {
			data, _ := os.ReadFile(path)
			changed <- string(data)
			return 0
		})
	}()
	t.Cleanup(func() { <-done })

	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0) // as a shell redirection does
	if err != nil {
		t.Fatal(err)
	}
	p.until(t, openTimeout)
	for range 3 {
		file.WriteString(serviceYAML("b", "10.0.0.2") + "---\n")
		if others := p.until(t, openTimeout); others > 0 {
			t.Errorf("%d waits for less than %s while the file is open", others, openTimeout)
		}
	}
	write(t, filepath.Join(dir, "other"), "") // an unrelated file
	file.Close()
	p.until(t, settleTime)
	p.tick <- time.Time{}
	if got := <-changed; strings.Count(got, "name: b") != 3 {
		t.Errorf("read:\n%s", got)
	}

	// A file that stays open is read when it is unchanged for patience.
	if file, err = os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0); err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p.until(t, openTimeout)
	file.WriteString(serviceYAML("c", "10.0.0.3"))
	p.until(t, openTimeout)
	p.tick <- time.Time{}
	if got := <-changed; !strings.Contains(got, "name: c") {
		t.Errorf("read:\n%s", got)
	}
	if len(changed) > 0 || len(p.asked) > 0 {
		t.Errorf("%d more readings, %d more waits", len(changed), len(p.asked))
	}
}

// A file that changes continuously does not block changes of others.
func TestFilesNeverAtRest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "live.yaml")
	w, err := watchPaths([]string{path}, newNotifier)
	if err != nil {
		t.Fatal(err)
	}
	latest := make(chan time.Time, 1)
	latest <- time.Time{}
	changed := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() {
		done <- w.run(t.Context(), func(d time.Duration) <-chan time.Time {
			if d == maxDelay {
				return latest
			}
			return nil // the files never settle
		}, nil, 0, func() time.Duration { changed <- struct{}{}; return 0 })
	}()
	t.Cleanup(func() { <-done })
	write(t, path, serviceYAML("a", "10.0.0.1"))
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing is read")
	}
}

// The output of a failed kubectl changes nothing.
func TestFilesRefused(t *testing.T) {
	whole := "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: b, namespace: ns}\n  spec: {clusterIP: 10.0.0.2, ports: [{port: 80}]}\nkind: List\n"
	for _, tc := range []struct {
		name, text, want string
		meant            bool // with --allow-empty
	}{
		{"empty", "", "is empty", true},
		{"blank", "\n \n", "is empty", true},
		{"empty list", "apiVersion: v1\nitems: []\nkind: List\n", "no Service", true},
		{"no EndpointSlice", "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: ns}\nspec: {selector: {app: web}, clusterIP: 10.0.0.1, ports: [{port: 80}]}\n",
			"has no EndpointSlice, but in every cluster Service ns/a has one", true},
		{"no Service", "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\n", "no Service", true},
		{"Node of another", "apiVersion: v1\nkind: Node\nmetadata: {name: node2}\n---\n" + serviceYAML("a", "10.0.0.1"), "must contain Node node1, as it contains Node node2", false},
		{"cut off after a line", whole[:strings.LastIndex(whole, "kind: List")], "cut off", false},
		{"cut off in a line", whole[:strings.Index(whole, "10.0.0.2")], "cut off", false},
		{"too long", whole + strings.Repeat("#\n", 1000), "more than the 1000 bytes of --snapshot-limit", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cluster.yaml")
			write(t, path, serviceYAML("a", "10.0.0.1"))
			s := NewStore(time.Now)
			f := &Files{Paths: []string{path}, Store: s, Limit: 1000, NodeName: "node1", Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Skipped) {}}
			if err := f.Read(); err != nil {
				t.Fatal(err)
			}
			write(t, path, tc.text)
			if err := f.Read(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			s.View(func(s *snapshot.Snapshot) {
				if !has("a")(s) || has("b")(s) {
					t.Error("the Snapshot changed")
				}
			})
			f.AllowEmpty = true
			if err := f.Read(); tc.meant != (err == nil) {
				t.Errorf("with --allow-empty: %v", err)
			}
		})
	}
}

// failing is a notifier that watches once.
type failing struct {
	notifier
	watched bool
}

func (f *failing) watch(dirs map[string]interest) error {
	if f.watched {
		return errors.New("no space left on device")
	}
	f.watched = true
	return f.notifier.watch(dirs)
}

// If the kernel refuses further watches, for a directory that was added, the files are polled.
func TestFilesNoMoreWatches(t *testing.T) {
	polled, read := make(chan error, 1), make(chan struct{}, 100)
	again := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		done <- followPaths(t.Context(), []string{t.TempDir()}, func() (notifier, error) {
			n, err := newNotifier()
			return &failing{notifier: n}, err
		}, again, func(why error) { polled <- why }, func() time.Duration { read <- struct{}{}; return 0 })
	}()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-read
	again <- struct{}{} // it watches again
	select {
	case why := <-polled:
		if !strings.Contains(why.Error(), "no space left on device") {
			t.Error(why)
		}
	case err := <-done:
		done <- nil
		t.Fatalf("it ended: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("not polled")
	}
	<-read
}

// If the kernel provides no inotify instance, changes are found by polling.
func TestFilesPolled(t *testing.T) {
	dir := t.TempDir()
	refused := errors.New("too many open files")
	w, err := newPathWatch([]string{filepath.Join(dir, "live")}, newPoller(10*time.Millisecond), refused)
	if err != nil || w.pollReason != refused {
		t.Fatal(err, w.pollReason)
	}
	if w, err := watchPaths([]string{dir}, func() (notifier, error) { return nil, refused }); err != nil || w.pollReason != refused {
		t.Error("refused, and not polled:", err)
	} else {
		w.Close()
	}
	changed := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() {
		done <- w.run(t.Context(), time.After, nil, 0, func() time.Duration { changed <- struct{}{}; return 0 })
	}()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	sees := func(what string, do func() error) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s is not seen", what)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	sees("a link to a directory", func() error {
		return errors.Join(os.Mkdir(file("one"), 0o755), os.Mkdir(file("two"), 0o755), os.Symlink("one", file("live")))
	})
	sees("a file in it", func() error { return os.WriteFile(file("one/a.yaml"), []byte("x"), 0o644) })
	sees("another size", func() error { return os.WriteFile(file("one/a.yaml"), []byte("xy"), 0o644) })
	sees("a change of the link", func() error {
		return errors.Join(os.Symlink("two", file("next")), os.Rename(file("next"), file("live")))
	})
	sees("a change of the link back", func() error {
		return errors.Join(os.Symlink("one", file("next")), os.Rename(file("next"), file("live")))
	})
}
