package config

import (
	"fmt"

	"github.com/proxyc/proxyc/compiler/diag"
)

// Source says where a value in force comes from: a line of a file, a flag, or
// a default. The zero value is the plain default.
type Source struct {
	File   string
	Line   int
	column int    // 0 only where there is no line
	Flag   string // "--proxy-mode"
	// Default says why a default is what it is, where it depends on something
	// ("from bindAddress"). File and Line then tell where the file has the zero
	// value that counts as not set (CFG-5).
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
	switch {
	case s.Flag != "":
		return s.Flag
	case !s.isDefault && place != "":
		return place
	}
	out := "default"
	if s.Default != "" {
		out += " " + s.Default
	}
	if place != "" {
		out += ", as the value at " + place + " counts as not set"
	}
	return out
}

// sources has for each path that was set where that happened. It also knows
// the places of sections ("iptables") and of list items ("vmodule[0]").
type sources map[string]Source

// setDefault notes that the value at path is a default, and why.
func (s sources) setDefault(path, why string) {
	src := s[path]
	s[path] = Source{File: src.File, Line: src.Line, column: src.column, Default: why, isDefault: true}
}

// locate completes diagnostics that only know their path with the place of the
// value, or of the closest section around it, in file; or with its flag.
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

// place gives a finding the place of the value at its path, of the closest
// section around it that there is, or of the configuration as a whole.
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

// Locate completes findings about the configuration that are made when it is
// used, and so only know a path, with the place of the value or its flag.
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
