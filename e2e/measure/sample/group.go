package sample

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// cgroupRoots are the paths where version 2 of cgroups is mounted, alone or together with version
// 1.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// Group measures a process and all its children. The processor time is that of a cgroup, in
// microseconds, including children that have ended. Memory is sampled every sampleEvery: the peak
// of each process, and the sum of all at one time.
type Group struct {
	dir  string
	stop context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	peak Usage
}

// Usage is resident memory in bytes.
type Usage struct {
	Daemon int64 // the peak of the first process
	Child  int64 // the largest peak of one child
	All    int64 // the largest sum at one moment
}

const sampleEvery = 10 * time.Millisecond

// NewGroup creates a cgroup and moves a process, which has just been started, into it.
func NewGroup(pid int) (*Group, error) {
	g := &Group{}
	for _, root := range cgroupRoots {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			g.dir = filepath.Join(root, fmt.Sprintf("proxyc-measure-%d", pid))
		}
	}
	if g.dir == "" {
		return nil, errors.New("cgroups: version 2 is not mounted")
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return nil, errors.Join(err, os.Remove(g.dir))
	}
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.done.Go(func() { g.watch(ctx, pid) })
	return g, nil
}

// Close ends the sampling. It removes the cgroup when its processes, which were asked to end,
// have ended.
func (g *Group) Close() (err error) {
	g.stop()
	g.done.Wait()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(sampleEvery) {
		if err = os.Remove(g.dir); err == nil {
			return nil
		}
	}
	return err
}

// CPU returns the processor time used so far.
func (g *Group) CPU() (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	usec, err := field(data, "usage_usec")
	return time.Duration(usec) * time.Microsecond, err
}

// Peak returns the maximum memory used so far.
func (g *Group) Peak() Usage {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.peak
}

func (g *Group) watch(ctx context.Context, daemon int) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		g.sample(daemon)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample reads all processes. It skips those that end meanwhile, and a child that still has its
// parent's memory, since that is about to execute another program.
func (g *Group) sample(daemon int) {
	procs, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if err != nil {
		return
	}
	own, err := executable(daemon)
	if err != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var sum int64
	for word := range strings.FieldsSeq(string(procs)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return
		}
		if it, err := executable(pid); err != nil || it == own && pid != daemon {
			continue
		}
		peak, err1 := Memory(pid, Peak)
		now, err2 := Memory(pid, Resident)
		if err1 != nil || err2 != nil {
			continue // it has ended, or is a zombie
		}
		sum += now
		which := &g.peak.Child
		if pid == daemon {
			which = &g.peak.Daemon
		}
		*which = max(*which, peak)
	}
	g.peak.All = max(g.peak.All, sum, g.peak.Daemon)
}

// executable returns the program that a process runs.
func executable(pid int) (string, error) { return os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)) }

// field returns the number after a name at the start of a line.
func field(data []byte, name string) (int64, error) {
	for line := range bytes.Lines(data) {
		if words := strings.Fields(string(line)); len(words) > 1 && words[0] == name {
			return strconv.ParseInt(words[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: not there", name)
}

// Quiet waits until almost no processor time is used, and returns the time used so far.
func (g *Group) Quiet(ctx context.Context) (time.Duration, error) {
	const (
		look   = 50 * time.Millisecond
		idle   = 2 * time.Millisecond // of processor time per sample
		inARow = 4
	)
	used, err := g.CPU()
	for calm := 0; calm < inARow && err == nil; {
		select {
		case <-ctx.Done():
			return used, fmt.Errorf("processor time is still used: %w", ctx.Err())
		case <-time.After(look):
		}
		var now time.Duration
		now, err = g.CPU()
		calm++
		if now-used > idle {
			calm = 0
		}
		used = now
	}
	return used, err
}
