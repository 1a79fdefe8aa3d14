package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// faults is what failed beside the rules: files that were refused, what is tried again, and
// servers that do not serve.
type faults struct {
	log *slog.Logger
	now func() time.Time

	mu  sync.Mutex
	are Faults // its lists are replaced, never changed: a Status has them, too
}

// setRejected sets why the newest version of a file is not what counts; "": it does. It
// reports whether the version before was rejected.
func (f *faults) setRejected(path, why string) (was bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.now()
	since := at
	now := slices.DeleteFunc(slices.Clone(f.are.Rejected), func(k Rejected) bool {
		if k.Path == path {
			since, was = k.Since, true
		}
		return k.Path == path
	})
	if why != "" {
		now = append(now, Rejected{path, since, at, why})
	}
	f.are.Rejected = now
	return was
}

// setRetrying sets why something failed that is tried again; nil: it did not. It
// returns that error, and the one before, as text.
func (f *faults) setRetrying(what string, err error) (is, was string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := f.now()
	now := slices.DeleteFunc(slices.Clone(f.are.Retrying), func(r Retry) bool {
		if r.What == what {
			since, was = r.Since, r.Error
		}
		return r.What == what
	})
	if err != nil {
		is = err.Error()
		now = append(now, Retry{what, since, is})
	}
	f.are.Retrying = now
	return is, was
}

// setDown sets why a server does not serve; nil: it does.
func (f *faults) setDown(server, address string, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := f.now()
	now := slices.DeleteFunc(slices.Clone(f.are.Down), func(d Down) bool {
		same := d.Server == server && d.Address == address
		if same {
			since = d.Since
		}
		return same
	})
	if why != nil {
		now = append(now, Down{server, address, since, why.Error()})
	}
	slices.SortFunc(now, func(a, b Down) int {
		return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Address, b.Address))
	})
	f.are.Down = now
}

// retrying notes that something beside the rules failed and will be tried again;
// nil: it succeeded. The same error is not logged twice.
func (f *faults) retrying(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return // the daemon ends
	}
	switch is, was := f.setRetrying(what, err); {
	case is == was:
	case err != nil:
		f.log.Error(what+": will be tried again", "err", err)
	default:
		f.log.Info(what + ": done, after failures")
	}
}

// report adds the faults to a Status.
func (f *faults) report(st *Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st.Faults = f.are
}
