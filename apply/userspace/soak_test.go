package userspace

import (
	"flag"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

var soakFlag = flag.Duration("soak", 0, "how long TestSoak opens and closes connections; 0: a few rounds")

// TestSoak: connections by the thousand come and go while backends change. None
// is lost, and nothing of them is left.
func TestSoak(t *testing.T) {
	p := newTestProxy(t, affordable(DefaultLimits))
	a, b, c := named(t, "a"), named(t, "b"), named(t, "c")
	at := open(t, p, listenerTo(ir.TCP, a, b))
	const atOnce = 50
	var heap []uint64
	end := time.Now().Add(*soakFlag)
	total := 0
	for round := 0; round < 10 || time.Now().Before(end); round++ {
		p.Update(ir.IPv4, []*rules.Listener{listenerTo(ir.TCP, a, b), listenerTo(ir.TCP, b, c), listenerTo(ir.TCP, a, c)}[round%3])
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				conn, err := net.Dial("tcp4", at.String()) // not dialTCP, which keeps each until the end
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(20 * time.Second))
				hello(t, conn)
				echoes(t, conn, "ping")
			})
		}
		all.Wait()
		total += atOnce
		if round%10 == 9 {
			for p.Connections() > 0 {
				time.Sleep(time.Millisecond)
			}
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			heap = append(heap, m.HeapInuse)
		}
	}
	if s := counted(p, ir.TCP); s.Unreachable > 0 || int(s.Accepted) != total {
		t.Errorf("of %d connections: %+v", total, s)
	}
	t.Logf("%d connections, heap at first %d kB, at last %d kB, %d goroutines", total, heap[0]>>10, heap[len(heap)-1]>>10, runtime.NumGoroutine())
	if first, last := heap[0], heap[len(heap)-1]; last > 2*first+4<<20 {
		t.Errorf("the heap grew from %d to %d bytes", first, last)
	}
}
