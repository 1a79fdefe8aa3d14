// Package files finds and reads files with Kubernetes objects. Every command and the daemon read
// the same files below a path, in the same formats.
package files

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf16"
)

// System is the file system interface that the package uses.
type System interface {
	Open(name string) (fs.File, error)
	Stat(name string) (fs.FileInfo, error)
	ReadDir(name string) ([]fs.DirEntry, error)
}

// File is a file to read.
type File struct {
	Name string
	// FromDirectory is set if the file was found in a directory rather than named. It may then contain
	// no Kubernetes objects.
	FromDirectory bool
	Info          fs.FileInfo // when Find found it
}

// Found is the result of Find.
type Found struct {
	Files []File
	// Passed are skipped names that are neither files nor directories. Reading them would block.
	Passed []Passed
	// Unreadable are directories and files that could not be read.
	Unreadable []Unreadable
	// dirs are the directories, without the hidden ones, and links are symbolic links to directories.
	dirs, hidden, links, others []string
	// Excluded counts excluded names; a directory is one.
	Excluded int
	exclude  func(name string) bool
}

// Other is a file that is not read, or a symbolic link to a directory, which is not followed.
type Other struct {
	Name string
	Link bool
	To   string // the directory that a link leads to, if it is one of Find
}

// Passed is a skipped name with its type: "a named pipe".
type Passed struct{ Name, Is string }

// Unreadable is a name with an error, which does not contain the name.
type Unreadable struct {
	Name string
	Err  error
}

// IsObjects reports whether a file of this name in a directory is read: it is a YAML or JSON file and
// not hidden, or one of kustomize.
func IsObjects(name string) bool {
	name = strings.TrimSuffix(name, ".gz")
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) && !IsHidden(name) || IsKustomization(name)
}

// IsKustomization reports whether kustomize reads a file of this name.
func IsKustomization(name string) bool {
	return slices.Contains([]string{"kustomization.yaml", "kustomization.yml", "Kustomization"}, filepath.Base(name))
}

// IsHidden reports whether a directory of this name is skipped. Editors, version control and
// ConfigMap volumes create such directories.
func IsHidden(name string) bool { return strings.HasPrefix(name, ".") }

// Find returns the files in and below a directory that may contain objects, in order of name, without
// names that exclude accepts. If path is a file, it returns that file. Links to directories below path
// are not followed, so there are no cycles.
func Find(sys System, path string, exclude func(name string) bool) (*Found, error) {
	info, err := sys.Stat(path)
	if err != nil {
		return nil, Reason(err)
	}
	found := &Found{exclude: exclude}
	if !info.IsDir() {
		found.Files = []File{{Name: path, Info: info}}
		return found, nil
	}
	found.walk(sys, path)
	return found, nil
}

func (f *Found) walk(sys System, dir string) {
	entries, err := sys.ReadDir(dir)
	if err != nil {
		f.Unreadable = append(f.Unreadable, Unreadable{dir, Reason(err)})
		return
	}
	f.dirs = append(f.dirs, dir)
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		switch {
		case f.exclude != nil && f.exclude(name):
			f.Excluded++
		case entry.IsDir() && entry.Name() == ".git":
		case entry.IsDir() && IsHidden(entry.Name()):
			f.hidden = append(f.hidden, name)
		case entry.IsDir():
			f.walk(sys, name)
		case entry.Type().IsRegular() && !IsObjects(entry.Name()):
			f.others = append(f.others, name)
		default:
			f.add(sys, name)
		}
	}
}

// add adds an entry of a directory that is a file with objects or no file.
func (f *Found) add(sys System, name string) {
	info, err := sys.Stat(name)
	switch objects := IsObjects(filepath.Base(name)); {
	case err == nil && info.IsDir():
		f.links = append(f.links, name)
	case !objects && err == nil && info.Mode().IsRegular():
		f.others = append(f.others, name)
	case !objects:
	case err != nil:
		f.Unreadable = append(f.Unreadable, Unreadable{name, Reason(err)})
	case info.Mode().IsRegular():
		f.Files = append(f.Files, File{name, true, info})
	default:
		f.Passed = append(f.Passed, Passed{name, KindOf(info.Mode())})
	}
}

