//go:build !linux

package conntrack

import "errors"

// table is the connection tracking table, which only Linux has.
type table struct{}

func open(int) (*table, error) { return nil, errors.New("connection tracking: only Linux has it") }

func (t *table) close() error { return nil }

func (t *table) dump(filter, func(Entry) error) (filtered bool, err error) { return true, nil }

func (t *table) delete([]Entry) (deleted int, err error) { return 0, nil }
