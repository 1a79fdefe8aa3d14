package applytest

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// median returns the median in nanoseconds.
func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds())
}

// sources returns source addresses with enough ports for about 250,000 flows.
func sources() (all []netip.Addr) {
	for i := range byte(4) {
		all = append(all, netip.AddrFrom4([4]byte{10, 244, 1, 2 + i}))
	}
	return all
}

// exchange sends a datagram and receives one.
func exchange(fd int) error {
	buf := []byte("?")
	if _, err := unix.Write(fd, buf); err != nil {
		return err
	}
	for {
		if _, err := unix.Read(fd, buf); err != unix.EINTR {
			return err
		}
	}
}

func inet4(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
