// Package files finds the files of objects below a path and reads them: the
// same ones, in the same forms, for every verb and for the daemon.
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
	"path/filepath"
	"strings"
	"unicode/utf16"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// System is the part of a file system that is read.
type System interface {
	Open(name string) (fs.File, error)
	Stat(name string) (fs.FileInfo, error)
	ReadDir(name string) ([]fs.DirEntry, error)
}

// File is a file to read.
type File struct {
	Name string
	// FromDirectory reports that nobody named it: a directory has it, and it may be no file of objects.
	FromDirectory bool
}

// Found is what stands at a path.
type Found struct {
	Files []File
	// Directories are the path, if it is one, and all below it that are looked into.
	Directories []string
	// Passed are names of files that are neither a file nor a directory, and would hold up their reader.
	Passed []Passed
	// Unreadable are directories and files of which nobody knows what is in them.
	Unreadable []Unreadable
}

// Passed is a name with what it stands for: "a named pipe".
type Passed struct{ Name, Is string }

// Unreadable is a name with the reason, which does not have the name.
type Unreadable struct {
	Name string
	Err  error
}

// IsObjects reports whether a file of this name is read where a directory is given.
func IsObjects(name string) bool {
	return snapshot.NamesObjects(strings.TrimSuffix(name, ".gz"))
}

// IsHidden reports whether a directory of this name is passed over, as those are
// that editors, version control and mounted ConfigMaps have for themselves.
func IsHidden(name string) bool { return strings.HasPrefix(name, ".") }

// Find returns the files in a directory and below it that can hold objects, in
// order of name; what is no directory stands for itself. A link to a directory
// is not followed below the path, so that no way leads in a circle.
func Find(sys System, path string) (*Found, error) {
	info, err := sys.Stat(path)
	if err != nil {
		return nil, Reason(err)
	}
	found := new(Found)
	if !info.IsDir() {
		found.Files = []File{{Name: path}}
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
	f.Directories = append(f.Directories, dir)
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		switch {
		case entry.IsDir():
			if !IsHidden(entry.Name()) {
				f.walk(sys, name)
			}
		case IsObjects(entry.Name()):
			info, err := sys.Stat(name)
			switch {
			case err != nil:
				f.Unreadable = append(f.Unreadable, Unreadable{name, Reason(err)})
			case info.Mode().IsRegular():
				f.Files = append(f.Files, File{name, true})
			case !info.IsDir():
				f.Passed = append(f.Passed, Passed{name, KindOf(info.Mode())})
			}
		}
	}
}

// KindOf names what is neither a file nor a directory.
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

// Reason returns what is wrong with a file, without its name and what was tried.
func Reason(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// Unlimited is how much may be read where nothing limits it.
const Unlimited = math.MaxInt64 - 1

// ErrTooMuch is what more than the limit gives.
var ErrTooMuch = errors.New("too much")

// TooMuch returns the error for what has more than the limit: "with it the
// snapshot", where the error stands behind the name of a file.
func TooMuch(what string, limit int64) error {
	return fmt.Errorf("%s has more than the %d bytes of --snapshot-limit", what, limit)
}

// Read reads a file that may be compressed with gzip, and takes what it has off
// from left. It reads no more than that: then it returns ErrTooMuch. An error
// does not have the name.
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

// ReadFrom is Read of what is open already, and has some size bytes.
func ReadFrom(from io.Reader, size int64, left *int64) ([]byte, error) {
	data, err := readAll(from, size, left)
	if err != nil || !bytes.HasPrefix(data, []byte("\x1f\x8b")) {
		return fromUTF16(data), Reason(err)
	}
	// What is compressed counts as little as what it stands for counts as much.
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

// fromUTF16 returns a text in UTF-8 that has the byte order mark of UTF-16, as
// PowerShell writes what > redirects. Any other is returned as it is.
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

// pieceSize is how much is read at a time where nobody knows how much there is.
const pieceSize = 1 << 20

// readAll reads all there is, some size bytes, but no more than left, and takes
// it off from that.
func readAll(from io.Reader, size int64, left *int64) ([]byte, error) {
	if size > *left {
		return nil, ErrTooMuch
	}
	// In pieces, so that what is too much does not take a multiple of the limit.
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
