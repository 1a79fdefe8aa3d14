//go:build unix

package userspace

import "testing"

// With any number of descriptors, some are reserved for the rest of the process: a quarter, or the
// constant reserve.
func TestWithin(t *testing.T) {
	for _, descriptors := range []uint64{64, 256, 1024, 20_000, 75_000, 1 << 20} {
		l := scaleLimits(Limits{Connections: 10_000, Sessions: 10_000, Listeners: mostListeners}, descriptors)
		if l.Connections < 1 || l.Sessions < 1 || l.Listeners < 1 {
			t.Errorf("%d descriptors: %+v", descriptors, l)
		}
		left := int(descriptors) - l.Connections*perConnection - l.Sessions*perSession - l.Listeners
		if kept := min(reserved, int(descriptors)/4); left < kept {
			t.Errorf("%d descriptors: %+v leave %d, want %d", descriptors, l, left, kept)
		}
	}
	if l := scaleLimits(Limits{Connections: 10_000, Sessions: 10_000, Listeners: mostListeners}, 1<<20); l != (Limits{10_000, 10_000, mostListeners}) {
		t.Errorf("with enough of them: %+v", l)
	}
}
