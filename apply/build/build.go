// Package build tells what the program was built from, as the Go tool recorded
// it (debug/buildinfo): nothing is set by flags of the linker.
package build

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
)

// Info is what a program was built from and with.
type Info struct {
	Version  string `json:"version"`            // of the module: v1.2.3, a pseudo-version, "(devel)", or "unknown"
	Commit   string `json:"commit,omitempty"`   // empty where the Go tool saw no repository
	Date     string `json:"date,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified,omitempty"` // the tree was not that of the commit
	Go       string `json:"go"`                 // go1.26.0
	Compiler string `json:"compiler"`
	Platform string `json:"platform"` // linux/amd64
}

// Read returns what this program was built from.
func Read() Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return of(info)
}

func of(info *debug.BuildInfo) Info {
	i := Info{
		Version: cmp.Or(info.Main.Version, "unknown"),
		Go:      runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Commit = s.Value
		case "vcs.time":
			i.Date = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
	return i
}

// MajorMinor returns the numbers of a version as Kubernetes' programs tell them:
// 1 and 2 of v1.2.3, nothing of what is no version.
func MajorMinor(version string) (major, minor string) {
	rest, ok := strings.CutPrefix(version, "v")
	if !ok {
		return "", ""
	}
	major, rest, _ = strings.Cut(rest, ".")
	minor, _, _ = strings.Cut(rest, ".")
	return major, minor
}

// TreeState returns "clean" or "dirty", as kubernetes_build_info has it; "" where
// the commit is not known.
func (i Info) TreeState() string {
	switch {
	case i.Commit == "":
		return ""
	case i.Modified:
		return "dirty"
	}
	return "clean"
}
