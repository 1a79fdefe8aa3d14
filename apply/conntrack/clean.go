package conntrack

import (
	"context"
	"errors"
)

// batch is how many stale entries are held at a time, and deleted at once: the
// answers to as many fit into a socket's buffer with ease.
const batch = 64

// Clean goes through the tracked flows of a Selector's family, in the network
// namespace of the calling thread, and hands those that are stale to pick, a few at
// a time; what pick returns is deleted. Nothing else is kept of the kernel's
// table, however large it is. When that changes meanwhile, an entry may be
// handed over twice. An error of pick ends it, as does the end of ctx.
func Clean(ctx context.Context, sel *Selector, pick func([]Stale) ([]Stale, error)) (deleted int, err error) {
	if sel.Idle() {
		return 0, nil
	}
	t, err := open(0)
	if err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { t.close() }) // which ends what waits for the kernel
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
		entries := make([]Entry, len(picked))
		for i, s := range picked {
			entries[i] = s.Entry
		}
		n, err := t.delete(entries)
		deleted += n
		return err
	})
	return deleted, err
}

// sweep hands the stale entries to take, as many at a time as delete deletes at once.
func (t *table) sweep(sel *Selector, take func([]Stale) error) error {
	held := make([]Stale, 0, batch)
	hand := func() (err error) {
		if len(held) > 0 {
			err = take(held)
		}
		held = held[:0]
		return err
	}
	for _, f := range sel.filters() {
		filtered, err := t.dump(f, func(e Entry) error {
			s, ok := sel.Stale(e)
			if !ok {
				return nil
			}
			if held = append(held, s); len(held) < batch {
				return nil
			}
			return hand()
		})
		if err == nil {
			err = hand()
		}
		if err != nil || !filtered { // not filtered: these were all that there are
			return err
		}
	}
	return nil
}
