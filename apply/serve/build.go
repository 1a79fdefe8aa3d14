package serve

import (
	"runtime/debug"
	"strings"
)

// build is what the program is built from; empty where the Go tool did not say.
type build struct{ major, minor, commit, tree, date string }

// newBuild takes the numbers from a version: v1.2.3 gives 1 and 2.
func newBuild(version string) (b build) {
	if rest, ok := strings.CutPrefix(version, "v"); ok {
		b.major, rest, _ = strings.Cut(rest, ".")
		b.minor, _, _ = strings.Cut(rest, ".")
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.commit = s.Value
		case "vcs.time":
			b.date = s.Value
		case "vcs.modified":
			b.tree = map[string]string{"true": "dirty", "false": "clean"}[s.Value]
		}
	}
	return b
}
