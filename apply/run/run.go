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

// Error is the failure of a program.
type Error struct {
	Name   string   // program
	Args   []string // without the program's name
	Code   int      // exit status; -1 if it did not start or was killed
	Stderr string   // its output on stderr, trimmed
	Err    error    // from os/exec
}

// Error returns the program's stderr, or the error of os/exec if that is empty.
func (e *Error) Error() string {
	said := e.Stderr
	if said == "" {
		said = e.Err.Error()
	}
	return fmt.Sprintf("%s: %s", strings.Join(append([]string{e.Name}, e.Args...), " "), said)
}

// Unwrap returns the error of os/exec: exec.ErrNotFound, or an *exec.ExitError.
func (e *Error) Unwrap() error { return e.Err }

// Run runs a program and returns its output. stdin may be nil. When ctx ends, Run kills the
// program. It does not wait for child processes that keep the program's pipes open. The error is an
// *Error.
func Run(ctx context.Context, stdin io.Reader, name string, args ...string) (stdout []byte, err error) {
	var out bytes.Buffer
	err = To(ctx, stdin, &out, name, args...)
	return out.Bytes(), err
}

// To is like Run, but writes the output to stdout as it is printed.
func To(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout = stdin, stdout
	if env, ok := ctx.Value(envKey{}).([]string); ok {
		cmd.Env = append(os.Environ(), env...)
	}
	return finish(cmd)
}

// envKey is the context key of the variables from WithEnv.
type envKey struct{}

// WithEnv adds variables to the environment of the programs that Run and To start: "NAME=value".
func WithEnv(ctx context.Context, env ...string) context.Context {
	return context.WithValue(ctx, envKey{}, env)
}

// pipesPatience is how long a program's pipes may remain open after it exits.
const pipesPatience = 5 * time.Second

// finish runs a command. The error is an *Error.
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
