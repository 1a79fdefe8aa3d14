package growth

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
	"github.com/proxyc/proxyc/e2e/measure/sample"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// ClientName is the name of the scenario with which growth runs its own program.
const ClientName = "client"

// RunClient is client-go alone. It prints when it has all objects and, as soon as its memory may be
// read, its live heap.
func RunClient(ctx context.Context, _ *scenario.Run, args []string) error {
	if len(args) != 1 {
		return errors.New(ClientName + ": needs the URL of an API server")
	}
	if err := kube.RunClient(ctx, args[0], "", "node1"); err != nil {
		return err
	}
	fmt.Println("holds all")
	time.Sleep(quiet) // while its processor time is read
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Println(m.HeapAlloc)
	<-ctx.Done()
	return ctx.Err()
}

// clientAlone measures client-go alone.
func (r *runner) clientAlone(ctx context.Context, ns *applytest.Namespace, url string) (out start, err error) {
	self, err := os.Executable()
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	cmd := ns.Command(ctx, self, ClientName, url)
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
	lines := bufio.NewScanner(said)
	if !lines.Scan() {
		return out, errors.Join(errors.New("client-go alone ended before it held all"), lines.Err())
	}
	out.Seconds = time.Since(began).Seconds()
	cpu, err := sample.CPU(cmd.Process.Pid)
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
	return out, out.settled(cmd.Process.Pid)
}
