package userspace

import (
	"flag"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

var (
	soakFlag   = flag.Duration("soak", 0, "how long TestSoak opens and closes connections; 0: a few rounds, with 200 open at once")
	atOnceFlag = flag.Int("at-once", 5000, "how many are open at once, if the process may have files for so many")
)

// TestSoak opens, keeps and closes thousands of connections while backends change. None is lost,
// and no resource leaks.
func TestSoak(t *testing.T) {
	// Clients and backends have descriptors of this process, too: at most twelve per connection.
	may := fitLimits(Limits{Connections: 2 * *atOnceFlag, Sessions: DefaultLimits.Sessions})
	p := newTestProxy(t, may)
	a, b, c := named(t, "a"), named(t, "b"), named(t, "c")
	at := open(t, p, listenerTo(ir.TCP, a, b))
	const batch = 50
	atOnce := 200
	if *soakFlag > 0 {
		atOnce = min(*atOnceFlag, may.Connections/2) / batch * batch
	}
	var held [][]net.Conn // batches, oldest first
	var heap []uint64
	end := time.Now().Add(*soakFlag)
	total, lost := 0, 0
	for round := 0; round < 3*atOnce/batch || time.Now().Before(end); round++ {
		update(t, p, []*rules.Listener{listenerTo(ir.TCP, a, b), listenerTo(ir.TCP, b, c), listenerTo(ir.TCP, a, c)}[round%3])
		if len(held) == atOnce/batch {
			if n := p.Carried(); n < atOnce-batch {
				t.Errorf("round %d: %d connections are open, want %d", round, n, atOnce)
			}
			lost += each(held[0], func(c net.Conn) bool { return exchanges(c, "pong") && c.Close() == nil })
			held = held[1:]
		}
		next := make([]net.Conn, batch)
		var all sync.WaitGroup
		for i := range next {
			all.Go(func() {
				if conn, err := net.Dial("tcp4", at.String()); err != nil {
					t.Error(err)
				} else if next[i] = conn; !greets(conn) || !exchanges(conn, "ping") {
					t.Error("a new connection does not answer")
				}
			})
		}
		all.Wait()
		if t.Failed() {
			break
		}
		held = append(held, next)
		total += batch
		if len(held) == atOnce/batch && round%(atOnce/batch) == 0 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			heap = append(heap, m.HeapInuse+m.StackInuse)
		}
	}
	for _, batch := range held {
		lost += each(batch, func(c net.Conn) bool { return exchanges(c, "pong") && c.Close() == nil })
	}
	applytest.Until(t, 0, "Carried == 0", func() bool { return p.Carried() == 0 })
	if s := counted(p, ir.TCP); s.Unreachable > 0 || s.Clients > 0 || int(s.Accepted) != total || lost > 0 {
		t.Errorf("of %d connections %d broke: %+v", total, lost, s)
	}
	if len(heap) == 0 {
		t.Fatal("nothing was measured")
	}
	first, last := heap[0], heap[len(heap)-1]
	t.Logf("%d connections, %d at once, %d lost; heap and stacks of proxy, clients and backends with all of them open: at first %d kB, at last %d kB; %d goroutines at the end",
		total, atOnce, lost, first>>10, last>>10, runtime.NumGoroutine())
	if last > first+first/4+4<<20 {
		t.Errorf("memory grew from %d to %d bytes", first, last)
	}
}

// each calls do for all connections concurrently, and returns the number of failures.
func each(conns []net.Conn, do func(net.Conn) bool) (failed int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() {
			if !do(c) {
				mu.Lock()
				defer mu.Unlock()
				failed++
			}
		})
	}
	all.Wait()
	return failed
}

// greets reads the name that a backend sends first.
func greets(c net.Conn) bool {
	c.SetDeadline(time.Now().Add(time.Minute))
	_, err := io.ReadFull(c, make([]byte, len("a\n")))
	return err == nil
}

// exchanges reports whether a connection echoes a text.
func exchanges(c net.Conn, text string) bool {
	c.SetDeadline(time.Now().Add(time.Minute))
	got := make([]byte, len(text))
	if _, err := io.WriteString(c, text); err != nil {
		return false
	}
	_, err := io.ReadFull(c, got)
	return err == nil && string(got) == text
}
