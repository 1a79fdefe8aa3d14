package conntrack

import (
	"context"
	"errors"
)

// batch is how many stale entries are collected and deleted at a time. The acknowledgements of a
// batch fit easily into a socket's buffer.
const batch = 64

// Clean reads the tracked flows of a Selector's family in the network namespace of the calling
// thread. It passes stale ones to pick, at most batch at a time, and deletes those that pick
// returns. It holds no more of the kernel's table, however large that is. If the table changes
// meanwhile, an entry may be passed twice. Clean ends with the error of pick, or when ctx ends.
func Clean(ctx context.Context, sel *Selector, pick func([]Stale) ([]Stale, error)) (deleted int, err error) {
	if sel.Idle() {
		return 0, nil
	}
	t, err := open(0)
	if err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { t.close() }) // ends a pending receive
	deleted, err = t.clean(sel, pick)
	if !stop() {
		return deleted, context.Cause(ctx)
	}
	return deleted, errors.Join(err, t.close())
}

func (t *table) clean(sel *Selector, pick func([]Stale) ([]Stale, error)) (deleted int, err error) {
	err = t.sweep(sel, func(stale []Stale) error {
		picked, err := pick(stale)
		if err != nil {
			return err
		}
		var entries []Entry
		for _, s := range picked {
			if answered, err := t.answered(s.Entry); err != nil {
				return err
			} else if !answered {
				entries = append(entries, s.Entry)
			}
		}
		n, err := t.delete(entries)
		deleted += n
		return err
	})
	return deleted, err
}

// sweep passes the stale entries to take, at most batch at a time.
func (t *table) sweep(sel *Selector, take func([]Stale) error) error {
	pending := make([]Stale, 0, batch)
	flush := func() (err error) {
		if len(pending) > 0 {
			err = take(pending)
		}
		pending = pending[:0]
		return err
	}
	for _, f := range sel.filters() {
		filtered, err := t.dump(f, func(e Entry) error {
			s, ok := sel.Stale(e)
			if !ok {
				return nil
			}
			if pending = append(pending, s); len(pending) < batch {
				return nil
			}
			return flush()
		})
		if err == nil {
			err = flush()
		}
		if err != nil || !filtered { // without a filter, one dump contains everything
			return err
		}
	}
	return nil
}
