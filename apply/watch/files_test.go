package watch

import (
	"log/slog"
	"os"
	"path/filepath"
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

// followFiles runs a Files source and gives its Store as a follower, and the
// diagnostics of each reading.
func followFiles(t *testing.T, path string) (*follower, <-chan diag.List) {
	t.Helper()
	reports := make(chan diag.List, 100)
	g := &follower{t: t, API: &API{Store: NewStore(time.Now)}}
	f := &Files{Path: path, Store: g.Store, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Report: func(l diag.List) { reports <- l }}
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
	if n := len(reports); n != 2 { // one for each version
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

// A mounted ConfigMap changes by the swap of a link that the file's own link
// goes through.
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

// What is no YAML may be half a file: nothing changes.
func TestFilesHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	write(t, path, serviceYAML("a", "10.0.0.1"))
	s := NewStore(time.Now)
	f := &Files{Path: path, Store: s, Log: slog.New(slog.DiscardHandler), Report: func(diag.List) {}}
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
