package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

	mu      sync.Mutex
	current status.Faults // its lists are replaced, never modified, since a Status shares them
}

// replace returns a copy of a list with another entry instead of one; nil for none. Since when there is
// an entry stays. It also returns the entry before; nil if there was none.
func replace[T any](list []T, is func(*T) bool, now *T, since func(*T) *time.Time) (rest []T, before *T) {
	for i := range list {
		if is(&list[i]) {
			before = &list[i]
		} else {
			rest = append(rest, list[i])
		}
	}
	if now == nil {
		return rest, before
	}
	if before != nil {
		*since(now) = *since(before)
	}
	return append(rest, *now), before
}

// setInvalid sets why the newest version of a file is invalid; "" if it is not. retried is
// set if it is tried again without a change. It returns why the previous version was invalid.
func (f *faults) setInvalid(path, why string, retried bool) (was string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var now, before *status.InvalidFile
	if at := f.now(); why != "" {
		now = &status.InvalidFile{Path: path, Since: at, At: at, Reason: why, Retried: retried}
	}
	f.current.InvalidFiles, before = replace(f.current.InvalidFiles, func(r *status.InvalidFile) bool { return r.Path == path }, now,
		func(r *status.InvalidFile) *time.Time { return &r.Since })
	return cmp.Or(before, &status.InvalidFile{}).Reason
}

// invalid returns the invalid files.
func (f *faults) invalid() []status.InvalidFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current.InvalidFiles
}

// nodeAddresses is the retried work without which rules may lack an address of the node.
const nodeAddresses = "reading the node's addresses"

// pending describes input that is read or applied again; "" if there is none.
func (f *faults) pending() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.current.InvalidFiles {
		if r.Retried {
			return fmt.Sprintf("the newest version of %s could not be applied, and is retried: %s", r.Path, r.Reason)
		}
	}
	for _, r := range f.current.Retrying {
		if r.What == nodeAddresses {
			return r.What + " failed, and is retried: " + r.Error
		}
	}
	return ""
}

// setRetrying sets the error of work that is retried; nil after success. It returns the new and the
// previous error as text.
func (f *faults) setRetrying(work string, err error) (is, was string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var now, before *status.Retry
	if err != nil {
		is = err.Error()
		now = &status.Retry{What: work, Since: f.now(), Error: is}
	}
	f.current.Retrying, before = replace(f.current.Retrying, func(r *status.Retry) bool { return r.What == work }, now,
		func(r *status.Retry) *time.Time { return &r.Since })
	return is, cmp.Or(before, &status.Retry{}).Error
}

// setDown sets why a server does not serve; nil if it does.
func (f *faults) setDown(server, address string, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var now *status.Down
	if why != nil {
		now = &status.Down{Server: server, Address: address, Since: f.now(), Reason: why.Error()}
	}
	f.current.Down, _ = replace(f.current.Down, func(d *status.Down) bool { return d.Server == server && d.Address == address }, now,
		func(d *status.Down) *time.Time { return &d.Since })
	slices.SortFunc(f.current.Down, func(a, b status.Down) int {
		return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Address, b.Address))
	})
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
	st.Faults = f.current
}
