package daemon

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// A file that may be truncated is distinguished from a complete one.
func TestConfigCutOff(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) fs.FileInfo {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	one, other := file("one"), file("other")
	const whole = "mode: nftables\nclusterCIDR: 10.244.0.0/16\n"
	for _, c := range []struct {
		what, before, now string
		written, replaced bool // result if the file was modified in place, or replaced
	}{
		{"in a line", whole, whole[:len(whole)-2], true, true},
		{"in the first line", whole, whole[:7], true, true},
		{"nothing left", whole, "", true, true},
		{"behind a line", whole, "mode: nftables\n", true, false},
		{"behind a line, without its end", whole, "mode: nftables", true, false},
		{"behind a line with a return", "mode: nftables\r\nclusterCIDR: 10.244.0.0/16\r\n", "mode: nftables", true, false},
		{"without the last line break", whole, whole[:len(whole)-1], false, false},
		{"without empty lines", whole + "\n\n", whole, false, false},
		{"the same", whole, whole, false, false},
		{"more", whole, whole + "portRange: \"\"\n", false, false},
		{"more, before without a line break", whole[:len(whole)-1], whole, false, false},
		{"another end", whole, "mode: nftables\n# clusterCIDR is the default\n", false, false},
		{"another text", whole, "mode: iptables\n", false, false},
		{"a comment, so that it is meant", whole, "mode: nftables\n#\n", false, false},
	} {
		before := &loaded{text: []byte(c.before), info: one}
		for info, want := range map[fs.FileInfo]bool{one: c.written, other: c.replaced} {
			if got := (&loaded{text: []byte(c.now), info: info}).truncated(before); got != want {
				t.Errorf("%s, in %s: %t, want %t", c.what, info.Name(), got, want)
			}
		}
	}
	if (&loaded{text: []byte("mode: nftables\n")}).truncated(&loaded{}) {
		t.Error("cut off, though nobody knows what was there before")
	}
}

// pipeFiles are files that are all named pipes.
type pipeFiles struct{ Files }

func (pipeFiles) Stat(string) (fs.FileInfo, error) { return pipeInfo{}, nil }

type pipeInfo struct{ fs.FileInfo }

func (pipeInfo) Mode() fs.FileMode { return fs.ModeNamedPipe }

// A configuration that became a named pipe is rejected without opening it, which would block.
func TestConfigPipe(t *testing.T) {
	p := &process{Options: &Options{Files: pipeFiles{}, SourceOptions: SourceOptions{ConfigFile: "config.yaml", Resolve: func() (*config.Resolved, []byte, diag.List) {
		t.Error("the pipe is opened")
		return nil, nil, nil
	}}}}
	if _, found := p.load(); firstError(found) != "config.yaml: must be a file, is a named pipe" {
		t.Errorf("got %v", found)
	}
}
