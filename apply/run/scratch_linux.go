package run

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"runtime"
	"syscall"
)

// Scratch is Run in a new network namespace, which is removed when the program exits. Its changes
// to rules affect nothing else.
func Scratch(ctx context.Context, stdin io.Reader, name string, args ...string) (stdout []byte, err error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout = stdin, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err = finish(cmd)
	return out.Bytes(), err
}

// World runs a program as PID 1 of new network, mount and PID namespaces. When the program exits
// for any reason, the kernel kills all processes that it started and removes the namespaces. The
// program is killed when ctx or this process ends. The error is an *Error without Stderr.
func World(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) error {
	runtime.LockOSThread() // Pdeathsig is sent when the thread exits, not the process
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig: syscall.SIGKILL, Setpgid: true} // an interrupt from the terminal is only for this process
	if err := cmd.Run(); err != nil {
		return &Error{Name: name, Args: args, Code: cmd.ProcessState.ExitCode(), Err: err}
	}
	return nil
}

// Beside starts a program that ends with ctx or on its own.
func Beside(ctx context.Context, stderr io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = stderr
	return cmd.Start()
}
