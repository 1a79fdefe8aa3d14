package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestWatched checks that output of the firmware is dropped, wherever the writes are split.
func TestWatched(t *testing.T) {
	const printed = "\x1b[2JSeaBIOS\r\nvm: this is Linux 6.1\r\none\r\n"
	const want = "vm: this is Linux 6.1\none\n"
	for cut := range len(printed) {
		var out bytes.Buffer
		w := &watched{to: &out, dog: time.AfterFunc(time.Hour, func() {}), silence: time.Hour}
		if w.started() {
			t.Fatal("started before anything was printed")
		}
		for _, part := range []string{printed[:cut], printed[cut:]} {
			if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("Write: %d, %v", n, err)
			}
		}
		w.dog.Stop()
		if out.String() != want || !w.started() {
			t.Errorf("cut after %d bytes: %q, started %v", cut, out.String(), w.started())
		}
	}
}

func TestChoose(t *testing.T) {
	count := func(only string, all bool) int {
		chosen, err := choose(only, all)
		if err != nil {
			t.Fatal(err)
		}
		return len(chosen)
	}
	if usual, all, some := count("", false), count("", true), count("^nftables$", false); all != len(suites) || usual == 0 || usual > all || some != 1 {
		t.Errorf("usual %d, all %d, one %d", usual, all, some)
	}
	for _, wrong := range []string{"no such suite", "("} {
		if _, err := choose(wrong, true); err == nil || !strings.Contains(err.Error(), "-only") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// TestSuitesNameTests checks that each suite has tests, since one without would always succeed.
func TestSuitesNameTests(t *testing.T) {
	for _, s := range suites {
		if _, err := os.Stat(filepath.Join("..", "..", s.pkg)); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
}

func TestReport(t *testing.T) {
	j := job{Commands: []command{{Name: "one"}, {Name: "two"}}}
	for _, tt := range []struct {
		results []result
		want    bool
	}{
		{[]result{{}, {}}, true},
		{[]result{{}, {Error: "exit status 1"}}, false},
		{[]result{{}}, false}, // the machine ended before the second command
		{nil, false},
	} {
		if got := report(j, tt.results); got != tt.want {
			t.Errorf("%v: %v", tt.results, got)
		}
	}
}

// TestClosure checks that a module follows all its dependencies.
func TestClosure(t *testing.T) {
	k := kernel{t.TempDir()}
	dir := filepath.Join(k.modules(), "6.1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	deps := "fs/9p.ko: net/9pnet.ko fs/netfs.ko\nnet/9pnet.ko:\nfs/netfs.ko:\nnet/9pnet_virtio.ko: net/9pnet.ko virtio/virtio.ko\nvirtio/virtio.ko:\n"
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(deps), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := k.closure("9pnet_virtio", "9p")
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i] = filepath.Base(got[i])
	}
	want := []string{"virtio.ko", "9pnet.ko", "9pnet_virtio.ko", "netfs.ko", "9p.ko"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := k.closure("none"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a module that is not there: %v", err)
	}
}

// fakeQemu replaces qemu by a script.
func fakeQemu(t *testing.T, script string) *machine {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "qemu-system-x86_64"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	m := &machine{work: t.TempDir(), silence: time.Minute, timeout: time.Minute}
	if err := os.Mkdir(m.control(), 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestHang checks that a machine that does not start, or that stops printing, is killed.
func TestHang(t *testing.T) {
	m := fakeQemu(t, "exec sleep 1000")
	if err := m.qemu(context.Background(), "kvm", 10*time.Millisecond, job{}); !errors.Is(err, errNoStart) {
		t.Errorf("silent from the start: %v", err)
	}
	m = fakeQemu(t, "echo no such processor >&2; exit 1")
	if err := m.qemu(context.Background(), "kvm", time.Minute, job{}); !errors.Is(err, errNoStart) || !strings.Contains(err.Error(), "no such processor") {
		t.Errorf("ended at once: %v", err)
	}
	m = fakeQemu(t, "echo '"+bootLine+"'; exec sleep 1000")
	m.silence = 10 * time.Millisecond
	if err := m.qemu(context.Background(), "tcg", time.Minute, job{}); err == nil || errors.Is(err, errNoStart) || !strings.Contains(err.Error(), "hangs") {
		t.Errorf("silent later: %v", err)
	}
	m = fakeQemu(t, "echo '"+bootLine+"'; echo qemu is sorry >&2; exit 1")
	if err := m.qemu(context.Background(), "tcg", time.Minute, job{}); err == nil || errors.Is(err, errNoStart) || !strings.Contains(err.Error(), "sorry") {
		t.Errorf("crashed later: %v", err)
	}
}

// TestMachine starts a machine, if its tools are installed.
func TestMachine(t *testing.T) {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip(err)
	}
	ctx := context.Background()
	k, err := findKernel(ctx, cacheDir())
	if err != nil {
		t.Skip(err)
	}
	vm := filepath.Join(t.TempDir(), "vm")
	if _, err := goTool(ctx, ".", "build", "-o", vm, "."); err != nil {
		t.Fatal(err)
	}
	kept, lost := t.TempDir(), t.TempDir()
	script := `uname -r; modprobe ip_vs_rr && echo "ip_vs is there"
ip link add kube-ipvs0 type dummy && ip addr add 10.96.0.1/32 dev kube-ipvs0 && ip -br addr show kube-ipvs0
echo kept > "$1/file"; echo lost > "$2/file"; exit 3`
	cmd := exec.CommandContext(ctx, vm, "-writable", kept, "--", "sh", "-c", script, "sh", kept, lost)
	out, err := cmd.CombinedOutput()
	text := string(out)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit code 1", err)
	}
	release := strings.TrimPrefix(filepath.Base(k.dir), "linux-image-")
	for _, want := range []string{release + "\n", "ip_vs is there\n", "10.96.0.1/32", "exit status 3"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if data, err := os.ReadFile(filepath.Join(kept, "file")); string(data) != "kept\n" {
		t.Errorf("writable directory: %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(lost, "file")); err == nil {
		t.Error("a file was written outside the writable directory")
	}
}
