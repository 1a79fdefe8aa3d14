//go:build !linux

package proof

import (
	"context"
	"errors"

	"github.com/proxyc/proxyc/ir"
)

// kernel returns an error: only Linux has the rules.
func (d *Side) kernel(context.Context, ir.Programs, string) error {
	return errors.New("kernel: requires Linux")
}
