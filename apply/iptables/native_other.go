//go:build !linux

package iptables

import (
	"context"
	"errors"
	"io"

	"github.com/proxyc/proxyc/ir"
)

func (t *tables) removeNatives(ir.Family) (bool, error) { return false, nil }

type chainKey struct{ table, chain string }

func ownedChains(ir.Family) ([]chainKey, error) { return nil, nil }

func (t *tables) saveChains(context.Context, ir.Family, string, io.Writer) error {
	return errors.ErrUnsupported
}

func removeOwned(ir.Family) error { return errors.ErrUnsupported }

func dormant(ir.Family, string) (bool, error) { return false, nil }

func countTable(context.Context, ir.Family, string) (content, error) {
	return content{}, errors.ErrUnsupported
}

func hasChain(context.Context, ir.Family, string, string) (bool, error) {
	return false, errors.ErrUnsupported
}

func generation(context.Context) (uint32, error) { return 0, errors.ErrUnsupported }

func wake(ir.Family, string) error { return errors.ErrUnsupported }
