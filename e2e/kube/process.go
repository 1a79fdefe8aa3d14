package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// A Process is a program that runs in a namespace and logs to a file.
type Process struct {
	Name string
	Log  string // the file with its output

	cmd  *exec.Cmd
	wait func() error
}

// start runs a program in a namespace; its output goes to a file in dir. The program ends with
// this process at the latest.
func start(ns *applytest.Namespace, dir, name, binary string, args ...string) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(dir, name+".log")}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own copy
	p.cmd = ns.Command(context.Background(), binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr.Setpgid = true
	if p.wait, err = ns.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// Pid returns the process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Wait waits until the process ends, and returns its error.
func (p *Process) Wait(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- p.wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w", p.Name, ctx.Err())
	}
}

// Kill kills the process and all that it has started, and waits until it ends.
func (p *Process) Kill() error {
	if err := syscall.Kill(-p.Pid(), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	p.wait()
	return nil
}

// stopTimeout is the timeout of an orderly end.
const stopTimeout = 20 * time.Second

// Stop asks the process to end, and returns how long that took, and the error of the process.
func (p *Process) Stop() (time.Duration, error) {
	began := time.Now()
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- p.wait() }()
	select {
	case err := <-ended:
		return time.Since(began), err
	case <-time.After(stopTimeout):
		return time.Since(began), errors.Join(fmt.Errorf("%s does not end", p.Name), p.Kill())
	}
}

// Tail returns the last lines of the log, for messages.
func (p *Process) Tail() string {
	data, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// Until tries f until it succeeds or ctx ends; the error is f's last one.
func Until(ctx context.Context, every time.Duration, f func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Parallel calls f for the numbers below n, at most atOnce at a time, until one fails.
func Parallel(atOnce, n int, f func(int) error) error {
	var all sync.WaitGroup
	var failed atomic.Bool
	next, errs := make(chan int), make([]error, n)
	for range min(atOnce, n) {
		all.Go(func() {
			for i := range next {
				if errs[i] = f(i); errs[i] != nil {
					failed.Store(true)
				}
			}
		})
	}
	for i := range n {
		if failed.Load() {
			break
		}
		next <- i
	}
	close(next)
	all.Wait()
	return errors.Join(errs...)
}
