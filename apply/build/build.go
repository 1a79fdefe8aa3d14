// Package build returns how the program was built, as recorded by the go command (debug/buildinfo).
// No linker flags are used.
package build

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
)

// Info describes the source and the toolchain of a program.
type Info struct {
	Version  string `json:"version"`            // module version: v1.2.3, a pseudo-version, "(devel)", or "unknown"
	Commit   string `json:"commit,omitempty"`   // empty if built outside a repository
	Date     string `json:"date,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified,omitempty"` // uncommitted changes
	Go       string `json:"go"`                 // go1.26.0
	Compiler string `json:"compiler"`
	Platform string `json:"platform"` // linux/amd64
}

// Read returns the Info of this program.
func Read() Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return of(info)
}

// Write prints version and platform in one line.
func (i Info) Write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "proxyc %s %s %s\n", i.Version, i.Go, i.Platform)
	return err
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

// MajorMinor returns the first two numbers of a version, as in Kubernetes' build info: 1 and 2 for
// v1.2.3, "" for an invalid version.
func MajorMinor(version string) (major, minor string) {
	rest, ok := strings.CutPrefix(version, "v")
	if !ok {
		return "", ""
	}
	major, rest, _ = strings.Cut(rest, ".")
	minor, _, _ = strings.Cut(rest, ".")
	return major, minor
}

// TreeState returns "clean" or "dirty", as in kubernetes_build_info; "" if the commit is unknown.
func (i Info) TreeState() string {
	switch {
	case i.Commit == "":
		return ""
	case i.Modified:
		return "dirty"
	}
	return "clean"
}
