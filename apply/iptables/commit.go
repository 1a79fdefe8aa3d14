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

// Commit executes a Plan. If a run of the tool fails, it reverts the previous runs. If the kernel
// rejects some Services, it commits the rest.
func (d *Dataplane) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	plan, ok := p.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("iptables cannot commit a %T", p)
	}
	d.found = rules.Rulesets{} // outdated by the commit
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
	if err != nil { // the tables are unchanged, or their state is unknown
		return apply.Result{}, err
	}
	return apply.Result{Tables: plan.tables()}, nil
}

// familyError is the error of a tool for one family.
type familyError struct {
	family ir.Family
	err    error
}

func (e *familyError) Error() string { return e.err.Error() }
func (e *familyError) Unwrap() error { return e.err }

// allOrNothing executes a Plan completely, or leaves the tables unchanged.
func (d *Dataplane) allOrNothing(ctx context.Context, p *Plan) error {
	done, err := d.execute(ctx, p)
	if err == nil || done == 0 {
		return err
	}
	// Even if ctx has ended, no partial change may remain.
	if back := d.revert(context.WithoutCancel(ctx), p); back != nil {
		return fmt.Errorf("%w; %v", err, back)
	}
	return err
}

// execute executes a Plan. It returns the number of runs of the tool that took effect.
func (d *Dataplane) execute(ctx context.Context, p *Plan) (done int, err error) {
	for _, f := range ir.Present(p.families) {
		for _, s := range f.steps(d.maxRules()) {
			if err := d.restore(ctx, f.want.Family, s.input(f.want.Family)); err != nil {
				// The tool commits table by table, so the first of two may be committed.
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

// maxRules returns the maximum number of rules per run. The legacy tool replaces the whole table each
// time, so one run is cheapest.
func (d *Dataplane) maxRules() int {
	if d.Variant == Legacy {
		return math.MaxInt
	}
	return d.maxNFT
}

func (d *Dataplane) revert(ctx context.Context, p *Plan) error {
	now, err := d.read(ctx)
	if err != nil {
		return fmt.Errorf("taking back what was done: %w", err)
	}
	if _, err := d.execute(ctx, newPlan(p.within(now), p.have)); err != nil {
		return fmt.Errorf("taking back what was done: %w", err)
	}
	return nil
}

// restore runs iptables-restore. In the legacy variant it holds the lock of the tools; see
// [monitor.Legacy].
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
	err = d.own(func() error { return d.runWithInput(ctx, in, name, append([]string{"--noflush"}, d.waitFlags()...)...) })
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

// own calls work, which changes the tables, within the monitor's Own.
func (d *Dataplane) own(work func() error) (err error) {
	d.monitor.Own(func() (certain bool) {
		err = work()
		return err == nil && (d.Variant == NFT || d.locks())
	})
	return err
}

// runWithInput runs a tool with an input.
func (d *Dataplane) runWithInput(ctx context.Context, in input, name string, args ...string) error {
	stdin, w := io.Pipe()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer stdin.Close() // a tool may exit before it has read everything
	writing.Go(func() { w.CloseWithError(in(w)) })
	return d.run(ctx, stdin, io.Discard, name, args...)
}

// locked reports whether a legacy tool failed because another program holds the lock. Its exit
// status, 4, has other meanings, too.
func locked(failed *run.Error) bool { return strings.Contains(failed.Stderr, "xtables lock") }

// lineNumber matches the line number in a tool's error: "line 7 failed", "Error occurred at line:
// 7".
var lineNumber = regexp.MustCompile(`\bline:? (\d+)`)

// lineOf returns the line of text in a tool's error, with its number. For rejections by the kernel
// the legacy tools report the COMMIT line; there is no line then.
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
