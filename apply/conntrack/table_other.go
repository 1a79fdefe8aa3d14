//go:build !linux

package conntrack

import (
	"errors"

	"github.com/proxyc/proxyc/ir"
)

// Table is the connection tracking table, which only Linux has.
type Table struct{}

// Open tells that there is none.
func Open(int) (*Table, error) { return nil, errors.New("connection tracking: only Linux has it") }

// Close does nothing.
func (t *Table) Close() error { return nil }

// UDP gives nothing.
func (t *Table) UDP(ir.Family) ([]Entry, error) { return nil, nil }

// Delete does nothing.
func (t *Table) Delete([]Entry) (int, error) { return 0, nil }
