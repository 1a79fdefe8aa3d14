package monitor

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Legacy looks at the sizes of the tables of the older iptables, which has no
// messages: how many entries they have and how long they are. That costs a few
// system calls, where listing rules would cost as much as they are many.
type Legacy struct {
	every time.Duration
	tell  func()
	done  chan struct{}

	mu    sync.Mutex
	busy  bool
	sizes []byte // nil: not known
}

// lookEvery is how often the sizes are looked at.
const lookEvery = time.Second

// OpenLegacy looks in the network namespace of the calling thread. suspect is
// called when the tables have other sizes than at the end of our own work.
func OpenLegacy(suspect func()) *Legacy {
	return &Legacy{every: lookEvery, tell: suspect, done: make(chan struct{})}
}

// Begin notes that our own work begins.
func (m *Legacy) Begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = true
}

// End notes that our own work has ended.
func (m *Legacy) End() {
	sizes := tableSizes()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy, m.sizes = false, sizes
}

// Close ends Run.
func (m *Legacy) Close() error {
	close(m.done)
	return nil
}

// Run looks until Close, or until ctx ends.
func (m *Legacy) Run(ctx context.Context) {
	ticker := time.NewTicker(m.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.done:
			return
		case <-ticker.C:
			m.look()
		}
	}
}

func (m *Legacy) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy || m.sizes == nil {
		return
	}
	if now := tableSizes(); !bytes.Equal(now, m.sizes) {
		m.sizes = now
		m.tell()
	}
}

// tableInfo is struct ipt_getinfo, which is also ip6t_getinfo.
type tableInfo struct {
	name       [32]byte
	hooks      uint32
	entries    [5]uint32
	underflows [5]uint32
	count      uint32
	size       uint32
}

// getInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO.
const getInfo = 64

// tableSizes describes the tables that our rules are in. A table that is not
// there has no entries.
func tableSizes() []byte {
	var out []byte
	for _, f := range [...]struct{ domain, level int }{{unix.AF_INET, unix.IPPROTO_IP}, {unix.AF_INET6, unix.IPPROTO_IPV6}} {
		fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			continue
		}
		for _, table := range [...]string{"nat", "filter"} {
			var info tableInfo
			copy(info.name[:], table)
			size := uint32(unsafe.Sizeof(info))
			unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(f.level), getInfo,
				uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
			out = fmt.Appendf(out, "%s %d %d %v\n", table, info.count, info.size, info.entries)
		}
		unix.Close(fd)
	}
	return out
}
