//go:build !linux

package iptables

import (
	"errors"

	"github.com/proxyc/proxyc/ir"
)

func (t *tables) removeNatives(ir.Family) (bool, error) { return false, nil }

type chainKey struct{ table, chain string }

func ownedChains(ir.Family) ([]chainKey, error) { return nil, nil }

func removeOwned(ir.Family) error { return errors.ErrUnsupported }

func dormant(ir.Family, string) (bool, error) { return false, nil }

func wake(ir.Family, string) error { return errors.ErrUnsupported }
