package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
)

// faultyFiles is the real file system, which fails at one step.
type faultyFiles struct {
	disk.OS
	step int // the step that fails, from 1; 0: none
	done int
}

var errFault = errors.New("no space left on device")

func (f *faultyFiles) fault() error {
	if f.done++; f.done == f.step {
		return errFault
	}
	return nil
}

func (f *faultyFiles) CreateTemp(dir string, mode fs.FileMode) (disk.Temp, error) {
	if err := f.fault(); err != nil {
		return nil, err
	}
	file, err := f.OS.CreateTemp(dir, mode)
	return &faultyFile{file, f}, err
}

func (f *faultyFiles) Rename(from, to string) error {
	if err := f.fault(); err != nil {
		return err
	}
	return f.OS.Rename(from, to)
}

type faultyFile struct {
	disk.Temp
	files *faultyFiles
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if err := f.files.fault(); err != nil {
		return 0, err
	}
	return f.Temp.Write(p)
}

func (f *faultyFile) Sync() error {
	if err := f.files.fault(); err != nil {
		return err
	}
	return f.Temp.Sync()
}

func (f *faultyFile) Close() error {
	return errors.Join(f.files.fault(), f.Temp.Close())
}

// syncedFiles records which temporary files are synced, and reports a rename of one that is not.
type syncedFiles struct {
	disk.OS
	t      *testing.T
	synced map[string]bool
}

type syncedFile struct {
	disk.Temp
	files *syncedFiles
}

func (f syncedFile) Sync() error {
	f.files.synced[f.Name()] = true
	return f.Temp.Sync()
}

func (f *syncedFiles) CreateTemp(dir string, mode fs.FileMode) (disk.Temp, error) {
	file, err := f.OS.CreateTemp(dir, mode)
	return syncedFile{file, f}, err
}

func (f *syncedFiles) Rename(from, to string) error {
	if !f.synced[from] {
		f.t.Errorf("%s takes its place before it is on the disk: after a power failure it may be empty", to)
	}
	return f.OS.Rename(from, to)
}

// A new version of a file, such as the boot file, is synced before it replaces the old one.
func TestWriteFileIsOnDisk(t *testing.T) {
	files := &syncedFiles{t: t, synced: map[string]bool{}}
	name := filepath.Join(t.TempDir(), "boot")
	if err := (fileSystem{testEnv(t, files)}).WriteFile(name, func(w io.Writer) error { _, err := io.WriteString(w, "whole"); return err }); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "whole" {
		t.Errorf("%q, %v", data, err)
	}
}

// TestWriteDirFaults lets every step of --out-dir fail in turn: no file is
// ever half written, and no temporary one stays.
func TestWriteDirFaults(t *testing.T) {
	dir := t.TempDir()
	if code := run(testEnv(t, disk.OS{}, "demo", "--write", dir)); code != exitDone {
		t.Fatalf("exit code %d", code)
	}
	config, cluster := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "cluster.yaml")
	out := filepath.Join(dir, "out")
	args := []string{"compile", "-c", config, "-s", cluster, "--mode", "iptables", "--out-dir", out}

	whole := map[string]string{}
	for step := 0; ; step++ {
		files := &faultyFiles{step: step}
		code := run(testEnv(t, files, args...))
		got := readDir(t, out)
		if step == 0 {
			whole = got
			if len(whole) != 3 {
				t.Fatalf("files %v, want three", whole)
			}
			continue
		}
		if files.done < step {
			if step < 10 {
				t.Errorf("only %d steps could fail", step)
			}
			return
		}
		if code != exitBad {
			t.Errorf("step %d: exit code %d, want %d", step, code, exitBad)
		}
		for name, text := range got {
			if text != whole[name] {
				t.Errorf("step %d: %s is not as it was, and not as it should be", step, name)
			}
		}
		if len(got) != len(whole) {
			t.Errorf("step %d: %d files, want %d", step, len(got), len(whole))
		}
	}
}

