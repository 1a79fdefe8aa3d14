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
	"github.com/proxyc/proxyc/cmd/proxyc/review"
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
	screen     bool // stdout is one
	// colourOut and colourErr report whether stdout and stderr support colors.
	colourOut, colourErr   bool
	columnsOut, columnsErr int // widths of terminals, else 0
	// regularly is terminal.Regularly, or a test's replacement.
	regularly func(after, every time.Duration, f func()) (stop func())
	poll      time.Duration // how often the daemon examines its files; 0 for once a second
	progress  *terminal.Progress
	// standIns are those of all snapshots that the command reads. Output contains their names.
	standIns *assume.StandIns
	fetched  []byte        // objects of an API server
	input    *review.Stdin // stdin, which can be read again
}

func osEnv() *env {
	args, stdout, stderr := help.Enter(os.Args, os.Stdout, os.Stderr)
	name, words := help.CalledAs(filepath.Base(args[0]))
	colours := terminal.WantsColours(os.Getenv)
	return &env{
		colourOut:  colours && terminal.IsTerminal(os.Stdout),
		colourErr:  colours && terminal.IsTerminal(os.Stderr),
		columnsOut: terminal.Columns(os.Stdout),
		columnsErr: terminal.Columns(os.Stderr),
		name:       name,
		args:       append(words, args[1:]...),
		stdin:      os.Stdin,
		stdout:     stdout,
		stderr:     stderr,
		files:      disk.OS{},
		hostname:   os.Hostname,
		interfaces: host.Interfaces,
		terminal:   terminal.IsTerminal(os.Stderr),
		screen:     terminal.IsTerminal(os.Stdout),
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
// on terminals lines of their width, and colors: on standard error immediately, and on standard output
// after begin(true) is called. Lines stay as they are after begin(false). On a terminal, it shows progress
// until the first other output. end writes what is left.
func (e *env) forPeople() (shown *env, begin func(text bool), end func()) {
	copied := *e
	shown = &copied
	if e.terminal {
		shown.progress = terminal.NewProgress(e.stderr, e.regularly)
		shown.stdout, shown.stderr = shown.progress.Writer(e.stdout), shown.progress.Writer(e.stderr)
	}
	visibleOut, visibleErr := terminal.NewWriter(shown.stdout), terminal.NewWriter(shown.stderr)
	visibleOut.Format(false, e.columnsOut)
	visibleErr.Format(e.colourErr, e.columnsErr)
	shown.standIns, shown.input = new(assume.StandIns), &review.Stdin{Reader: e.stdin}
	out, err := assume.NewWriter(visibleOut, shown.standIns), assume.NewWriter(visibleErr, shown.standIns)
	shown.stdout, shown.stderr = out, err
	begin = func(text bool) {
		if text {
			visibleOut.Format(e.colourOut, e.columnsOut)
		} else {
			visibleOut.Format(false, 0)
			visibleErr.Format(e.colourErr, 0)
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
var coloured = []string{"apply", "assert", "cleanup", "demo", "diff", "doctor", "explain", "flows", "lint", "migrate", "prove", "replay", "status", "top", "trace"}
