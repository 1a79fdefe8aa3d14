//go:build !linux

package conntrack

import (
	"errors"

	"github.com/proxyc/proxyc/ir"
)

// table is empty, since only Linux has the connection tracking table.
type table struct{}

func open(int) (*table, error) { return &table{}, nil }

func (t *table) close() error { return nil }

func (t *table) dump(filter, func(Entry) error) (filtered bool, err error) { return true, nil }

func (t *table) answered(Entry) (bool, error) { return false, nil }

func (t *table) delete([]Entry) (deleted int, err error) { return 0, nil }

// Each returns an error.
func Each(ir.Family, func(Entry) error) error {
	return errors.New("only Linux has a connection tracking table: name a file")
}
