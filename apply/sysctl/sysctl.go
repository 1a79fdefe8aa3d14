// Package sysctl brings the kernel settings of a node to what the
// configuration and the mode need: connection tracking (DMN-33), and what the
// dataplane cannot work without. What is wanted is a pure decision; a setting
// is written only where it differs.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Where the settings are, below the root directory.
const (
	procSys  = "proc/sys/"
	hashsize = "sys/module/nf_conntrack/parameters/hashsize"
	oomScore = "proc/self/oom_score_adj"
)

// Setting is one kernel setting that something asks for.
type Setting struct {
	Path string    `json:"path"` // below the root directory, without a slash in front
	Want string    `json:"want"`
	Have string    `json:"have"` // what it was when Diff read it
	Why  ir.Origin `json:"why"`
	// AtLeast: a greater number than Want is as good.
	AtLeast bool `json:"-"`
	// Optional: the node works without it, only less well.
	Optional bool `json:"-"`
}

// Name returns a sysctl's own name, or the path of what is none.
func (s Setting) Name() string {
	if key, ok := strings.CutPrefix(s.Path, procSys); ok {
		return strings.ReplaceAll(key, "/", ".")
	}
	return "/" + s.Path
}

// String returns "net.ipv4.ip_forward = 1 (was 0)".
func (s Setting) String() string { return fmt.Sprintf("%s = %s (was %s)", s.Name(), s.Want, s.Have) }

// holds reports whether a value is as wanted.
func (s Setting) holds(have string) bool {
	if have == s.Want {
		return true
	}
	h, errH := strconv.ParseInt(have, 10, 64)
	w, errW := strconv.ParseInt(s.Want, 10, 64)
	return s.AtLeast && errH == nil && errW == nil && h >= w
}

// Root is the directory in which the kernel's files are: "/", or another in tests.
type Root string

// Read returns the value of a setting, without white space around it.
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

// Diff returns the settings that are not as wanted, with what they are. One that
// cannot be read is an *Error; the others are given all the same.
func Diff(root Root, wanted []Setting) ([]Setting, error) {
	var out []Setting
	var errs []error
	for _, s := range wanted {
		have, err := root.Read(s.Path)
		if err != nil {
			errs = append(errs, &Error{Setting: s, Err: err})
			continue
		}
		if !s.holds(have) {
			s.Have = have
			out = append(out, s)
		}
	}
	return out, errors.Join(errs...)
}

// Write sets what Diff gave, in order, and goes on after an error.
func Write(root Root, settings []Setting) error {
	var errs []error
	for _, s := range settings {
		if err := root.Write(s.Path, s.Want); err != nil {
			errs = append(errs, &Error{Setting: s, Err: err})
		}
	}
	return errors.Join(errs...)
}

// Undo returns the settings that bring back what was before Write set what Diff gave, the
// last one first. What could not be written, or somebody else has set meanwhile, is not among them.
func Undo(root Root, written []Setting) []Setting {
	var out []Setting
	for _, s := range slices.Backward(written) {
		if now, err := root.Read(s.Path); err == nil && s.holds(now) {
			s.Want, s.Have, s.AtLeast = s.Have, now, false
			out = append(out, s)
		}
	}
	return out
}

// Error is a setting that cannot be read or written.
type Error struct {
	Setting Setting
	Err     error
}

// Error names the file, the value, who asks for it, the cause, and a way out.
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

// cause leaves out the path, which the message has already.
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
