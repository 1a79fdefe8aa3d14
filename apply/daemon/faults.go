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

	"github.com/proxyc/proxyc/apply/daemon/status"
)

// faults records failures besides the rules: rejected files, work that is retried, and servers that
// do not serve.
type faults struct {
	log *slog.Logger
	now func() time.Time

	mu  sync.Mutex
	are status.Faults // its lists are replaced, never modified, since a Status shares them
}

// setRejected sets why the newest version of a file was rejected; "" if it was accepted. It reports
// whether the previous version was rejected.
func (f *faults) setRejected(path, why string) (was bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.now()
	since := at
	now := slices.DeleteFunc(slices.Clone(f.are.Rejected), func(k status.Rejected) bool {
		if k.Path == path {
			since, was = k.Since, true
		}
		return k.Path == path
	})
	if why != "" {
		now = append(now, status.Rejected{Path: path, Since: since, At: at, Reason: why})
	}
	f.are.Rejected = now
	return was
}

// setRetrying sets the error of work that is retried; nil after success. It returns the new and the
// previous error as text.
func (f *faults) setRetrying(what string, err error) (is, was string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := f.now()
	now := slices.DeleteFunc(slices.Clone(f.are.Retrying), func(r status.Retry) bool {
		if r.What == what {
			since, was = r.Since, r.Error
		}
		return r.What == what
	})
	if err != nil {
		is = err.Error()
		now = append(now, status.Retry{What: what, Since: since, Error: is})
	}
	f.are.Retrying = now
	return is, was
}

// setDown sets why a server does not serve; nil if it does.
func (f *faults) setDown(server, address string, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := f.now()
	now := slices.DeleteFunc(slices.Clone(f.are.Down), func(d status.Down) bool {
		same := d.Server == server && d.Address == address
		if same {
			since = d.Since
		}
		return same
	})
	if why != nil {
		now = append(now, status.Down{Server: server, Address: address, Since: since, Reason: why.Error()})
	}
	slices.SortFunc(now, func(a, b status.Down) int {
		return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Address, b.Address))
	})
	f.are.Down = now
}

// retrying records and logs the error of work that is retried; nil after success. An unchanged
// error is not logged again.
func (f *faults) retrying(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return // the daemon ends
	}
	switch is, was := f.setRetrying(what, err); {
	case is == was:
	case err != nil:
		f.log.Error(what+": failed, retrying", "err", err)
	default:
		f.log.Info(what + " succeeded after failures")
	}
}

// report adds the faults to a Status.
func (f *faults) report(st *status.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st.Faults = f.are
}
