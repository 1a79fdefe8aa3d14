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

// Scratch is Run in a network namespace that is made for the program, and goes with
// it: what it does to rules there concerns nobody.
func Scratch(ctx context.Context, stdin io.Reader, name string, args ...string) (stdout []byte, err error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout = stdin, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err = finish(cmd)
	return out.Bytes(), err
}

// World runs a program as the first process of namespaces that are made for it: of
// networks, mounts and processes. When it ends, however it does, the kernel ends all that
// it started, and with these goes what they did to the namespaces. It is killed when ctx,
// or this process, ends. The error is an *Error, which does not have what stderr got.
func World(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) error {
	runtime.LockOSThread() // whose end would be told to the program as that of this process
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig: syscall.SIGKILL, Setpgid: true} // a terminal's interrupt is this process's
	if err := cmd.Run(); err != nil {
		return &Error{Name: name, Args: args, Code: cmd.ProcessState.ExitCode(), Err: err}
	}
	return nil
}

// A Child is a program that runs beside this one, and answers line by line.
type Child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
}

// Beside starts a program, in a network namespace of its own if it is to have one.
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

// PID returns the number of its process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Ask gives the program a line, and returns the next one that it prints.
func (c *Child) Ask(line string) (answer string, err error) {
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		return "", err
	}
	answer, err = c.answers.ReadString('\n')
	return strings.TrimSuffix(answer, "\n"), err
}

// Kill ends the program at once, and waits until it has.
func (c *Child) Kill() {
	c.cmd.Process.Kill() // one that has ended has
	c.cmd.Wait()
}
