// Package disk is the part of a file system that the verbs use. Files are written whole or not at all.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Disk is the part of a file system that the verbs use.
type Disk interface {
	ReadFile(name string) ([]byte, error)
	Open(name string) (fs.File, error)
	Stat(name string) (fs.FileInfo, error)
	ReadDir(name string) ([]fs.DirEntry, error)
	MkdirAll(dir string) error
	// Create makes a new file, which only its owner reads, to be written bit by bit.
	Create(name string) (io.WriteCloser, error)
	// CreateTemp makes a new file in dir, whose name begins with a dot.
	CreateTemp(dir string, mode fs.FileMode) (Temp, error)
	// Destination returns where a name leads by symbolic links; of a device or a pipe, in whose
	// place no file may come, also what writes to it.
	Destination(name string) (file string, special io.WriteCloser, err error)
	Rename(from, to string) error
	Remove(name string) error
}

// Temp is a file that is being written.
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

func (OS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o755) }

func (OS) Create(name string) (io.WriteCloser, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, OwnerOnly)
}

func (OS) Destination(name string) (string, io.WriteCloser, error) {
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

// abandoned is how old a temporary file is that nobody will rename: a program
// that was killed left it.
const abandoned = time.Hour

// tempPrefix begins the names of temporary files.
const tempPrefix = ".proxyc-"

// CreateTemp also removes what was left by programs that were killed.
func (OS) CreateTemp(dir string, mode fs.FileMode) (Temp, error) {
	entries, _ := os.ReadDir(dir) // what is wrong with it, the next step tells
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), tempPrefix) && info.Mode().IsRegular() && time.Since(info.ModTime()) > abandoned {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return nil, err
	}
	return f, f.Chmod(mode)
}

// Who may read a file.
const (
	Everybody fs.FileMode = 0o644
	OwnerOnly fs.FileMode = 0o600
)

// Write writes a file whole or not at all, or to a device or a pipe. readers are who may read it.
func Write(d Disk, name string, readers fs.FileMode, write func(io.Writer) error) error {
	file, special, err := d.Destination(name)
	if err != nil {
		return ofFile(name, err)
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

// ofFile names the file that is wanted in place of the temporary one.
func ofFile(name string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", name, at.Err)
	}
	if at, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("%s: %w", name, at.Err)
	}
	return err
}

// Stage writes a temporary file in dir, which is on the disk then, and returns its name: under
// the name of another one it is whole after a power failure, too.
func Stage(d Disk, dir string, readers fs.FileMode, write func(io.Writer) error) (name string, err error) {
	f, err := d.CreateTemp(dir, readers)
	if err != nil {
		return "", err
	}
	err = write(f)
	if err == nil {
		if err = f.Sync(); errors.Is(err, errors.ErrUnsupported) {
			err = nil // there are file systems that cannot
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
