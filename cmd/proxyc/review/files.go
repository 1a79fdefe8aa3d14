package review

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler/diag"
)

// StandardInput is the file name for standard input.
const StandardInput = "-"

// Files reads the files of a command. The name "-" is standard input.
type Files struct {
	System files.System
	Stdin  io.Reader
}

// configLimit is the maximum size of a configuration file in bytes. The API server accepts objects
// of at most 3 MiB; a List of ConfigMaps may contain many.
const configLimit = 64 << 20

// ReadFile reads a configuration file, or standard input for "-".
func (f Files) ReadFile(name string) ([]byte, error) {
	left := int64(configLimit)
	data, err := f.Read(name, &left)
	if errors.Is(err, files.ErrTooMuch) {
		err = fmt.Errorf("must be at most %dMi", configLimit>>20)
	}
	return data, err
}

// Read reads a file as files.Read does, or standard input for "-".
func (f Files) Read(name string, left *int64) ([]byte, error) {
	if name == StandardInput {
		return files.ReadFrom(f.Stdin, 0, left)
	}
	return files.Read(f.System, name, left)
}

// Expand returns the files for a name, and adds findings about skipped ones.
func (f Files) Expand(name string, diags *diag.List) (*files.Found, error) {
	if name == StandardInput {
		return &files.Found{Files: []files.File{{Name: name}}}, nil
	}
	found, err := files.Find(f.System, name)
	if err != nil {
		return new(files.Found), err
	}
	for _, p := range found.Passed {
		diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.FileSkipped, File: p.Name, Msg: "is not read: it is " + p.Is})
	}
	for _, u := range found.Unreadable {
		diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: u.Name, Msg: u.Err.Error()})
	}
	if len(found.Files)+len(found.Unreadable) == 0 {
		return new(files.Found), errors.New("has no .yaml, .yml or .json file")
	}
	return found, nil
}

// Newest returns the modification time of the newest of files, or of those in directories; zero if
// unknown, as for standard input.
func (f Files) Newest(names []string) (at time.Time) {
	for _, name := range names {
		if name == StandardInput {
			return time.Time{}
		}
		found, err := f.Expand(name, new(diag.List))
		if err != nil {
			continue // reported when it is read
		}
		for _, one := range found.Files {
			if info, err := f.System.Stat(one.Name); err == nil && info.ModTime().After(at) {
				at = info.ModTime()
			}
		}
	}
	return at
}
