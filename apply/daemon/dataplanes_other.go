//go:build !linux

package daemon

import (
	"context"
	"errors"

	"github.com/proxyc/proxyc/apply"
)

var errNotLinux = errors.New("needs Linux: elsewhere proxyc compiles, traces and explains only")

var dataplanes []dataplane

// mayDrop returns an error: elsewhere than on Linux nothing is known.
func mayDrop(context.Context) ([]string, error) { return nil, errNotLinux }

// beside returns an error: nothing is left elsewhere than on Linux.
func beside(context.Context) ([]apply.Leftover, error) { return nil, errNotLinux }
