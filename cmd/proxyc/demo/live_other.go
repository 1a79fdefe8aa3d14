//go:build !linux

package demo

import (
	"context"
	"errors"
	"io"
)

// Unsupported is why the demo is not supported on this system.
var Unsupported = errors.New("--live: only on Linux, which has network namespaces")

// Run returns Unsupported, like Node.
func Run(context.Context, io.Writer, io.Writer, string) (int, error) { return 0, Unsupported }
func Node(context.Context, io.Writer, io.Writer, string) error       { return Unsupported }
