package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/ir/prove"
)

// env is proxyc's interface to the machine. Tests replace its parts.
type env struct {
	name     string   // command that users call; "" for proxyc
	args     []string // without the program name
	stdin    io.Reader
	stdout   io.Writer
	stderr   io.Writer
	files    disk.Disk
	hostname func() (string, error)
	// interfaces reads the machine's network interfaces.
	interfaces func() ([]compiler.Interface, error)
	terminal   bool // stderr is a terminal
	// colourOut and colourErr report whether stdout and stderr support colors.
	colourOut, colourErr bool
	// regularly is terminal.Regularly, or a test's replacement.
	regularly func(after, every time.Duration, f func()) (stop func())
	poll      time.Duration // how often the daemon examines its files; 0 for once a second
	progress  *terminal.Progress
	// standIns are those of all snapshots that the command reads. Output contains their names.
	standIns *assume.StandIns
	fetched  *fetched
}

func osEnv() *env {
	name, words := help.CalledAs(filepath.Base(os.Args[0]))
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
		interfaces: host.Interfaces,
		terminal:   terminal.IsTerminal(os.Stderr),
		regularly:  terminal.Regularly,
	}
}

// writeFile writes a file atomically, or writes to a device or pipe.
func (e *env) writeFile(name string, write func(io.Writer) error) error {
	return disk.Write(e.files, name, disk.Everybody, func(w io.Writer) error {
		named := assume.NewWriter(w, e.standIns)
		return cmp.Or(write(named), named.Flush())
	})
}

// programName is the command that users call, unless proxyc is a kubectl plugin.
const programName = "proxyc"

// calls returns a command line as users enter it.
func (e *env) calls(command string) string {
	if rest, ok := strings.CutPrefix(command, programName+" "); ok {
		return cmp.Or(e.name, programName) + " " + rest
	}
	return command
}

// forPeople returns an env whose output has the names of stand-ins, escapes of invisible characters, and
// colors on terminals: on standard error immediately, and on standard output after begin is called. On a
// terminal, it shows progress until the first other output. end writes what is left.
func (e *env) forPeople() (shown *env, begin, end func()) {
	copied := *e
	shown = &copied
	if e.terminal {
		shown.progress = terminal.NewProgress(e.stderr, e.regularly)
		shown.stdout, shown.stderr = shown.progress.Writer(e.stdout), shown.progress.Writer(e.stderr)
	}
	visibleOut, visibleErr := terminal.NewWriter(shown.stdout), terminal.NewWriter(shown.stderr)
	if e.colourErr {
		visibleErr.Colour()
	}
	shown.standIns, shown.fetched = new(assume.StandIns), new(fetched)
	out, err := assume.NewWriter(visibleOut, shown.standIns), assume.NewWriter(visibleErr, shown.standIns)
	shown.stdout, shown.stderr = out, err
	begin = func() {
		if e.colourOut {
			visibleOut.Colour()
		}
	}
	return shown, begin, func() {
		_, _ = out.Flush(), err.Flush()
		for _, w := range [...]interface{ End() }{visibleOut, visibleErr, shown.progress} {
			w.End()
		}
	}
}

// doing shows the current step.
func (e *env) doing(what string) { e.progress.Doing(what) }

// comparing shows the progress of a packet comparison.
func (e *env) comparing(ctx context.Context) context.Context {
	e.doing("comparing packets, destinations")
	return prove.WithProgress(ctx, e.progress.Count)
}

// coloured are the commands whose output is text for people. Others print rules, configurations and
// documents.
var coloured = []string{"apply", "assert", "diff", "doctor", "explain", "lint", "migrate", "prove", "status", "trace"}
