package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// tables reads and writes the tables.
type tables struct {
	*tools
	maxNFT   int          // maximum rules per run of the nft variant
	readOnly bool         // disables changes
	log      *slog.Logger // optional
	monitor  monitor.Handle
}

// Commit executes a Plan. If a run of the tool fails, it reverts the previous runs.
func (d *Dataplane) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	plan, ok := p.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("iptables cannot commit a %T", p)
	}
	d.have = rules.Rulesets{} // outdated by the commit
	result, err := d.measured(ctx, plan, func() (apply.Result, error) { return d.commit(ctx, plan) })
	if err == nil && len(result.Refused) == 0 {
		d.remember(plan)
	}
	if of, ok := errors.AsType[*familyError](err); ok {
		result.Failed = []ir.Family{of.family}
	}
	return result, err
}

// remember records a Plan as applied.
func (d *Dataplane) remember(p *Plan) {
	d.applied.Take(p.desired)
	if p.desired.Full {
		d.lowerers = ir.PerFamily[Lowerer]{}
	}
	if d.meter != nil {
		d.meter.Forget(p.desired, &d.applied)
	}
}

func (t *tables) commit(ctx context.Context, plan *Plan) (apply.Result, error) {
	err := t.allOrNothing(ctx, plan)
	if no, ok := errors.AsType[*refused](err); ok {
		return t.findRefused(ctx, plan, no)
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
func (t *tables) allOrNothing(ctx context.Context, p *Plan) error {
	done, err := t.execute(ctx, p)
	if err == nil || done == 0 {
		return err
	}
	// Even if ctx has ended, no partial change may remain.
	if back := t.revert(context.WithoutCancel(ctx), p); back != nil {
		return fmt.Errorf("%v; %w", err, back) // whatever err is: the tables are in neither state
	}
	return err
}

// execute executes a Plan. It returns the number of runs of the tool that took effect.
func (t *tables) execute(ctx context.Context, p *Plan) (done int, err error) {
	for _, f := range ir.Present(p.families) {
		for _, s := range f.steps(t.maxRules()) {
			if err := t.change(ctx, f.want.Family, s); err != nil {
				// The tool commits table by table, so the first of two may be committed.
				return done + len(s) - 1, err
			}
			done++
		}
		for i := range f.tables {
			if table := &f.tables[i]; table.wake {
				if err := t.own(func() error { return wake(f.want.Family, table.name) }); err != nil {
					return done, &familyError{f.want.Family, err}
				}
			}
		}
	}
	return done, nil
}

// maxRules returns the maximum number of rules per run. The legacy tool replaces the whole table
// each time, so one run is cheapest.
func (t *tables) maxRules() int {
	if t.Variant == Legacy {
		return math.MaxInt
	}
	return t.maxNFT
}

func (t *tables) revert(ctx context.Context, p *Plan) error {
	now, err := t.Rulesets(ctx)
	if err != nil {
		return fmt.Errorf("taking back what was done: %w", err)
	}
	if _, err := t.execute(ctx, newPlan(p.within(now), p.have)); err != nil {
		return fmt.Errorf("taking back what was done: %w", err)
	}
	return nil
}

// restore runs iptables-restore. In the legacy variant it holds the lock of the tools; see
// [monitor.Legacy].
func (t *tables) restore(ctx context.Context, f ir.Family, in input) (err error) {
	name := tool(f, t.Variant, "restore")
	if t.locks() {
		unlock, err := lockTools(ctx, t.wait)
		if err != nil {
			return &familyError{f, fmt.Errorf("%s: %w", name, err)}
		}
		defer unlock()
		ctx = run.WithEnv(ctx, "XTABLES_LOCKFILE="+noLockFile)
	}
	err = t.own(func() error { return t.runWithInput(ctx, in, name, append([]string{"--noflush"}, t.waitFlags()...)...) })
	failed, ok := errors.AsType[*run.Error](err)
	switch {
	case err == nil:
		return nil
	case ok && locked(failed):
		err = fmt.Errorf("%s: %s", name, lockedBy(lockFile(), t.wait))
	case ok && failed.Code > 0 && !temporary.MatchString(failed.Stderr):
		number, line := lineOf(failed.Stderr, in.text())
		return &refused{&familyError{f, err}, number, line}
	}
	return &familyError{f, err}
}

// change is restore of a step. In the nft variant, the kernel numbers changes, which shows whether the
// tool made one.
func (t *tables) change(ctx context.Context, f ir.Family, s step) error {
	if t.Variant != NFT {
		return t.restore(ctx, f, s.input(f))
	}
	before, err := generation(ctx)
	if err != nil {
		return err
	}
	if err := t.restore(ctx, f, s.input(f)); err != nil {
		return err
	}
	if after, err := generation(context.WithoutCancel(ctx)); err != nil || after != before {
		return err
	}
	return &familyError{f, fmt.Errorf("%s exited with status 0, but changed nothing", tool(f, t.Variant, "restore"))}
}

// own calls work, which changes the tables, within the monitor's Own.
func (t *tables) own(work func() error) (err error) {
	t.monitor.Own(func() (certain bool) {
		err = work()
		return err == nil && (t.Variant == NFT || t.locks())
	})
	return err
}

// runWithInput runs a tool with an input.
func (t *tables) runWithInput(ctx context.Context, in input, name string, args ...string) error {
	stdin, w := io.Pipe()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer stdin.Close() // a tool may exit before it has read everything
	writing.Go(func() { w.CloseWithError(in(w)) })
	return t.run(ctx, stdin, io.Discard, name, args...)
}

// locked reports whether a legacy tool failed because another program holds the lock. Its exit
// status, 4, has other meanings, too.
func locked(failed *run.Error) bool { return strings.Contains(failed.Stderr, "xtables lock") }

// temporary matches errors of the tools that the rules do not cause. The exit status does not
// distinguish them.
var temporary = regexp.MustCompile(`(?i)cannot allocate memory|memory allocation problem|out of memory|temporarily unavailable|no buffer space|interrupted system call|too many open files|no file descriptors`)

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
