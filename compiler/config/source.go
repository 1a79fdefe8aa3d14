package config

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
)

// Source is the source of an effective value: a line of a file, a flag, or a
// default. The zero value is the plain default.
type Source struct {
	File   string
	Line   int
	column int    // 0 only if Line is 0
	Flag   string // "--proxy-mode"
	// Default is the reason for a default that depends on another value ("from
	// bindAddress"). File and Line are then the place of a zero value, which
	// counts as unset (CFG-5), or the place of the other values of a map.
	Default   string
	isDefault bool
}

// String returns "config.yaml:12", "--proxy-mode", "default", "default from
// bindAddress" or "default, as the value at config.yaml:12 counts as not set".
func (s Source) String() string {
	place := s.File
	if s.Line > 0 {
		place = fmt.Sprintf("%s:%d", s.File, s.Line)
	}
	place = cmp.Or(s.Flag, place)
	out := strings.TrimSuffix("default "+s.Default, " ")
	switch {
	case place == "":
		return out
	case s.isDefault:
		return out + ", as the value at " + place + " is treated as not set"
	case s.Default != "":
		return place + ", and " + out
	}
	return place
}

// sources maps each path that was set to its source. It includes sections
// ("iptables") and list items ("vmodule[0]").
type sources map[string]Source

// setDefault records that the value at path is a default, and the reason.
func (s sources) setDefault(path, why string) {
	src := s[path]
	s[path] = Source{File: src.File, Line: src.Line, column: src.column, Default: why, isDefault: true}
}

// locate adds positions to diagnostics with only a path: that of the value or of
// its closest section in file, or its flag.
func (s sources) locate(file string, l diag.List) {
	for i := range l {
		d := &l[i]
		if d.File != "" || d.Path == "" {
			continue
		}
		d.File = file
		s.place(d)
	}
}

// place sets the position of a finding: that of the value at its path, of the
// closest section around it, or of the whole configuration.
func (s sources) place(d *diag.Diagnostic) {
	for p := d.Path; ; p = parent(p) {
		if src, ok := s[p]; ok && (src.Flag != "" || src.Line > 0) {
			d.File, d.Line, d.Column, d.Object = src.File, src.Line, src.column, src.Flag
			return
		}
		if p == "" {
			return
		}
	}
}

// Locate adds positions to findings about the configuration from later stages,
// which have only a path.
func (r *Resolved) Locate(list diag.List) {
	for i := range list {
		d := &list[i]
		if d.Object != "config" || d.File != "" {
			continue
		}
		if r.file() != "" {
			d.File, d.Object = r.file(), ""
		}
		r.sources.place(d)
	}
}
