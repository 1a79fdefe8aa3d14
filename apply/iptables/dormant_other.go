//go:build !linux

package iptables

import (
	"errors"

	"github.com/proxyc/proxyc/ir"
)

func dormant(ir.Family, string) (bool, error) { return false, nil }

func wake(ir.Family, string) error { return errors.ErrUnsupported }
