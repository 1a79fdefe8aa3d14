package run

import (
	"bytes"
	"context"
	"io"
	"os/exec"
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
