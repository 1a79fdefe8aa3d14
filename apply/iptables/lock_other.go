//go:build !linux

package iptables

import (
	"context"
	"errors"
	"time"
)

func holderOf(string) string { return "" }

func lockTools(context.Context, time.Duration) (unlock func(), err error) {
	return nil, errors.ErrUnsupported
}
