package watch

import "time"

// Budget limits how often something happens: a burst, and one more after each period. The zero
// value is unused.
type Budget struct {
	spent int
	since time.Time // time up to which periods are counted
}

// refilled returns the budget at now. A spent unit returns after each period of length every.
func (b Budget) refilled(now time.Time, every time.Duration) Budget {
	n := int(now.Sub(b.since) / every)
	if b.spent <= n {
		return Budget{since: now}
	}
	return Budget{b.spent - n, b.since.Add(time.Duration(n) * every)}
}

// Spend counts one use and returns true, or returns false if most uses are already counted.
func (b *Budget) Spend(now time.Time, most int, every time.Duration) bool {
	*b = b.refilled(now, every)
	if b.spent >= most {
		return false
	}
	b.spent++
	return true
}

// Full reports whether no use is counted.
func (b *Budget) Full(now time.Time, every time.Duration) bool {
	return b.refilled(now, every).spent == 0
}
