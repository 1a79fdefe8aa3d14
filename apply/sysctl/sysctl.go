// Package sysctl sets the kernel settings of a node that the configuration and the mode require:
// connection tracking (DMN-33, conntrack sysctls are set once at start), and those that the
// dataplane depends on. The set of settings is a pure function. A setting is written only if it
// differs.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Paths of the settings, below the root directory.
const (
	procSys  = "proc/sys/"
	hashsize = "sys/module/nf_conntrack/parameters/hashsize"
	oomScore = "proc/self/oom_score_adj"
)

// Setting is a required kernel setting.
type Setting struct {
	Path string    `json:"path"` // below the root directory, without a leading slash
	Want string    `json:"want"`
	Have string    `json:"have"` // the value that Diff read
	Why  ir.Origin `json:"why"`
	// AtLeast accepts numbers above Want.
	AtLeast bool `json:"-"`
	// Optional is set if the node also works without the setting.
	Optional bool `json:"-"`
}

// Name returns the name of a sysctl, or the path of another setting.
func (s Setting) Name() string {
	if key, ok := strings.CutPrefix(s.Path, procSys); ok {
		return strings.ReplaceAll(key, "/", ".")
	}
	return "/" + s.Path
}

// String returns the setting as "net.ipv4.ip_forward = 1 (was 0)".
func (s Setting) String() string { return fmt.Sprintf("%s = %s (was %s)", s.Name(), s.Want, s.Have) }

// satisfiedBy reports whether a value satisfies the setting.
func (s Setting) satisfiedBy(have string) bool {
	if have == s.Want {
		return true
	}
	h, errH := strconv.ParseInt(have, 10, 64)
	w, errW := strconv.ParseInt(s.Want, 10, 64)
	return s.AtLeast && errH == nil && errW == nil && h >= w
}

// Root is the directory that contains proc and sys: "/" except in tests.
type Root string

// Read returns the value of a setting, trimmed.
func (r Root) Read(path string) (string, error) {
	data, err := os.ReadFile(filepath.Join(string(r), path))
	return strings.TrimSpace(string(data)), err
}

// Write sets a setting.
func (r Root) Write(path, value string) error {
	f, err := os.OpenFile(filepath.Join(string(r), path), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Diff returns the settings whose value differs, with that value in Have. A setting that cannot be
// read adds an *Error to err; the others are still returned.
func Diff(root Root, wanted []Setting) ([]Setting, error) {
	var out []Setting
	var errs []error
	for _, s := range wanted {
		have, err := root.Read(s.Path)
		if err != nil {
			errs = append(errs, &Error{Setting: s, Err: err})
			continue
		}
		if !s.satisfiedBy(have) {
			s.Have = have
			out = append(out, s)
		}
	}
	return out, errors.Join(errs...)
}

// Write writes settings from Diff in order. It continues after errors.
func Write(root Root, settings []Setting) error {
	var errs []error
	for _, s := range settings {
		if err := root.Write(s.Path, s.Want); err != nil {
			errs = append(errs, &Error{Setting: s, Err: err})
		}
	}
	return errors.Join(errs...)
}

// Error is a setting that cannot be read or written.
type Error struct {
	Setting Setting
	Err     error
}

// Error describes the file, the value, its origin, the cause, and a fix.
func (e *Error) Error() string {
	s := e.Setting
	have := ""
	if s.Have != "" {
		have = ", is " + s.Have
	}
	return fmt.Sprintf("/%s: must be %s for %s%s: %v (%s)", s.Path, s.Want, s.Why, have, cause(e.Err), e.hint())
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// cause removes the path from an error, since the message already contains it.
func cause(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (e *Error) hint() string {
	path := e.Setting.Path
	switch {
	case errors.Is(e.Err, fs.ErrNotExist) && strings.HasPrefix(path, procSys+"net/ipv4/vs/"):
		return "load kernel module ip_vs"
	case errors.Is(e.Err, fs.ErrNotExist) && strings.Contains(path, "nf_conntrack"):
		return "load kernel module nf_conntrack"
	case strings.HasPrefix(e.Setting.Why.Field, "conntrack."):
		return "run with --init-only where it can be written, or set " + e.Setting.Why.Field + " to 0 or false to leave the kernel's value"
	}
	return "run with --init-only where it can be written, or set it on the host"
}
