package review

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler/diag"
)

// StandardInput is the file name for standard input.
const StandardInput = "-"

// Files reads the files of a command. The name "-" is standard input.
type Files struct {
	System  files.System
	Stdin   *Stdin
	Exclude []string // patterns of names in directories
}

// Stdin is standard input. Both sides of a comparison may read it for the same file, so it is kept.
type Stdin struct {
	io.Reader
	read bool
	data []byte
	err  error
}

// all returns the whole input, as files.ReadFrom does.
func (s *Stdin) all(left *int64) ([]byte, error) {
	if s.read {
		*left -= int64(len(s.data))
		return s.data, s.err
	}
	s.read = true
	s.data, s.err = files.ReadFrom(s, 0, left)
	return s.data, s.err
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
		return f.Stdin.all(left)
	}
	return files.Read(f.System, name, left)
}

// Expand returns the files for a name, and the content of the ignoreFile if it is a directory with one. It
// adds findings about skipped files.
func (f Files) Expand(name string, diags *diag.List) (_ *files.Found, ignored []byte, _ error) {
	if name == StandardInput {
		return &files.Found{Files: []files.File{{Name: name}}}, nil, nil
	}
	patterns := slices.Clone(f.Exclude)
	ignored, _ = f.ReadFile(filepath.Join(name, ignoreFile))
	for line := range strings.Lines(string(ignored)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			patterns = append(patterns, line)
		}
	}
	excluded := matcher(patterns)
	found, err := files.Find(f.System, name, func(file string) bool {
		below, err := filepath.Rel(name, file)
		return err == nil && excluded.MatchString(filepath.ToSlash(below))
	})
	if err != nil {
		return new(files.Found), ignored, err
	}
	for _, p := range found.Passed {
		diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.FileSkipped, File: p.Name, Msg: "is not read: it is " + p.Is})
	}
	for _, u := range found.Unreadable {
		diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: u.Name, Msg: u.Err.Error()})
	}
	if found.Excluded > 0 {
		diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.FileSkipped, File: name, Msg: Counted(found.Excluded, "name") + " excluded"})
	}
	if len(found.Files)+len(found.Unreadable) == 0 {
		return new(files.Found), ignored, errors.New("has no .yaml, .yml or .json file")
	}
	return found, ignored, nil
}

// ignoreFile contains patterns of names in its directory, one a line.
const ignoreFile = ".proxycignore"

// wildcards translates those of .gitignore to regular expressions.
var wildcards = strings.NewReplacer(`\*\*/`, `(.*/)?`, `\*\*`, `.*`, `\*`, `[^/]*`, `\?`, `[^/]`)

// matcher matches the names below a directory that a pattern of .gitignore matches.
func matcher(patterns []string) *regexp.Regexp {
	all := []string{"$^"} // no name
	for _, p := range patterns {
		p = strings.TrimSuffix(p, "/")
		from := "(^|/)"
		if strings.Contains(p, "/") {
			from = "^"
		}
		all = append(all, from+wildcards.Replace(regexp.QuoteMeta(strings.TrimPrefix(p, "/")))+"$")
	}
	return regexp.MustCompile(strings.Join(all, "|"))
}

// reach returns a sum of a file or directory, with what its kustomizations list. Instead of what cannot be read, or exceeds
// a limit, it contains the whole name, which is equal only to itself. The history of git is ignored.
func (f Files) reach(name string) [sha256.Size]byte {
	all, names, left := sha256.New(), []string{name}, int64(configLimit)
	for i := 0; i < len(names); i++ {
		root := names[i]
		_ = fs.WalkDir(f.System, root, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && (entry.Type()&^fs.ModeSymlink != 0 || name != root && isDocument(name) || strings.Contains(filepath.ToSlash(name)+"/", "/.git/")) {
				return nil
			}
			whole, _ := filepath.Abs(name)
			data := []byte(whole)
			if info, err := f.System.Stat(name); err == nil && info.Mode().IsRegular() && info.Size() <= left {
				if text, err := fs.ReadFile(f.System, name); err == nil {
					data, left = text, left-info.Size()
				}
			}
			fmt.Fprintf(all, "%q%d %s", filepath.ToSlash(strings.TrimPrefix(name, root)), len(data), data)
			paths, _ := listedBy(name, data)
			names = append(names, slices.DeleteFunc(paths, func(path string) bool { return slices.Contains(names, path) })...)
			return nil
		})
	}
	return [sha256.Size]byte(all.Sum(nil))
}

// newest returns the modification time of the newest of files, or of those in directories; zero if
// unknown, as for standard input.
func (f Files) newest(names []string) (at time.Time) {
	for _, name := range names {
		if name == StandardInput {
			return time.Time{}
		}
		found, _, err := f.Expand(name, new(diag.List))
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

// Date returns the date of a report: SOURCE_DATE_EPOCH, as in reproducible builds, or else that of the
// newest file; "" if unknown. It does not depend on the time of the report.
func (f Files) Date(names []string) (string, error) {
	const name = "SOURCE_DATE_EPOCH"
	at := f.newest(names)
	if text := os.Getenv(name); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", fmt.Errorf("%s: must be a number of seconds, got %q", name, text)
		}
		at = time.Unix(seconds, 0)
	}
	if at.IsZero() {
		return "", nil
	}
	return at.UTC().Format(time.RFC3339), nil
}
