package watch

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
	f := pollingFiles(t, g.Store, paths...)
	f.Report = func(l diag.List, _ []*snapshot.Invalid) { reports <- l }
	runFiles(t, f, func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	return g, reports
}

// runFiles runs a Files source until the test ends.
func runFiles(t *testing.T, f *Files, read func(error)) {
	done := make(chan struct{})
	go func() { defer close(done); f.Run(t.Context(), read) }()
	t.Cleanup(func() { <-done })
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
	f := pollingFiles(t, NewStore(time.Now), path)
	f.Reread = again
	runFiles(t, f, func(err error) { reads <- err })
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
	f := &Files{Paths: []string{path}, Store: s, Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Invalid) {}}
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
	f := &Files{Paths: []string{path}, Store: s, AllowEmpty: true, Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Invalid) {}}
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
	reads := make(chan error, 100)
	runFiles(t, pollingFiles(t, g.Store, filepath.Join(root, "dir", "live.yaml")), func(err error) { reads <- err })
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

// pollingFiles returns a Files source that notices changes quickly.
func pollingFiles(t *testing.T, store *Store, paths ...string) *Files {
	return &Files{Paths: paths, Store: store, Every: 25 * time.Millisecond, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Report: func(diag.List, []*snapshot.Invalid) {}}
}

// A file is not read while it is being rewritten, however long that takes. A file that changes
// at each poll does not block the others forever.
func TestFilesBeingWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "live.yaml")
	write(t, path, serviceYAML("a", "10.0.0.1"))
	p := polled{paths: []string{path}}
	p.begin()
	changed := func(want bool) {
		t.Helper()
		if got := p.changed(); got != want {
			t.Fatalf("changed: %t, want %t", got, want)
		}
	}
	changed(false)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0) // as a shell redirection does
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for range maxUnsettled - 2 {
		changed(false)
		file.WriteString(serviceYAML("b", "10.0.0.2") + "---\n")
	}
	changed(false)
	changed(true) // two polls agree
	p.begin()
	changed(false)
	for range maxUnsettled - 1 {
		file.WriteString(serviceYAML("c", "10.0.0.3") + "---\n")
		changed(false)
	}
	file.WriteString(serviceYAML("c", "10.0.0.3") + "---\n")
	changed(true)
}

// Each change of a file, a link or a directory is seen, also one that keeps size and time.
func TestFilesPolled(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	link := func(to string) error {
		return errors.Join(os.Symlink(to, file("next")), os.Rename(file("next"), file("live")))
	}
	past := time.Now().Add(-time.Hour)
	text := func(name, text string) error {
		return errors.Join(os.WriteFile(file(name), []byte(text), 0o644), os.Chtimes(file(name), past, past))
	}
	p := polled{paths: []string{file("live")}}
	p.begin()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a link to a directory", func() error {
			return errors.Join(os.Mkdir(file("one"), 0o755), text("one/a.yaml", "x"), os.Mkdir(file("two"), 0o755), text("two/a.yaml", "y"), link("one"))
		}},
		{"another file", func() error { return text("one/b.yaml", "x") }},
		{"another size", func() error { return text("one/a.yaml", "xy") }},
		{"another time", func() error { return os.Chtimes(file("one/a.yaml"), past, past.Add(time.Millisecond)) }},
		{"a removed file", func() error { return os.Remove(file("one/b.yaml")) }},
		{"a file of the same size and time", func() error {
			return errors.Join(text("other", "xy"), os.Chtimes(file("other"), past, past.Add(time.Millisecond)), os.Rename(file("other"), file("one/a.yaml")))
		}},
		{"a change of the link", func() error { return errors.Join(text("two/a.yaml", "xy"), link("two")) }},
		{"permissions", func() error { return os.Chmod(file("two/a.yaml"), 0o600) }},
		{"a link to a missing file", func() error { return os.Symlink("missing", file("two/b.yaml")) }},
		{"a missing directory", func() error { return os.Remove(file("live")) }},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if first, then := p.changed(), p.changed(); first || !then {
			t.Errorf("%s: changed %t, then %t, want only then", step.name, first, then)
		}
		p.begin()
		if p.changed() {
			t.Errorf("%s: changed after it was read", step.name)
		}
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
			f := &Files{Paths: []string{path}, Store: s, Limit: 1000, NodeName: "node1", Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Invalid) {}}
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

