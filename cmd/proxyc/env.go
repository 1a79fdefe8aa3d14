package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/compiler"
)

// env is all that proxyc sees of the machine. Tests replace its parts.
type env struct {
	name     string   // by which users call the program; empty: proxyc
	args     []string // without the program's name
	stdin    io.Reader
	stdout   io.Writer
	stderr   io.Writer
	files    disk
	hostname func() (string, error)
	// interfaces reads the machine's network interfaces.
	interfaces func() ([]compiler.Interface, error)
	terminal   bool // stderr is one
	// colourOut and colourErr report whether stdout and stderr show colours.
	colourOut, colourErr bool
	// regularly is the function of that name.
	regularly func(after, every time.Duration, f func()) (stop func())
	progress  *progress
}

// disk is the part of a file system that the verbs use.
type disk interface {
	ReadFile(name string) ([]byte, error)
	Open(name string) (fs.File, error)
	Stat(name string) (fs.FileInfo, error)
	ReadDir(name string) ([]fs.DirEntry, error)
	MkdirAll(dir string) error
	// Create makes a new file, which only its owner reads, to be written bit by bit.
	Create(name string) (io.WriteCloser, error)
	// CreateTemp makes a new file in dir, whose name begins with a dot.
	CreateTemp(dir string, mode fs.FileMode) (tempFile, error)
	// Destination returns where a name leads by symbolic links; of a device or a pipe, in whose
	// place no file may come, also what writes to it.
	Destination(name string) (file string, special io.WriteCloser, err error)
	Rename(from, to string) error
	Remove(name string) error
}

// tempFile is a file that is being written.
type tempFile interface {
	io.WriteCloser
	Name() string
	Sync() error
}

func osEnv() *env {
	name, words := calledAs(filepath.Base(os.Args[0]))
	colours := wantsColours(os.Getenv)
	return &env{
		colourOut:  colours && isTerminal(os.Stdout),
		colourErr:  colours && isTerminal(os.Stderr),
		name:       name,
		args:       append(words, os.Args[1:]...),
		stdin:      os.Stdin,
		stdout:     os.Stdout,
		stderr:     os.Stderr,
		files:      osFiles{},
		hostname:   os.Hostname,
		interfaces: daemon.Interfaces,
		terminal:   isTerminal(os.Stderr),
		regularly:  regularly,
	}
}

type osFiles struct{}

func (osFiles) ReadFile(name string) ([]byte, error)       { return os.ReadFile(name) }
func (osFiles) Open(name string) (fs.File, error)          { return os.Open(name) }
func (osFiles) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }
func (osFiles) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }
func (osFiles) MkdirAll(dir string) error                  { return os.MkdirAll(dir, 0o755) }
func (osFiles) Create(name string) (io.WriteCloser, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, ownerOnly)
}
func (osFiles) Destination(name string) (string, io.WriteCloser, error) {
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
func (osFiles) Rename(from, to string) error { return os.Rename(from, to) }
func (osFiles) Remove(name string) error     { return os.Remove(name) }

// abandoned is how old a temporary file is that nobody will rename: a program
// that was killed left it.
const abandoned = time.Hour

// tempPrefix begins the names of temporary files.
const tempPrefix = ".proxyc-"

// CreateTemp also removes what was left by programs that were killed.
func (osFiles) CreateTemp(dir string, mode fs.FileMode) (tempFile, error) {
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
	everybody fs.FileMode = 0o644
	ownerOnly fs.FileMode = 0o600
)

// writeFile writes a file whole or not at all, or to a device or a pipe.
func (e *env) writeFile(name string, write func(io.Writer) error) error {
	return e.writeFileFor(everybody, name, write)
}

func (e *env) writeFileFor(readers fs.FileMode, name string, write func(io.Writer) error) error {
	file, special, err := e.files.Destination(name)
	if err != nil {
		return ofFile(name, err)
	}
	if special != nil {
		return errors.Join(write(special), special.Close())
	}
	temp, err := e.stage(filepath.Dir(file), readers, write)
	if err != nil {
		return ofFile(name, err)
	}
	if err := e.files.Rename(temp, file); err != nil {
		e.files.Remove(temp)
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

// stage writes a temporary file in dir, which is on the disk then, and returns its name: under
// the name of another one it is whole after a power failure, too.
func (e *env) stage(dir string, readers fs.FileMode, write func(io.Writer) error) (name string, err error) {
	f, err := e.files.CreateTemp(dir, readers)
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
		e.files.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// programName is how users call the program where it is no plugin.
const programName = "proxyc"

// calledAs returns how users call a program of a name, and the words of the command line
// that the name stands for. kubectl runs PATH's kubectl-proxyc for "kubectl proxyc", and
// asks kubectl_complete-proxyc what may follow.
func calledAs(file string) (name string, words []string) {
	switch strings.TrimSuffix(file, ".exe") {
	case "kube-proxy":
		return programName, []string{"watch"}
	case "kubectl-proxyc":
		return "kubectl " + programName, nil
	case "kubectl_complete-proxyc":
		return programName, []string{completeVerb, completeForKubectl}
	}
	return programName, nil
}

// calls spells a command line for users.
func (e *env) calls(command string) string {
	if rest, ok := strings.CutPrefix(command, programName+" "); ok {
		return cmp.Or(e.name, programName) + " " + rest
	}
	return command
}
