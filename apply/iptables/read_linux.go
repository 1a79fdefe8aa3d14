package iptables

import (
	"bytes"
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
	l := lister{t.tools}
	for {
		r, err := l.listFamily(ctx, f, l.saveAll)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		removed, why := t.removeNatives(f)
		if why != nil {
			r, errChains := l.listFamily(ctx, f, l.saveChains)
			if errChains != nil {
				return nil, fmt.Errorf("%w; %w; %w", err, why, errChains)
			}
			return r, nil
		}
		if !removed {
			return nil, err
		}
	}
}

// errIncompatible is what iptables-nft-save prints, with exit status 0, instead of a table with
// unknown rules.
var errIncompatible = errors.New("is incompatible, use 'nft' tool")

// lister lists our chains with the tools of iptables.
type lister struct{ *tools }

// listFamily lists our chains of a family. A list that lacks something is read again: the table may have
// changed meanwhile.
func (t lister) listFamily(ctx context.Context, f ir.Family, save saver) (r *rules.Ruleset, err error) {
	for range maxLists {
		if r, err = t.listOnce(ctx, f, save); !errors.Is(err, errPartial) {
			break
		}
	}
	return r, err
}

// maxLists is how often a table is listed while the lists are partial.
const maxLists = 5

// errPartial is the error of a list that lacks chains or rules.
var errPartial = errors.New("the list is partial")

// saver writes the chains of a table as iptables-save does.
type saver func(ctx context.Context, f ir.Family, table string, out io.Writer) error

func (t lister) listOnce(ctx context.Context, f ir.Family, save saver) (*rules.Ruleset, error) {
	saved := iptparse.NewParser(f)
	for _, table := range [...]string{"filter", "nat"} {
		unlisted := finder{text: errIncompatible.Error()}
		err := save(ctx, f, table, io.MultiWriter(saved, &unlisted))
		if unlisted.found {
			return nil, fmt.Errorf("%s: table %s %w", tool(f, t.Variant, "save"), table, errIncompatible)
		}
		if err != nil {
			return nil, err
		}
	}
	r, err := saved.Ruleset()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool(f, t.Variant, "save"), err)
	}
	return r, nil
}

// saveAll is save, and compares the number of chains and rules with the kernel's. If a request of
// iptables-nft-save fails, for lack of memory, it prints a part of the table and exits with status 0.
func (t lister) saveAll(ctx context.Context, f ir.Family, table string, out io.Writer) error {
	var saved content
	if err := t.save(ctx, f, table, io.MultiWriter(out, &lines{each: saved.add})); err != nil || t.Variant != NFT {
		return err
	}
	kernel, err := countTable(ctx, f, table)
	if err == nil && (saved.chains < kernel.chains || saved.rules < kernel.rules) {
		err = fmt.Errorf("%s: table %s: %w: %d of the kernel's %d chains, and %d of its %d rules",
			tool(f, t.Variant, "save"), table, errPartial, saved.chains, kernel.chains, saved.rules, kernel.rules)
	}
	return err
}

// content is the number of rules and user-defined chains of a table.
type content struct{ chains, rules int }

// add adds a line of the output of iptables-save.
func (c *content) add(line []byte) {
	switch {
	case bytes.HasPrefix(line, []byte("-A ")):
		c.rules++
	case bytes.HasPrefix(line, []byte(":")) && bytes.Contains(line, []byte(" - [")):
		c.chains++
	}
}

// lines is a Writer that calls each with every complete line.
type lines struct {
	each func(line []byte)
	last []byte // until it is complete
}

func (l *lines) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if l.last = append(l.last, line...); line[len(line)-1] == '\n' {
			l.each(l.last[:len(l.last)-1])
			l.last = l.last[:0]
		}
	}
	return len(text), nil
}
