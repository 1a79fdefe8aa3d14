package applytest

import (
	"fmt"
	"time"
	"unsafe"
)

// ClockSet returns a time that was read as t was, on a node whose clock was set meanwhile: its
// wall time is off by whole seconds, and the monotonic reading is that of t. No call makes such
// a time, so it writes to where package time keeps the wall seconds.
func ClockSet(t time.Time, by time.Duration) time.Time {
	set := t
	*(*uint64)(unsafe.Pointer(&set)) += uint64(by/time.Second) << 30
	if set.Sub(t) != 0 || set.Round(0).Sub(t.Round(0)) != by.Truncate(time.Second) {
		panic(fmt.Sprintf("package time has another layout, or %s has no monotonic reading", t))
	}
	return set
}
