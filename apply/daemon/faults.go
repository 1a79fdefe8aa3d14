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

// without returns a copy of a list without one entry, and that entry; nil if there is none.
func without[T any](list []T, is func(*T) bool) (rest []T, entry *T) {
	for i := range list {
		if is(&list[i]) {
			entry = &list[i]
		} else {
			rest = append(rest, list[i])
		}
	}
	return rest, entry
}

// setInvalid sets why the newest version of a file is invalid; "" if it is not. retried is
// set if it is tried again without a change. It returns why the previous version was invalid.
func (f *faults) setInvalid(path, why string, retried bool) (was string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rest, before := without(f.current.InvalidFiles, func(r *status.InvalidFile) bool { return r.Path == path })
	if why != "" {
		at := f.now()
		now := status.InvalidFile{Path: path, Since: at, At: at, Reason: why, Retried: retried}
		if before != nil {
			now.Since = before.Since
		}
		rest = append(rest, now)
	}
	f.current.InvalidFiles = rest
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
	rest, before := without(f.current.Retrying, func(r *status.Retry) bool { return r.What == work })
	now := status.Retry{What: work, Since: f.now()}
	if before != nil {
		now.Since, was = before.Since, before.Error
	}
	if err != nil {
		now.Error = err.Error()
		rest = append(rest, now)
	}
	f.current.Retrying = rest
	return now.Error, was
}

// setDown sets why a server does not serve; nil if it does.
func (f *faults) setDown(server, address string, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rest, before := without(f.current.Down, func(d *status.Down) bool { return d.Server == server && d.Address == address })
	if why != nil {
		now := status.Down{Server: server, Address: address, Since: f.now(), Reason: why.Error()}
		if before != nil {
			now.Since = before.Since
		}
		rest = append(rest, now)
	}
	slices.SortFunc(rest, func(a, b status.Down) int {
		return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Address, b.Address))
	})
	f.current.Down = rest
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
