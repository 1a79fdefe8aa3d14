package iptables

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// counterID identifies a rule by its text as iptables-save prints it.
type counterID struct {
	at   place
	rule string // "-A KUBE-SERVICES …"
}

// place is a chain.
type place struct {
	family       ir.Family
	table, chain string
}

type (
	reading = apply.Reading[counterID]
	value   = apply.Value[counterID]
)

// traffic implements apply.Counters.
func (d *Dataplane) traffic(ctx context.Context) (map[ir.ServicePort]apply.Traffic, error) {
	return d.meter.Read(ctx, d.counters)
}

// counters reads the counters of the rules of frontends. If equal rules exist, only the first one counts.
func (d *Dataplane) counters(ctx context.Context) (r reading, err error) {
	of := render.FrontendsIn(d.applied.Programs)
	r.Of = func(id counterID) (render.Counted, bool) { return rules.CountedBy(id.rule, of(id.at.family)) }
	index := map[counterID]int{}
	for f := range ir.Present(d.applied.Node()) {
		for _, table := range [...]string{"nat", "filter"} {
			out := &lines{each: func(line []byte) {
				count, rule, _ := strings.Cut(strings.TrimPrefix(string(line), "["), "] ") // [packets:bytes] -A …
				packets, _, _ := strings.Cut(count, ":")
				n, err := strconv.ParseUint(packets, 10, 64)
				chain, _, _ := strings.Cut(strings.TrimPrefix(rule, "-A "), " ")
				if err != nil || !rules.Owned(chain) || rules.OfService(chain) {
					return
				}
				id := counterID{place{f, table, chain}, rule}
				if i, twice := index[id]; twice {
					r.Values[i].Count += n
					return
				}
				index[id] = len(r.Values)
				r.Values = append(r.Values, value{ID: id, Count: n})
			}}
			if err := d.run(ctx, nil, out, tool(f, d.Variant, "save"), "--counters", "--table", table); err != nil {
				return reading{}, err
			}
		}
	}
	return r, nil
}

// measured calls commit, and counts what the rules counted that a Plan empties.
func (d *Dataplane) measured(ctx context.Context, p *Plan, commit func() (apply.Result, error)) (result apply.Result, err error) {
	if d.meter == nil {
		return commit()
	}
	emptied := p.emptied()
	if len(emptied) == 0 {
		return commit()
	}
	d.meter.Around(func() (reading, error) { return d.counters(ctx) }, func(id counterID) bool { return emptied[id.at] }, func() bool {
		result, err = commit()
		return err == nil && len(result.Refused) == 0
	})
	return result, err
}

// emptied returns the chains with rules of several Services that a Plan empties, filled again or not.
func (p *Plan) emptied() map[place]bool {
	all := map[place]bool{}
	for f, of := range ir.Present(p.families) {
		for i := range of.tables {
			for _, c := range slices.Concat(of.tables[i].set, of.tables[i].stale) {
				if !rules.OfService(c.Name) {
					all[place{f, of.tables[i].name, c.Name}] = true
				}
			}
		}
	}
	return all
}
