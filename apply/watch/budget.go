package watch

import "time"

// Budget limits how often something is done: a number of times at once, and once more
// after each period. The zero value has nothing spent.
type Budget struct {
	spent int
	since time.Time // when the last period was counted
}

// at returns the budget at a time, where a period is every long.
func (b Budget) at(now time.Time, every time.Duration) Budget {
	n := int(now.Sub(b.since) / every)
	if b.spent <= n {
		return Budget{since: now}
	}
	return Budget{b.spent - n, b.since.Add(time.Duration(n) * every)}
}

// Spend counts one more and returns true, or returns false if most are counted.
func (b *Budget) Spend(now time.Time, most int, every time.Duration) bool {
	*b = b.at(now, every)
	if b.spent >= most {
		return false
	}
	b.spent++
	return true
}

// Whole reports whether nothing is spent.
func (b *Budget) Whole(now time.Time, every time.Duration) bool { return b.at(now, every).spent == 0 }