// Others returns what is not read of the directory, with the files of hidden directories.
func (f *Found) Others(sys System) (all []Other) {
	for _, name := range f.others {
		all = append(all, Other{Name: name})
	}
	for _, name := range f.links {
		all = append(all, Other{Name: name, Link: true, To: f.dirOf(sys, name)})
	}
	for _, dir := range f.hidden {
		below := &Found{exclude: f.exclude}
		below.walk(sys, dir)
		for _, file := range below.Files {
			all = append(all, Other{Name: file.Name})
		}
		all = append(all, below.Others(sys)...)
	}
	return all
}

// dirOf returns the directory of Find that a link leads to; "" for none.
func (f *Found) dirOf(sys System, link string) string {
	to, err := sys.Stat(link)
	for _, dir := range slices.Concat(f.dirs, f.hidden) {
		if info, err2 := sys.Stat(dir); err == nil && err2 == nil && os.SameFile(to, info) {
			return dir
		}
	}
	return ""
}

// KindOf describes a file mode that is neither a file nor a directory.
func KindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return m.String()
}

// Reason returns the cause of a file error, without its name and operation.
func Reason(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// Unlimited is the value of left without a limit, in bytes.
const Unlimited = math.MaxInt64 - 1

// ErrTooMuch is returned when the limit is exceeded.
var ErrTooMuch = errors.New("too much")

// TooMuch returns the error for exceeding the limit. what is its subject: "with this file, the snapshot"
// after the name of a file.
func TooMuch(what string, limit int64) error {
	return fmt.Errorf("%s has more than the %d bytes of --snapshot-limit", what, limit)
}

// Read reads a file, which may be gzip-compressed, and subtracts its size from left. If it is
// larger than left, Read stops and returns ErrTooMuch. Errors do not contain the name.
func Read(sys System, name string, left *int64) ([]byte, error) {
	file, err := sys.Open(name)
	if err != nil {
		return nil, Reason(err)
	}
	defer file.Close()
	size := int64(0)
	if info, err := file.Stat(); err == nil {
		size = info.Size()
	}
	return ReadFrom(file, size, left)
}

// ReadFrom is like Read for an open file of about size bytes.
func ReadFrom(from io.Reader, size int64, left *int64) ([]byte, error) {
	data, err := readAll(from, size, left)
	if err != nil || !bytes.HasPrefix(data, []byte("\x1f\x8b")) {
		return fromUTF16(data), Reason(err)
	}
	// Count only the uncompressed data.
	*left += int64(len(data))
	unzip, err := gzip.NewReader(bytes.NewReader(data))
	if err == nil {
		data, err = readAll(unzip, 0, left)
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return nil, errors.New("cut off: the compressed data ends before it is complete")
	case err != nil:
		return nil, Reason(err)
	case bytes.HasPrefix(data[min(len(data), 257):], []byte("ustar")):
		return nil, errors.New("is a tar archive: unpack it, and give the directory")
	}
	return fromUTF16(data), nil
}

// fromUTF16 converts a text with a UTF-16 byte order mark to UTF-8; PowerShell redirections write
// UTF-16. Other data is returned unchanged.
func fromUTF16(data []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte("\xff\xfe")):
		order = binary.LittleEndian
	case bytes.HasPrefix(data, []byte("\xfe\xff")):
		order = binary.BigEndian
	default:
		return data
	}
	units := make([]uint16, 0, len(data)/2)
	for at := 2; at+1 < len(data); at += 2 {
		units = append(units, order.Uint16(data[at:]))
	}
	return []byte(string(utf16.Decode(units)))
}

// pieceSize is the size of reads in bytes if the total size is unknown.
const pieceSize = 1 << 20

// readAll reads about size bytes, at most left, and subtracts the result from left.
func readAll(from io.Reader, size int64, left *int64) ([]byte, error) {
	if size > *left {
		return nil, ErrTooMuch
	}
	// Read in pieces, so that excessive input does not use a multiple of the limit.
	from = io.LimitReader(from, *left+1)
	var pieces [][]byte
	p := make([]byte, 0, size+bytes.MinRead)
	for {
		n, err := from.Read(p[len(p):cap(p)])
		p = p[:len(p)+n]
		*left -= int64(n)
		switch {
		case *left < 0:
			return nil, ErrTooMuch
		case err == io.EOF && len(pieces) == 0:
			return p, nil
		case err == io.EOF:
			return bytes.Join(append(pieces, p), nil), nil
		case err != nil:
			return nil, err
		case len(p) == cap(p):
			pieces, p = append(pieces, p), make([]byte, 0, pieceSize)
		}
	}
}
