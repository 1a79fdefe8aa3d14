package monitor

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyFamily describes the kernel's interface to the iptables-legacy tables of a family.
type legacyFamily struct {
	domain, level int
	// Offsets in struct ipt_entry and struct ip6t_entry of the distance to the next entry, and of the
	// counters.
	next, counters int
}

var legacyFamilies = [...]legacyFamily{
	{unix.AF_INET, unix.IPPROTO_IP, 90, 96},
	{unix.AF_INET6, unix.IPPROTO_IPV6, 142, 152},
}

// IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES, with the same values in ip6_tables.
const (
	getInfo    = 64
	getEntries = 65
)

// tableInfo is struct ipt_getinfo.
type tableInfo struct {
	name       [32]byte
	hooks      uint32
	entries    [5]uint32
	underflows [5]uint32
	count      uint32
	size       uint32
}

// entriesHead is struct ipt_get_entries, which precedes the entries.
type entriesHead struct {
	name [32]byte
	size uint32
	_    uint32
}

// countersSize is the size of struct xt_counters.
const countersSize = 16

// legacyTables contains a raw socket per family, in the network namespace in which it was opened. A
// socket that cannot be opened, because of a limit or a missing family, is tried again at each read: until
// then, the tables of the family count as empty.
type legacyTables struct {
	mu      sync.Mutex
	closed  bool
	sockets [len(legacyFamilies)]*os.File
}

// socket returns the socket of a family; nil if it cannot be opened.
func (t *legacyTables) socket(i int) *os.File {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sockets[i] == nil && !t.closed {
		if fd, err := unix.Socket(legacyFamilies[i].domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err == nil {
			t.sockets[i] = os.NewFile(uintptr(fd), "tables of iptables")
		}
	}
	return t.sockets[i]
}

func (t *legacyTables) close() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, socket := range t.sockets {
		if socket != nil {
			err = errors.Join(err, socket.Close())
		}
	}
	return err
}

// sizes describes the number and total size of the entries of the tables. It makes a few system
// calls. A missing table has no entries.
func (t *legacyTables) sizes() string {
	var all []byte
	t.each(func(_ legacyFamily, _ int, info *tableInfo) {
		all = fmt.Appendf(all, "%d %d %v ", info.count, info.size, info.entries)
	})
	return string(all)
}

// digestSeed is of this process: digests of different processes cannot be compared.
var digestSeed = maphash.MakeSeed()

// digest returns a digest of the tables without counters. Its cost is proportional to their size.
// Unreadable tables count as empty.
func (t *legacyTables) digest() uint64 {
	var hash maphash.Hash
	hash.SetSeed(digestSeed)
	t.each(func(f legacyFamily, fd int, info *tableInfo) { f.digest(&hash, fd, info) })
	return hash.Sum64()
}

func (t *legacyTables) each(f func(of legacyFamily, fd int, info *tableInfo)) {
	for i, family := range legacyFamilies {
		file := t.socket(i)
		if file == nil {
			continue
		}
		socket, err := file.SyscallConn()
		if err != nil {
			continue
		}
		socket.Control(func(fd uintptr) { // an error means that the socket is closed
			for _, table := range [...]string{"nat", "filter"} {
				var info tableInfo
				copy(info.name[:], table)
				getsockopt(int(fd), family.level, getInfo, unsafe.Pointer(&info), unsafe.Sizeof(info))
				f(family, int(fd), &info)
			}
		})
	}
}

// digest adds a table to a hash.
func (f legacyFamily) digest(hash *maphash.Hash, fd int, info *tableInfo) {
	f.entries(fd, info, func(entries []byte) {
		for rest := entries; len(rest) >= f.counters+countersSize; {
			clear(rest[f.counters : f.counters+countersSize])
			next := int(*(*uint16)(unsafe.Pointer(&rest[f.next])))
			if next == 0 || next > len(rest) {
				break
			}
			rest = rest[next:]
		}
		hash.Write(entries)
	})
}

// entries calls look with the content of a table, if it can be read. It may be many megabytes and
// is used once, so it is not allocated on the heap.
func (f legacyFamily) entries(fd int, info *tableInfo, look func([]byte)) {
	const head = int(unsafe.Sizeof(entriesHead{}))
	buf, err := unix.Mmap(-1, 0, head+int(info.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return
	}
	defer unix.Munmap(buf)
	*(*entriesHead)(unsafe.Pointer(&buf[0])) = entriesHead{name: info.name, size: info.size}
	if getsockopt(fd, f.level, getEntries, unsafe.Pointer(&buf[0]), uintptr(len(buf))) == 0 {
		look(buf[head:])
	}
}

func getsockopt(fd, level, name int, value unsafe.Pointer, length uintptr) unix.Errno {
	size := uint32(length)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(value), uintptr(unsafe.Pointer(&size)), 0)
	return errno
}
