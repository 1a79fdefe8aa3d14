package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir/prove"
)

// env is all that proxyc sees of the machine. Tests replace its parts.
type env struct {
	name     string   // by which users call the program; empty: proxyc
	args     []string // without the program's name
	stdin    io.Reader
	stdout   io.Writer
	stderr   io.Writer
	files    disk.Disk
	hostname func() (string, error)
	// interfaces reads the machine's network interfaces.
	interfaces func() ([]compiler.Interface, error)
	terminal   bool // stderr is one
	// colourOut and colourErr report whether stdout and stderr show colours.
	colourOut, colourErr bool
	// regularly is the function of that name.
	regularly func(after, every time.Duration, f func()) (stop func())
	progress  *terminal.Progress
}

func osEnv() *env {
	name, words := calledAs(filepath.Base(os.Args[0]))
	colours := terminal.WantsColours(os.Getenv)
	return &env{
		colourOut:  colours && terminal.IsTerminal(os.Stdout),
		colourErr:  colours && terminal.IsTerminal(os.Stderr),
		name:       name,
		args:       append(words, os.Args[1:]...),
		stdin:      os.Stdin,
		stdout:     os.Stdout,
		stderr:     os.Stderr,
		files:      disk.OS{},
		hostname:   os.Hostname,
		interfaces: daemon.Interfaces,
		terminal:   terminal.IsTerminal(os.Stderr),
		regularly:  terminal.Regularly,
	}
}

// writeFile writes a file whole or not at all, or to a device or a pipe.
func (e *env) writeFile(name string, write func(io.Writer) error) error {
	return disk.Write(e.files, name, disk.Everybody, write)
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
		return programName, []string{help.Complete, help.ForKubectl}
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

// telling returns an env that tells on stderr how far it is, until it has something else
// to say, and what ends that.
func (e *env) telling() (*env, func()) {
	if !e.terminal {
		return e, func() {}
	}
	p := terminal.NewProgress(e.stderr, e.regularly)
	told := *e
	told.progress = p
	told.stdout, told.stderr = p.Writer(e.stdout), p.Writer(e.stderr)
	return &told, p.End
}

// doing says what is done now.
func (e *env) doing(what string) { e.progress.Doing(what) }

// comparing says that packets are compared, and how far that is.
func (e *env) comparing(ctx context.Context) context.Context {
	e.doing("comparing what becomes of packets, destinations")
	return prove.WithProgress(ctx, e.progress.Count)
}

// coloured are the verbs whose text is for people to read; what others print are rules,
// configurations and documents.
var coloured = []string{"apply", "diff", "doctor", "explain", "lint", "migrate", "prove", "status", "trace"}

// colouring returns an env whose terminals show colours: standard error from now on, and
// standard output from when begin is called.
func (e *env) colouring() (coloured *env, begin, end func()) {
	out, err := terminal.NewPainter(e.stdout), terminal.NewPainter(e.stderr)
	if e.colourErr {
		err.Begin()
	}
	shown := *e
	shown.stdout, shown.stderr = out, err
	begin = func() {
		if e.colourOut {
			out.Begin()
		}
	}
	return &shown, begin, func() { out.End(); err.End() }
}

// visibly returns an env whose output is visible, and what ends it.
func (e *env) visibly() (*env, func()) {
	out, err := terminal.NewVisible(e.stdout), terminal.NewVisible(e.stderr)
	shown := *e
	shown.stdout, shown.stderr = out, err
	return &shown, func() { out.End(); err.End() }
}
