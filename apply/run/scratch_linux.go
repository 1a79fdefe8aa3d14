package run

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os/exec"
	"runtime"
	"strings"
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

// A Child is a running program that replies line by line.
type Child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
}

// Beside starts a program, in a new network namespace if network is set.
func Beside(ctx context.Context, stderr io.Writer, network bool, name string, args ...string) (*Child, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = stderr
	if network {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Child{cmd, in, bufio.NewReader(out)}, nil
}

// PID returns the process ID.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Ask writes a line to the program, and returns the next line that it prints.
func (c *Child) Ask(line string) (answer string, err error) {
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		return "", err
	}
	answer, err = c.answers.ReadString('\n')
	return strings.TrimSuffix(answer, "\n"), err
}

// Kill kills the program and waits until it has exited.
func (c *Child) Kill() {
	c.cmd.Process.Kill() // an error means that it has exited
	c.cmd.Wait()
}
