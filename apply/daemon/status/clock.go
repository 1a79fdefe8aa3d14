package status

import (
	"slices"
	"time"
)

// clockSet is the difference above which a clock has been set.
const clockSet = time.Second

// SetNow sets Now, and converts times to the node's current wall clock, so that ages are correct. It
// may have been set since, even by a year on a node whose clock stops without power.
func (st *Status) SetNow(now time.Time) {
	st.Now = now
	fix := func(times ...*time.Time) {
		for _, t := range times {
			if t.IsZero() {
				continue
			}
			then := now.Add(t.Sub(now))                 // by the monotonic clock, if both have it
			if then.Sub(t.Round(0)).Abs() >= clockSet { // clocks drift: report a constant time otherwise
				*t = then
			}
		}
	}
	fix(&st.Started, &st.LastSync)
	if own(&st.LastChange) {
		fix(&st.LastChange.At)
	}
	if own(&st.LastError) {
		fix(&st.LastError.At)
	}
	if own(&st.LastDrift) {
		fix(&st.LastDrift.At)
	}
	if own(&st.KubeProxy) {
		fix(&st.KubeProxy.Since)
	}
	if own(&st.Easing) {
		fix(&st.Easing.Since, &st.Easing.Until)
	}
	st.Draining = slices.Clone(st.Draining)
	for i := range st.Draining {
		fix(&st.Draining[i].Since)
	}
	st.Rejected = slices.Clone(st.Rejected)
	for i := range st.Rejected {
		fix(&st.Rejected[i].Since, &st.Rejected[i].At)
	}
	st.Down = slices.Clone(st.Down)
	for i := range st.Down {
		fix(&st.Down[i].Since)
	}
	st.Retrying = slices.Clone(st.Retrying)
	for i := range st.Retrying {
		fix(&st.Retrying[i].Since)
	}
	if own(&st.APIServer) {
		a := st.APIServer
		fix(&a.Lost)
		a.Resources = slices.Clone(a.Resources)
		for i := range a.Resources {
			fix(&a.Resources[i].Last, &a.Resources[i].Lost)
		}
	}
}

// own replaces what *p points to by a copy, since other Statuses may share it. It reports whether
// there is any.
func own[T any](p **T) bool {
	if *p == nil {
		return false
	}
	c := **p
	*p = &c
	return true
}
