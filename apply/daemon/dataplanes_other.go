//go:build !linux

package daemon

import (
	"context"
	"errors"

	"github.com/proxyc/proxyc/apply"
)

var errNotLinux = errors.New("needs Linux: elsewhere proxyc compiles, traces and explains only")

var dataplanes []dataplane

// MayDrop returns an error: elsewhere than on Linux nothing is known.
func MayDrop(context.Context) ([]string, error) { return nil, errNotLinux }

// Beside returns an error: nothing is left elsewhere than on Linux.
func Beside(context.Context) ([]apply.Leftover, error) { return nil, errNotLinux }
