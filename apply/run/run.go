// Package run starts other programs. It is the only package that does.
package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Error is a program that did not do what it was asked.
type Error struct {
	Name   string   // the program
	Args   []string // without its name
	Code   int      // exit status; -1 when it did not start, or was killed
	Stderr string   // what it said, without space around it
	Err    error    // from os/exec
}

// Error returns the program's own words; without any, what the system says.
func (e *Error) Error() string {
	said := e.Stderr
	if said == "" {
		said = e.Err.Error()
	}
	return fmt.Sprintf("%s: %s", strings.Join(append([]string{e.Name}, e.Args...), " "), said)
}

// Unwrap returns the error of os/exec: exec.ErrNotFound, or an *exec.ExitError.
func (e *Error) Unwrap() error { return e.Err }

// Run runs a program to its end and returns what it printed. stdin may be nil.
// The program is killed when ctx ends. Programs that it started and that keep its
// pipes are not waited for. The error is an *Error.
func Run(ctx context.Context, stdin io.Reader, name string, args ...string) (stdout []byte, err error) {
	var out bytes.Buffer
	err = To(ctx, stdin, &out, name, args...)
	return out.Bytes(), err
}

// To is Run for programs that print much: it hands on what they print.
func To(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout = stdin, stdout
	if env, ok := ctx.Value(envKey{}).([]string); ok {
		cmd.Env = append(os.Environ(), env...)
	}
	return finish(cmd)
}

// envKey is the key of what WithEnv adds.
type envKey struct{}

// WithEnv adds variables to the environment of the programs that Run and To start: "NAME=value".
func WithEnv(ctx context.Context, env ...string) context.Context {
	return context.WithValue(ctx, envKey{}, env)
}

// pipesPatience is how long the pipes of a program may be open after its end.
const pipesPatience = 5 * time.Second

// finish runs a command to its end. The error is an *Error.
func finish(cmd *exec.Cmd) error {
	var words bytes.Buffer
	cmd.Stderr = &words
	cmd.WaitDelay = pipesPatience
	err := cmd.Run()
	if err == nil {
		return nil
	}
	code := -1
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	return &Error{Name: cmd.Args[0], Args: cmd.Args[1:], Code: code, Stderr: strings.TrimSpace(words.String()), Err: err}
}
