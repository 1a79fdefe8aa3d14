package applytest

import (
	"fmt"
	"time"
	"unsafe"
)

// ClockSet returns a time like t, but read on a node whose wall clock was set meanwhile. Its wall
// time differs by whole seconds, and its monotonic reading is that of t. No function returns such a
// time, so ClockSet writes to the internal representation of package time.
func ClockSet(t time.Time, by time.Duration) time.Time {
	set := t
	*(*uint64)(unsafe.Pointer(&set)) += uint64(by/time.Second) << 30
	if set.Sub(t) != 0 || set.Round(0).Sub(t.Round(0)) != by.Truncate(time.Second) {
		panic(fmt.Sprintf("package time has another layout, or %s has no monotonic reading", t))
	}
	return set
}
