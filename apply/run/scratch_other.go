//go:build !linux

package run

import (
	"context"
	"errors"
	"io"
)

// Scratch is supported only on Linux, which has network namespaces.
func Scratch(context.Context, io.Reader, string, ...string) ([]byte, error) {
	return nil, errors.ErrUnsupported
}
