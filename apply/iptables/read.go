package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
)

// Rulesets reads our chains.
func (t *tables) Rulesets(ctx context.Context) (sets rules.Rulesets, err error) {
	for _, f := range t.families {
		if *sets.At(f), err = t.readFamily(ctx, f); err != nil {
			return sets, err
		}
		if t.Variant != NFT {
			continue
		}
		for _, of := range sets.Of(f).Tables() {
			if of.Dormant, err = dormant(f, of.Name); err != nil {
				return sets, err
			}
		}
	}
	return sets, nil
}

// readFamily reads our chains of a family. If the tools cannot list them, it removes the rules that
// cause this, and tries again.
func (t *tables) readFamily(ctx context.Context, f ir.Family) (*rules.Ruleset, error) {
	for {
		r, err := t.listFamily(ctx, f)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		removed, why := t.removeNatives(f)
		if why != nil {
			return nil, fmt.Errorf("%w; %w", err, why)
		}
		if !removed {
			return nil, err
		}
	}
}

// errIncompatible is what iptables-nft-save prints, with exit status 0, instead of a table with
// unknown rules.
var errIncompatible = errors.New("is incompatible, use 'nft' tool")

func (t *tables) listFamily(ctx context.Context, f ir.Family) (*rules.Ruleset, error) {
	saved := iptparse.NewParser(f)
	for _, table := range [...]string{"filter", "nat"} {
		unlisted := finder{text: errIncompatible.Error()}
		if err := t.save(ctx, f, table, io.MultiWriter(saved, &unlisted)); err != nil {
			return nil, err
		}
		if unlisted.found {
			return nil, fmt.Errorf("%s: table %s %w", tool(f, t.Variant, "save"), table, errIncompatible)
		}
	}
	r, err := saved.Ruleset()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool(f, t.Variant, "save"), err)
	}
	return r, nil
}
