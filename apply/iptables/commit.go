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
)

// Commit carries a Plan of this Target out. When a run of the tool fails, what
// the runs before it did is taken back, and the tables are as they were. When
// it is for some Services that the kernel refuses, it goes on without them.
func (t *Target) Commit(ctx context.Context, p apply.Plan) error {
	plan := p.(*Plan)
	err := t.allOrNothing(ctx, plan)
	if no, ok := errors.AsType[*refused](err); ok {
		return t.quarantine(ctx, plan, no)
	}
	return err
}

// allOrNothing carries a Plan out, or leaves the tables as they were.
func (t *Target) allOrNothing(ctx context.Context, p *Plan) error {
	done, err := t.carryOut(ctx, p)
	if err == nil || done == 0 {
		return err
	}
	// Even if ctx has ended: half of a change is no state to leave behind.
	if back := t.takeBack(context.WithoutCancel(ctx), p); back != nil {
		return fmt.Errorf("%w; %v", err, back)
	}
	return err
}

// carryOut gives how many runs of the tool did something before the one that failed.
func (t *Target) carryOut(ctx context.Context, p *Plan) (done int, err error) {
	for _, f := range ir.Present(p.families) {
		for _, s := range f.steps(t.most()) {
			if err := t.restore(ctx, f.want.Family, s.input(f.want.Family)); err != nil {
				// The tool commits table by table, so that the first of two may be in force.
				return done + len(s) - 1, err
			}
			done++
		}
	}
	return done, nil
}

// most is the greatest number of rules for one run. Legacy replaces the whole
// table each time, so everything goes at once.
func (t *Target) most() int {
	if t.Variant == Legacy {
		return math.MaxInt
	}
	return t.options.MostRules
}

func (t *Target) takeBack(ctx context.Context, p *Plan) error {
	now, err := t.Read(ctx)
	if err != nil {
		return fmt.Errorf("taking back what was done: %w", err)
	}
	if _, err := t.carryOut(ctx, newPlan(p.within(now), p.have)); err != nil {
		return fmt.Errorf("taking back what was done: %w", err)
	}
	return nil
}

func (t *Target) restore(ctx context.Context, f ir.Family, in input) error {
	args := append([]string{"--noflush"}, t.waitFlags()...)
	name := tool(f, t.Variant, "restore")
	err := t.feed(ctx, in, name, args...)
	failed, ok := errors.AsType[*run.Error](err)
	switch {
	case err == nil:
		return nil
	case ok && locked(failed):
		err = fmt.Errorf("%s: %s", name, lockedBy(lockFile(), t.options.Wait))
	case ok && failed.Code > 0:
		number, line := lineOf(failed.Stderr, in.text())
		return &refused{&apply.FamilyError{Family: f, Err: err}, number, line}
	}
	return &apply.FamilyError{Family: f, Err: err}
}

// feed runs a tool on an input.
func (t *Target) feed(ctx context.Context, in input, name string, args ...string) error {
	stdin, w := io.Pipe()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer stdin.Close() // a tool may end before it has read everything
	writing.Go(func() { w.CloseWithError(in(w)) })
	return t.run(ctx, stdin, io.Discard, name, args...)
}

// locked tells whether a legacy tool gave up because another program holds the
// lock. Its exit status, 4, has other meanings too.
func locked(failed *run.Error) bool { return strings.Contains(failed.Stderr, "xtables lock") }

// lineNumber finds where the tools say they failed: "line 7 failed", "Error
// occurred at line: 7".
var lineNumber = regexp.MustCompile(`\bline:? (\d+)`)

// lineOf gives the line of text that the tool's message names, and its number.
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
