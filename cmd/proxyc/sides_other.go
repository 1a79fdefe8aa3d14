//go:build !linux

package main

import (
	"context"
	"errors"

	"github.com/proxyc/proxyc/ir"
)

// kernel returns an error: elsewhere than on Linux there are no such rules.
func (d *described) kernel(context.Context, ir.Programs, string) error {
	return errors.New("kernel: needs Linux")
}
