package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var speedFlag = flag.Duration("speed", 0, "how long TestUserspaceSpeed measures each mode; 0: not at all")

// TestUserspaceSpeed compares modes userspace and iptables, in turns on the same node: connections
// in sequence and eight in parallel, and the bytes of one connection. It logs the results and never
// fails because of them.
func TestUserspaceSpeed(t *testing.T) {
	t.Parallel()
	if *speedFlag == 0 {
		t.Skip("-speed is 0")
	}
	w := newEcho(t)
	w.start("proxyc", "watch")
	for range 3 {
		for _, mode := range []string{"userspace", "iptables"} {
			w.write("config", fmt.Sprintf(watchConfig, mode))
			within(w, 20*time.Second, "mode "+mode, func() (struct{}, bool) {
				st, ok := w.status()
				return struct{}{}, ok && string(st.Mode) == mode && synced(st) &&
					strings.Contains(w.rules(), "KUBE-PORTALS-CONTAINER -d") == (mode == "userspace")
			})
			one, eight := w.connectionsIn(t, *speedFlag, 1), w.connectionsIn(t, *speedFlag, 8)
			t.Logf("%-9s %6.0f connections/s by one client, %6.0f by eight, %4.0f MB/s there and back by one connection",
				mode, one, eight, w.bytesIn(t, *speedFlag)/1e6)
		}
	}
}

// connectionsIn returns how many connections clients open, use and close in a second.
func (w *watched) connectionsIn(t *testing.T, d time.Duration, clients int) float64 {
	t.Helper()
	var n atomic.Int64
	ended := make(chan error, clients)
	began := time.Now()
	for range clients {
		go func() {
			ended <- w.ns.Do(func() error {
				for time.Since(began) < d {
					c, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.96.0.10:80")))
					if err != nil {
						return err
					}
					err = answers(c)
					c.SetLinger(0) // no port waits
					c.Close()
					if err != nil {
						return err
					}
					n.Add(1)
				}
				return nil
			})
		}()
	}
	for range clients {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return float64(n.Load()) / time.Since(began).Seconds()
}

// bytesIn returns how many bytes a second come back by one connection.
func (w *watched) bytesIn(t *testing.T, d time.Duration) float64 {
	t.Helper()
	c, err := w.connect("10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.SetDeadline(began.Add(d + time.Minute))
	go func() {
		chunk := make([]byte, 256<<10)
		for time.Since(began) < d {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
		c.(*net.TCPConn).CloseWrite()
	}()
	n, err := io.Copy(io.Discard, c)
	if err != nil {
		t.Error(err)
	}
	return float64(n) / time.Since(began).Seconds()
}
