package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// diskFiles are files on a disk that may be full.
type diskFiles struct{ full bool }

func (*diskFiles) ReadFile(name string) ([]byte, error)  { return os.ReadFile(name) }
func (*diskFiles) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

func (d *diskFiles) WriteFile(name string, write func(io.Writer) error) error {
	if d.full {
		return errors.New("no space left on device")
	}
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o600)
}

func newBootFile(t *testing.T, files Files) *bootFile {
	t.Helper()
	lock, err := apply.AcquireLock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Release() })
	return &bootFile{files: files, path: filepath.Join(t.TempDir(), "boot"), lock: lock, log: slog.New(slog.DiscardHandler)}
}

// The file counts as current only while no commit began after those that it contains. Another file does
// not.
func TestBootFileCurrent(t *testing.T) {
	var during func() // while the file is written
	applied := func() ir.Programs {
		if during != nil {
			during()
		}
		return ir.NewPrograms(&ir.Program{Family: ir.IPv4}, &ir.Program{Family: ir.IPv6})
	}
	disk := &diskFiles{}
	b := newBootFile(t, disk)
	check := func(what string, want bool) {
		t.Helper()
		restarted := &bootFile{files: disk, path: b.path, log: b.log, lock: b.lock}
		if restarted.isCurrent() != want {
			t.Errorf("%s: current %t, want %t", what, !want, want)
		}
	}
	write := func() { b.beginCommit(); b.markChanged(); b.write(applied) }
	check("an older version wrote the rules", true)
	write()
	check("written", true)
	b.beginCommit()
	check("a commit began", false)
	b.markChanged()
	check("a commit ended", false)
	b.write(applied)
	check("written again", true)
	during = b.beginCommit
	write()
	check("a commit began while it was written", false)
	during = nil
	write()
	disk.full = true
	write()
	check("the disk is full", false)
	disk.full = false
	b.write(applied)
	check("the write was retried", true)
	b.path += ".2"
	check("another file", false)
	write()
	b = &bootFile{files: disk, path: b.path, log: b.log, lock: b.lock} // of a new process
	check("a restart", true)
	b.beginCommit()
	check("a commit after a restart", false)
}

// A file that other users can write is rejected: they could otherwise control the node's packets.
func TestBootFileOfOthers(t *testing.T) {
	applied := func() ir.Programs {
		node := ir.Node{Mode: ir.ModeNFTables, Name: "node1"}
		return ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node}, &ir.Program{Family: ir.IPv6, Node: node})
	}
	var log bytes.Buffer
	b := newBootFile(t, &diskFiles{})
	b.log = slog.New(slog.NewTextHandler(&log, nil))
	b.markChanged()
	b.write(applied)
	if _, ok := b.read("node1"); !ok {
		t.Fatalf("its own file is left out: %s", &log)
	}
	for what, change := range map[string]func() error{
		"must be writable only by its owner, has mode 0622":                  func() error { return os.Chmod(b.path, 0o622) },
		"must be owned by root or the daemon's user, is owned by user 65534": func() error { return errors.Join(os.Chmod(b.path, 0o600), os.Chown(b.path, 65534, -1)) },
	} {
		if err := change(); errors.Is(err, os.ErrPermission) {
			continue // only root can change the owner
		} else if err != nil {
			t.Fatal(err)
		}
		log.Reset()
		if _, ok := b.read("node1"); ok || !strings.Contains(log.String(), what) {
			t.Errorf("read %v, and logged %q, want %q", ok, &log, what)
		}
		if err := os.Chown(b.path, os.Geteuid(), -1); err != nil {
			t.Fatal(err)
		}
	}
}

// Programs of another node, or an incomplete file, are rejected.
func TestBootFileFits(t *testing.T) {
	node, other := ir.Node{Mode: ir.ModeNFTables, Name: "node1"}, ir.Node{Mode: ir.ModeIPVS, Name: "node1"}
	whole := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node}, &ir.Program{Family: ir.IPv6, Node: node})
	for _, c := range []struct {
		programs ir.Programs
		node     string
		want     string // "" if it fits
	}{
		{whole, "node1", ""},
		{whole, "node2", `is for node "node1", but this one is "node2"`},
		{ir.Programs{IPv4: whole.IPv4}, "node1", "has no IPv6"},
		{ir.Programs{IPv6: whole.IPv6}, "node1", "has no IPv4"},
		{ir.NewPrograms(whole.IPv4, &ir.Program{Family: ir.IPv6, Node: other}), "node1", "is for mode nftables in IPv4, and for mode ipvs in IPv6"},
	} {
		err := fits(c.programs, c.node)
		if got := fmt.Sprint(err); got != c.want && (err != nil || c.want != "") {
			t.Errorf("on %s: %s, want %q", c.node, got, c.want)
		}
	}
}

// file returns a boot file in a Status.
func file(b *bootFile) *status.File {
	var st status.Status
	b.report(&st)
	return st.BootFile
}

// A failed write is retried, although nothing has changed since.
func TestBootFileFaults(t *testing.T) {
	applied := func() ir.Programs { return ir.NewPrograms(&ir.Program{Family: ir.IPv4}, &ir.Program{Family: ir.IPv6}) }
	disk := &diskFiles{full: true}
	b := newBootFile(t, disk)
	b.markChanged()
	b.write(applied)
	if _, err := os.Stat(b.path); err == nil {
		t.Fatal("a full disk was written")
	}
	if why := b.failed.Load(); why == nil || *why != "no space left on device" {
		t.Errorf("what failed is not remembered for the status: %v", why)
	}
	disk.full = false
	if !b.write(applied) {
		t.Fatal("nothing is written when there is room again")
	}
	if data, err := os.ReadFile(b.path); err != nil || !bytes.Contains(data, []byte("IPv6")) {
		t.Errorf("the file has %q, %v", data, err)
	}
	if why := b.failed.Load(); why != nil {
		t.Errorf("the file is whole, and counts as not written: %s", *why)
	}
}

func TestBootFile(t *testing.T) {
	snap := snapshot.New()
	manifest.Decode(snap, "cluster", []byte(applytest.Services("a")))
	programs, _ := compiler.Compile(testConfig(ir.ModeNFTables), snap, compiler.Facts{NodeName: "node1"})
	b := newBootFile(t, &diskFiles{})
	applied := func() ir.Programs { return programs }
	if b.write(applied) {
		t.Error("wrote although nothing was offered")
	}
	b.markChanged()
	if !b.write(applied) || b.write(applied) {
		t.Error("what was offered is not written once")
	}
	data, err := os.ReadFile(b.path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ir.ReadJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(programs, got, sameAddrs, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	for _, left := range []int{0, 1, len(data) / 2, len(data) - 2} {
		if err := os.WriteFile(b.path, data[:left], 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		b.log = slog.New(slog.NewTextHandler(&log, nil))
		if _, ok := b.read("node1"); ok || !strings.Contains(log.String(), "is truncated") {
			t.Errorf("read %t with %d bytes, and logged %s", ok, left, &log)
		}
		if reported := file(b); reported.Invalid != "is truncated" {
			t.Errorf("with %d bytes the status has %+v", left, reported)
		}
	}
	b.markChanged()
	if b.write(applied); *file(b) != (status.File{Path: b.path, Modified: file(b).Modified}) {
		t.Errorf("after it was written whole the status has %+v", file(b))
	}
}
