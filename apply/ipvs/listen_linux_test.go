package ipvs

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// While the index of kube-ipvs0 cannot be read, each removed device may be it.
func TestListenerWithoutIndex(t *testing.T) {
	const own, other = 7, 8
	index := uint32(own)
	fails := errors.New("no buffer space available")
	l := listener{device: func() (uint32, error) { return index, fails }}
	removed := func(index uint32) bool {
		m := netlink.Message{Header: netlink.Header{Type: unix.RTM_DELLINK}, Data: make([]byte, unix.SizeofIfInfomsg)}
		binary.NativeEndian.PutUint32(m.Data[4:], index)
		return l.isForeign(m)
	}
	l.readIndex()
	if !removed(own) || !removed(other) {
		t.Error("a removal is overlooked while the index is unknown")
	}
	fails, index = nil, 0 // it was removed before the index could be read
	if !removed(own) {
		t.Error("a removal is overlooked when the index is read again")
	}
	index = own
	l.readIndex()
	if removed(other) || !removed(own) {
		t.Error("the index has no effect")
	}
}