func readDir(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files[d.Name()] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// testEnv returns an environment without a machine but its files.
func testEnv(t *testing.T, f disk.Disk, args ...string) *env {
	return &env{
		args: args, stdin: strings.NewReader(""), stdout: io.Discard, stderr: logWriter{t}, files: f,
		hostname: func() (string, error) { return "node1", nil },
		interfaces: func() ([]compiler.Interface, error) {
			return []compiler.Interface{{Name: "eth0", Addrs: reviewtest.Prefixes("192.0.2.11/24")}, {Name: "eth1", Addrs: reviewtest.Prefixes("198.51.100.11/24")}}, nil
		},
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("stderr: %s", p)
	return len(p), nil
}

// TestHostname: the host provides the node name if nothing else does (the node name is the flag
// --hostname-override or the host name, SNAP-70).
func TestHostname(t *testing.T) {
	for _, test := range []struct {
		name string
		host func() (string, error)
		want int
		text string
	}{
		{"trimmed and in lower case", func() (string, error) { return " Node1 ", nil }, exitDone, `"name": "node1"`},
		{"unknown", func() (string, error) { return "", errFault }, exitBad, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			e := testEnv(t, disk.OS{}, "compile", "-s", "-", "-o", "ir-json")
			e.hostname, e.stdout, e.stdin = test.host, &out, strings.NewReader("{apiVersion: v1, kind: List, items: []}")
			if got := run(e); got != test.want {
				t.Errorf("exit code %d, want %d", got, test.want)
			}
			if !strings.Contains(out.String(), test.text) {
				t.Errorf("output lacks %q:\n%s", test.text, &out)
			}
		})
	}
}

// TestFullDisk fails when standard output does.
func TestFullDisk(t *testing.T) {
	for _, args := range [][]string{{"demo"}, {"config", "defaults"}, {"version"}, {"compile", "-s", "-"},
		{"trace", "-s", "-", "--from", "10.0.0.1", "--to", "10.0.0.2:80"}} {
		e := testEnv(t, disk.OS{}, args...)
		e.stdout = fullDisk{}
		if got := run(e); got != exitBad {
			t.Errorf("%v: exit code %d, want %d", args, got, exitBad)
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFault }

// FuzzCompile gives the command line arbitrary files: it must neither panic
// nor give other exit codes than its own.
func FuzzCompile(f *testing.F) {
	const config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\nmode: "
	const cluster = `{apiVersion: v1, kind: Service, metadata: {namespace: a, name: b}, spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: a, name: c, labels: {kubernetes.io/service-name: b}}, addressType: IPv4, ports: [{name: "", port: 80}], endpoints: [{addresses: [10.244.1.10], nodeName: node1}]}
`
	for i, mode := range ir.Modes() {
		f.Add([]byte(config+string(mode)), []byte(cluster), uint8(i))
	}
	verbs := [][]string{{"compile", "--explain"}, {"compile", "-o", "ir"}, {"compile", "-o", "ir-json"}, {"lint"},
		{"explain", "10.96.0.10"}, {"trace", "--from", "node", "--to", "10.96.0.10:80"}}
	f.Fuzz(func(t *testing.T, config, cluster []byte, verb uint8) {
		args := append(append([]string{}, verbs[int(verb)%len(verbs)]...), "-c", "config", "-s", "cluster")
		e := testEnv(t, memFiles{"config": config, "cluster": cluster}, args...)
		e.stderr = io.Discard
		if code := run(e); code < exitDone || code > exitBad {
			t.Errorf("exit code %d", code)
		}
	})
}

// memFiles are files in memory that can only be read.
type memFiles map[string][]byte

func (m memFiles) ReadFile(name string) ([]byte, error) {
	if data, ok := m[name]; ok {
		return data, nil
	}
	return nil, fs.ErrNotExist
}

func (m memFiles) Open(name string) (fs.File, error) {
	files := fstest.MapFS{}
	for name, data := range m {
		files[name] = &fstest.MapFile{Data: data}
	}
	return files.Open(name)
}

func (m memFiles) Stat(string) (fs.FileInfo, error)                { return memInfo{}, nil }
func (memFiles) ReadDir(string) ([]fs.DirEntry, error)             { return nil, fs.ErrPermission }
func (memFiles) MkdirAll(string) error                             { return fs.ErrPermission }
func (memFiles) Create(string) (io.WriteCloser, error)             { return nil, fs.ErrPermission }
func (memFiles) CreateTemp(string, fs.FileMode) (disk.Temp, error) { return nil, fs.ErrPermission }
func (memFiles) Destination(name string) (string, io.WriteCloser, error) {
	return name, nil, nil
}
func (memFiles) Rename(string, string) error { return fs.ErrPermission }
func (memFiles) Remove(string) error         { return fs.ErrPermission }

// memInfo describes a plain file.
type memInfo struct{ fs.FileInfo }

func (memInfo) IsDir() bool { return false }