// Of an object with a value that the API server rejects, the last good version stays until the value is good
// again. Without one, its valid parts count. The other objects of the file count immediately.
func TestFilesInvalid(t *testing.T) {
	const (
		good  = "type: NodePort, sessionAffinity: ClientIP, clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ipFamilies: [IPv4], externalTrafficPolicy: Local, ports: [{name: a, port: 80, nodePort: 30080}, {name: b, port: 81}]"
		slice = "addressType: IPv4\nports: [{name: a, port: 8080}]\nendpoints: [{addresses: [10.244.0.1]}]\n"
		ends  = "subsets: [{addresses: [{ip: 10.244.0.1}], ports: [{name: a, port: 8080}]}]\n"
	)
	cluster := func(change ...string) string {
		return strings.NewReplacer(change...).Replace("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: ns}\nspec: {" + good + "}\n" +
			"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}\n" + slice +
			"---\napiVersion: v1\nkind: Service\nmetadata: {name: old, namespace: ns}\nspec: {clusterIP: 10.0.0.3, ports: [{name: a, port: 80}]}\n---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: old, namespace: ns}\n" + ends)
	}
	const service, endpoints, legacy = "Service ns/web", "EndpointSlice ns/web-1", "Endpoints ns/old"
	for _, tc := range []struct{ object, from, to string }{
		{service, "10.0.0.1", "10.0.0.999"},
		{service, "10.0.0.1", "127.0.0.1"},
		{service, "clusterIPs: [10.0.0.1]", "clusterIPs: [10.0.0.1, fd00::x]"},
		{service, "clusterIPs: [10.0.0.1]", "clusterIPs: [10.0.0.2]"},
		{service, "[IPv4]", "[IPv6]"},
		{service, "[IPv4]", "[IPv4, IPv6]"},
		{service, "[IPv4]", "[IPv5]"},
		{service, "port: 80,", "port: 70000,"},
		{service, "port: 80,", "port: 0,"},
		{service, "port: 80,", "port: 80, protocol: TPC,"},
		{service, "30080", "70000"},
		{service, "port: 81", "port: 80"},
		{service, "name: b", "name: a"},
		{service, "Local", "Locl"},
		{service, "type: NodePort", "type: NodePrt"},
		{service, "ClientIP", "Client"},
		{service, "type: NodePort", "externalIPs: [192.0.2.x], type: NodePort"},
		{service, "type: NodePort", "type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/99]"},
		{endpoints, "addresses: [10.244.0.1]", "addresses: [10.244.0.300]"},
		{endpoints, "addresses: [10.244.0.1]", "addresses: [fd00::1]"},
		{endpoints, "addresses: [10.244.0.1]", "addresses: [127.0.0.1]"},
		{endpoints, "addresses: [10.244.0.1]", "addresses: []"},
		{endpoints, "addressType: IPv4", "addressType: IPv5"},
		{endpoints, "ports: [{name: a, port: 8080}]\nend", "ports: [{name: a, port: 80800}]\nend"},
		{legacy, "{ip: 10.244.0.1}", "{ip: 10.244.0.x}"},
		{legacy, "port: 8080}]}]", "port: 80800}]}]"},
	} {
		t.Run(tc.object+" "+tc.to, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cluster.yaml")
			s := NewStore(time.Now)
			var found diag.List
			var broken []*snapshot.Invalid
			f := &Files{Paths: []string{path}, Store: s, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Report: func(l diag.List, b []*snapshot.Invalid) { found, broken = l, b }}
			read := func(text string) *snapshot.Snapshot {
				write(t, path, text)
				if err := f.Read(); err != nil {
					t.Fatal(err)
				}
				var now snapshot.Snapshot
				s.View(func(s *snapshot.Snapshot) { now = *s.WithEndpoints() })
				return &now
			}
			all := func(s *snapshot.Snapshot) []any {
				return []any{s.Service(name("web")), s.Slices(name("web")), s.Slices(name("old"))}
			}
			was := all(read(cluster()))
			if len(found) > 1 || len(broken) > 0 { // the Endpoints
				t.Fatalf("of the good one: %v", found)
			}
			bad := cluster(tc.from, tc.to)
			if bad == cluster() {
				t.Fatal("the input has no such text")
			}
			now := read(bad + "---\n" + serviceYAML("new", "10.0.0.9"))
			if diff := cmp.Diff(was, all(now), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("the last good version does not count: -want +got\n%s", diff)
			}
			if !has("new")(now) {
				t.Error("another object does not count")
			}
			about := func(d diag.Diagnostic) bool { return d.Object == tc.object }
			if len(broken) != 1 || broken[0].Object != tc.object || !strings.HasSuffix(broken[0].Why, "the last good version stays in force") {
				t.Errorf("broken: %+v", broken)
			}
			if i := slices.IndexFunc(found, about); i < 0 || found[i].Severity != diag.Error || slices.ContainsFunc(found, func(d diag.Diagnostic) bool { return about(d) && d.Severity != diag.Error }) {
				t.Errorf("findings: %v", found)
			}
			if diff := cmp.Diff(was, all(read(cluster())), cmpopts.EquateComparable(netip.Addr{})); diff != "" || len(broken) > 0 {
				t.Errorf("good again: %+v, %s", broken, diff)
			}

			s = NewStore(time.Now) // a restart
			f.Store = s
			if now := all(read(bad)); cmp.Equal(was, now, cmpopts.EquateComparable(netip.Addr{})) {
				t.Error("after a restart, the last good version counts")
			}
			if now := read(bad + "---\n" + serviceYAML("new", "10.0.0.9")); !has("new")(now) || len(broken) > 1 {
				t.Errorf("after a restart, broken: %+v", broken)
			}
			if diff := cmp.Diff(was, all(read(cluster())), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("good after a restart: %s", diff)
			}
		})
	}
}
