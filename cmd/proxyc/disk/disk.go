// Package disk is the file system interface of the commands. Files are written atomically.
package disk

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Disk is the file system interface of the commands.
type Disk interface {
	ReadFile(name string) ([]byte, error)
	Open(name string) (fs.File, error)
	Stat(name string) (fs.FileInfo, error)
	ReadDir(name string) ([]fs.DirEntry, error)
	MkdirAll(dir string) error
	// Create creates a file that only its owner may read, for writing in pieces.
	Create(name string) (io.WriteCloser, error)
	// CreateTemp creates a file in dir whose name starts with a dot.
	CreateTemp(dir string, mode fs.FileMode) (Temp, error)
	// Destination resolves symbolic links. It refuses those that another user created in a directory
	// such as /tmp. For a device or pipe, which must not be replaced by a file, it also returns a writer.
	Destination(name string) (file string, special io.WriteCloser, err error)
	Rename(from, to string) error
	Remove(name string) error
}

// Temp is a temporary file.
type Temp interface {
	io.WriteCloser
	Name() string
	Sync() error
}

// OS is the Disk of the operating system.
type OS struct{}

func (OS) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

func (OS) Open(name string) (fs.File, error) { return os.Open(name) }

func (OS) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

func (OS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

func (OS) MkdirAll(dir string) error {
	if err := checkLinks(dir); err != nil {
		return err
	}
	return ofFile(dir, os.MkdirAll(dir, 0o755))
}

func (OS) Create(name string) (io.WriteCloser, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, OwnerOnly)
}

func (OS) Destination(name string) (string, io.WriteCloser, error) {
	if err := checkLinks(name); err != nil {
		return "", nil, err
	}
	if is, err := os.Stat(name); err == nil && !is.Mode().IsRegular() && !is.IsDir() {
		special, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return "", nil, err
		}
		return name, special, nil
	}
	if to, err := filepath.EvalSymlinks(name); err == nil {
		name = to
	}
	return name, nil, nil
}

func (OS) Rename(from, to string) error { return os.Rename(from, to) }

func (OS) Remove(name string) error { return os.Remove(name) }

// CreateTemp never removes the file of a killed program: its name could be that of a user's file.
func (OS) CreateTemp(dir string, mode fs.FileMode) (Temp, error) {
	f, err := os.CreateTemp(dir, ".proxyc-*")
	if err != nil {
		return nil, err
	}
	return f, f.Chmod(mode)
}

// Modes of files, by their readers.
const (
	Everybody fs.FileMode = 0o644
	OwnerOnly fs.FileMode = 0o600
)

// Write writes a file atomically, or writes to a device or pipe. readers is the mode of the file.
func Write(d Disk, name string, readers fs.FileMode, write func(io.Writer) error) error {
	file, special, err := d.Destination(name)
	if err != nil {
		return ofFile(name, err)
	}
	if info, err := d.Stat(file); err == nil && info.IsDir() {
		return fmt.Errorf("%s: is a directory", name)
	}
	if special != nil {
		return errors.Join(write(special), special.Close())
	}
	temp, err := Stage(d, filepath.Dir(file), readers, write)
	if err != nil {
		return ofFile(name, err)
	}
	if err := d.Rename(temp, file); err != nil {
		d.Remove(temp)
		return ofFile(name, err)
	}
	return nil
}

// ofFile replaces the name of the temporary file in an error.
func ofFile(name string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: directory %s does not exist", name, filepath.Dir(name))
		}
		return fmt.Errorf("%s: %w", name, at.Err)
	}
	if at, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("%s: %w", name, at.Err)
	}
	return err
}

// Stage writes and syncs a temporary file in dir, and returns its name. After a rename it is thus
// complete even after a power failure.
func Stage(d Disk, dir string, readers fs.FileMode, write func(io.Writer) error) (name string, err error) {
	f, err := d.CreateTemp(dir, readers)
	if err != nil {
		return "", err
	}
	err = write(f)
	if err == nil {
		if err = f.Sync(); errors.Is(err, errors.ErrUnsupported) {
			err = nil // some file systems do not support it
		}
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		d.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// Zipped returns a function that writes to a file of a name: compressed if that ends in .gz.
func Zipped(name string, write func(io.Writer) error) func(io.Writer) error {
	if !strings.HasSuffix(name, ".gz") {
		return write
	}
	return func(w io.Writer) error {
		zip := gzip.NewWriter(w)
		if err := write(zip); err != nil {
			return err
		}
		return zip.Close()
	}
}
