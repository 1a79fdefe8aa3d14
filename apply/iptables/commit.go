package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Commit carries a Plan out. When a run of the tool fails, what the runs before
// it did is taken back, and the tables are as they were. When it is for some
// Services that the kernel refuses, it goes on without them.
func (d *Dataplane) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	plan, ok := p.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("iptables cannot commit a %T", p)
	}
	d.found = rules.Rulesets{} // it will be another one
	result, err := d.commit(ctx, plan)
	if err == nil && len(result.Refused) == 0 {
		d.remember(plan)
	}
	if of, ok := errors.AsType[*familyError](err); ok {
		result.Failed = []ir.Family{of.family}
	}
	return result, err
}

func (d *Dataplane) commit(ctx context.Context, plan *Plan) (apply.Result, error) {
	err := d.allOrNothing(ctx, plan)
	if no, ok := errors.AsType[*refused](err); ok {
		return d.quarantine(ctx, plan, no)
	}
	if err != nil { // the tables are as they were, or nobody knows
		return apply.Result{}, err
	}
	return apply.Result{Tables: plan.tables()}, nil
}

// familyError is that of a tool, which serves one family.
type familyError struct {
	family ir.Family
	err    error
}

func (e *familyError) Error() string { return e.err.Error() }
func (e *familyError) Unwrap() error { return e.err }

// allOrNothing carries a Plan out, or leaves the tables as they were.
func (d *Dataplane) allOrNothing(ctx context.Context, p *Plan) error {
	done, err := d.carryOut(ctx, p)
	if err == nil || done == 0 {
		return err
	}
	// Even if ctx has ended: half of a change is no state to leave behind.
	if back := d.takeBack(context.WithoutCancel(ctx), p); back != nil {
		return fmt.Errorf("%w; %v", err, back)
	}
	return err
}

// carryOut returns how many runs of the tool did something before the one that failed.
func (d *Dataplane) carryOut(ctx context.Context, p *Plan) (done int, err error) {
	for _, f := range ir.Present(p.families) {
		for _, s := range f.steps(d.most()) {
			if err := d.restore(ctx, f.want.Family, s.input(f.want.Family)); err != nil {
				// The tool commits table by table, so that the first of two may be in force.
				return done + len(s) - 1, err
			}
			done++
		}
		for i := range f.tables {
			if table := &f.tables[i]; table.wake {
				if err := d.own(func() error { return wake(f.want.Family, table.name) }); err != nil {
					return done, &familyError{f.want.Family, err}
				}
			}
		}
	}
	return done, nil
}

// most is the greatest number of rules for one run. Legacy replaces the whole
// table each time, so everything goes at once.
func (d *Dataplane) most() int {
	if d.Variant == Legacy {
		return math.MaxInt
	}
	return d.mostNFT
}

func (d *Dataplane) takeBack(ctx context.Context, p *Plan) error {
	now, err := d.read(ctx)
	if err != nil {
		return fmt.Errorf("taking back what was done: %w", err)
	}
	if _, err := d.carryOut(ctx, newPlan(p.within(now), p.have)); err != nil {
		return fmt.Errorf("taking back what was done: %w", err)
	}
	return nil
}

// restore runs iptables-restore. In the legacy variant it does so with the lock of
// the tools: see [monitor.Legacy].
func (d *Dataplane) restore(ctx context.Context, f ir.Family, in input) (err error) {
	name := tool(f, d.Variant, "restore")
	if d.locks() {
		unlock, err := lockTools(ctx, d.wait)
		if err != nil {
			return &familyError{f, fmt.Errorf("%s: %w", name, err)}
		}
		defer unlock()
		ctx = run.WithEnv(ctx, "XTABLES_LOCKFILE="+noLockFile)
	}
	err = d.own(func() error { return d.feed(ctx, in, name, append([]string{"--noflush"}, d.waitFlags()...)...) })
	failed, ok := errors.AsType[*run.Error](err)
	switch {
	case err == nil:
		return nil
	case ok && locked(failed):
		err = fmt.Errorf("%s: %s", name, lockedBy(lockFile(), d.wait))
	case ok && failed.Code > 0:
		number, line := lineOf(failed.Stderr, in.text())
		return &refused{&familyError{f, err}, number, line}
	}
	return &familyError{f, err}
}

// own calls work, which changes the tables, and lets the monitor know of it.
func (d *Dataplane) own(work func() error) (err error) {
	d.monitor.Own(func() (certain bool) {
		err = work()
		return err == nil && (d.Variant == NFT || d.locks())
	})
	return err
}

// feed runs a tool on an input.
func (d *Dataplane) feed(ctx context.Context, in input, name string, args ...string) error {
	stdin, w := io.Pipe()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer stdin.Close() // a tool may end before it has read everything
	writing.Go(func() { w.CloseWithError(in(w)) })
	return d.run(ctx, stdin, io.Discard, name, args...)
}

// locked reports whether a legacy tool gave up because another program holds the
// lock. Its exit status, 4, has other meanings too.
func locked(failed *run.Error) bool { return strings.Contains(failed.Stderr, "xtables lock") }

// lineNumber finds where the tools say they failed: "line 7 failed", "Error
// occurred at line: 7".
var lineNumber = regexp.MustCompile(`\bline:? (\d+)`)

// lineOf returns the line of text that the tool's message names, and its number.
// The legacy tools name COMMIT for what the kernel refuses: then there is none.
func lineOf(message string, text []byte) (number int, line string) {
	found := lineNumber.FindStringSubmatch(message)
	if found == nil {
		return 0, ""
	}
	n, err := strconv.Atoi(found[1])
	lines := strings.SplitN(string(text), "\n", n+1)
	if err != nil || n < 1 || n > len(lines) || lines[n-1] == "COMMIT" {
		return 0, ""
	}
	return n, lines[n-1]
}
