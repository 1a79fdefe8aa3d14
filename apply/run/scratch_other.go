//go:build !linux

package run

import (
	"context"
	"errors"
	"io"
)

// Scratch is for Linux alone, which has network namespaces.
func Scratch(context.Context, io.Reader, string, ...string) ([]byte, error) {
	return nil, errors.ErrUnsupported
}
