package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// hold is client-go alone. It says when it holds all, and, as soon as its memory may be looked at, its live heap.
func hold(ctx context.Context, url string) error {
	if err := kube.Hold(ctx, url, "", "node1"); err != nil {
		return err
	}
	fmt.Println("holds all")
	time.Sleep(quiet) // while it is looked at what it took
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Println(m.HeapAlloc)
	select {}
}

// clientAlone measures client-go alone.
func (r *runner) clientAlone(ctx context.Context, ns *applytest.Namespace, url string) (out start, err error) {
	self, err := os.Executable()
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	cmd := ns.Command(ctx, self, "-hold", url)
	cmd.Stderr = os.Stderr
	said, err := cmd.StdoutPipe()
	if err != nil {
		return out, err
	}
	began := time.Now()
	wait, err := ns.Start(cmd)
	if err != nil {
		return out, err
	}
	defer func() {
		cmd.Process.Kill()
		wait()
	}()
	d := &daemon{proc: cmd.Process}
	lines := bufio.NewScanner(said)
	if !lines.Scan() {
		return out, errors.Join(errors.New("client-go alone ended before it held all"), lines.Err())
	}
	out.Seconds = time.Since(began).Seconds()
	cpu, err := d.cpu()
	if err != nil {
		return out, err
	}
	out.CPUSeconds = cpu.Seconds()
	if !lines.Scan() {
		return out, errors.Join(errors.New("client-go alone ended"), lines.Err())
	}
	if _, err := fmt.Sscan(lines.Text(), &out.Live); err != nil {
		return out, err
	}
	if out.Resident, err = d.settled(); err != nil {
		return out, err
	}
	out.Peak, err = d.status("VmHWM")
	return out, err
}
