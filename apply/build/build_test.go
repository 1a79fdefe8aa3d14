package build

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInfo(t *testing.T) {
	with := Info{Go: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "abc"},
			{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: modified}}
	}
	for _, tt := range []struct {
		name string
		in   debug.BuildInfo
		want func(*Info)
		tree string
	}{
		{"nothing is known", debug.BuildInfo{}, func(i *Info) { i.Version = "unknown" }, ""},
		{"a release", debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: vcs("false")}, func(i *Info) {
			i.Version, i.Commit, i.Date = "v1.2.3", "abc", "2026-01-02T03:04:05Z"
		}, "clean"},
		{"a tree with changes", debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: vcs("true")}, func(i *Info) {
			i.Version, i.Commit, i.Date, i.Modified = "(devel)", "abc", "2026-01-02T03:04:05Z", true
		}, "dirty"},
	} {
		want := with
		tt.want(&want)
		got := of(&tt.in)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
		if got.TreeState() != tt.tree {
			t.Errorf("%s: tree %q, want %q", tt.name, got.TreeState(), tt.tree)
		}
	}
}

func TestMajorMinor(t *testing.T) {
	for version, want := range map[string][2]string{"v1.2.3": {"1", "2"}, "v0.0.0-2026-abc": {"0", "0"}, "(devel)": {}, "unknown": {}} {
		if major, minor := MajorMinor(version); [2]string{major, minor} != want {
			t.Errorf("%s: %q %q, want %q", version, major, minor, want)
		}
	}
}
