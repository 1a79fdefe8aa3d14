// Package replay replays a recording of a cluster, change by change, as the daemon would apply it.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/cmd/proxyc/review/proof"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

// Options configure a Player.
type Options struct {
	File     string        // name of the recording, for findings
	Until    time.Time     // time of the last change; zero for no limit
	Within   time.Duration // alternative to Until: time since the initial lists were complete; 0 for no limit
	Packets  []trace.Expectation
	Prove    bool   // compare the changed rules with the meaning of the IR
	Output   string // output format of changes
	Plane    apply.Dataplane
	Out, Err io.Writer
	Report   func(diag.List) // prints findings
}

// Player applies recorded changes to the same parts that the daemon uses.
type Player struct {
	*review.Input
	Options
	store    *watch.Store
	source   reconcile.Source
	writer   *reconcile.Writer
	inForce  bool
	changes  int
	unproved bool
	Invalid  bool // an object has errors
}

// New returns a Player for a configuration and a node. The recording provides the snapshot of the
// input.
func New(in *review.Input, o Options) *Player {
	p := &Player{Input: in, Options: o, store: watch.NewStore(time.Now)}
	p.store.View(func(s *snapshot.Snapshot) { in.Snapshot = s }) // the Player is the only user of the Store
	p.source = daemon.NewSource(in.Resolved.Config, p.store, in.Facts, slog.New(slog.DiscardHandler))
	p.writer = &reconcile.Writer{Dataplane: o.Plane}
	return p
}

// errUnexpected ends the replay if a packet has an unexpected fate.
var errUnexpected = errors.New("a packet meets another fate")

// Play replays events until the configured time. It stops at the first change after which a packet
// has an unexpected fate, and reports whether there was none.
func (p *Player) Play(ctx context.Context, events []watch.Recorded) (well bool, err error) {
	switch err := p.playAll(ctx, events); {
	case errors.Is(err, errUnexpected):
		return false, nil
	case err != nil:
		return false, err
	}
	services, slices, nodes := p.Snapshot.Count()
	fmt.Fprintf(p.Err, "%d changes, to %d Services, %d EndpointSlices and %d Nodes\n", p.changes, services, slices, nodes)
	return !p.unproved, nil
}

func (p *Player) playAll(ctx context.Context, events []watch.Recorded) error {
	for i := range events {
		event := &events[i]
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !p.Until.IsZero() && event.At.After(p.Until) {
			break
		}
		found := p.store.Play(event)
		for j := range found {
			found[j].File, found[j].Line, found[j].Column = p.File, event.Line, 0
		}
		p.Invalid = p.Invalid || found.HasErrors()
		p.Report(found)
		switch {
		case event.Type == watch.Synced:
			if p.Within > 0 {
				p.Until = event.At.Add(p.Within)
			}
			if p.OfHost || p.Chosen {
				if err := p.NoSuchNode("--node", p.Chosen); err != nil {
					return err
				}
			}
			p.Report(compiler.CheckNodeName(p.Snapshot, p.Facts))
		case !p.inForce || p.store.Pending() == 0:
			continue
		}
		if err := p.step(ctx, event); err != nil {
			return err
		}
	}
	if !p.inForce {
		return fmt.Errorf("%s: ends before the initial objects are complete", p.File)
	}
	_, found := compiler.Compile(p.Config, p.Snapshot, p.Facts)
	found = slices.DeleteFunc(found, func(d diag.Diagnostic) bool { return d.Severity != diag.Error })
	p.Invalid = p.Invalid || found.HasErrors()
	p.Report(found)
	return nil
}

// step applies a change as the daemon does, and prints it.
func (p *Player) step(ctx context.Context, event *watch.Recorded) error {
	first := !p.inForce
	var was ir.Programs
	kind := reconcile.Change
	if first {
		kind = reconcile.Full
	}
	work := p.source.Take(kind)
	p.store.Acknowledge()
	var done reconcile.Done
	var err error
	if first {
		if err = p.canShow(work.Programs); err != nil {
			return err
		}
	}
	if first || work.All {
		was = p.Plane.Applied().Programs()
		done, err = p.writer.Replace(ctx, work.Programs)
	} else {
		was = only(work, func(c ir.Change) *ir.Service { return c.Old })
		done, err = p.writer.Change(ctx, &work.Changes)
		work.Programs = only(work, func(c ir.Change) *ir.Service { return c.New })
	}
	at := fmt.Sprintf("%s:%d: %s %s", p.File, event.Line, event.At.Format("2006-01-02T15:04:05.000Z07:00"), event)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	p.inForce = true
	for _, r := range done.RefusedNow {
		fmt.Fprintf(p.Err, "warning: %s: Service %s: the kernel refuses its rules: %v\n", at, r.Service, r.Reason)
	}
	if !first {
		p.changes++
		if err := p.show(ctx, at, was, work.Programs); err != nil {
			return err
		}
	}
	if p.Prove {
		for _, why := range proof.Unproved(ctx, work.Programs) {
			p.unproved = true
			if _, err := fmt.Fprintf(p.Out, "%s: %s\n", at, why); err != nil {
				return err
			}
		}
	}
	return p.expect(at)
}

// shownForms are the output formats that print no rules.
var shownForms = []string{"none", "stat", "text", "wide"}

// canShow returns an error if no mode of the Programs has the output format.
func (p *Player) canShow(programs ir.Programs) error {
	if slices.Contains(shownForms, p.Output) {
		return nil
	}
	_, texts, _ := review.Outputs(programs)
	forms := slices.Clone(shownForms)
	for _, t := range texts {
		forms = append(forms, t.Format)
	}
	if !slices.Contains(forms, p.Output) {
		return fmt.Errorf("-o: must be one of %s in mode %s, got %q", strings.Join(forms, ", "), p.Resolved.Config.ProxyMode(), p.Output)
	}
	return nil
}

// only returns the Programs of a Work with one version, before or after, of the changed Services.
func only(work reconcile.Work, version func(ir.Change) *ir.Service) (out ir.Programs) {
	for f, changes := range work.Changes.All() {
		of := work.Programs.Of(f)
		if of == nil {
			continue
		}
		program := *of
		program.Services = nil
		for _, c := range changes {
			if s := version(c); s != nil {
				program.Services = append(program.Services, *s)
			}
		}
		*out.At(f) = &program
	}
	return out
}

// show prints the effect of a change on flows or lines. It prints nothing if there is none.
func (p *Player) show(ctx context.Context, at string, was, is ir.Programs) error {
	var text strings.Builder
	write, byFlow := diff.Form(p.Output)
	switch {
	case p.Output == "none":
		return nil
	case byFlow:
		where := flow.Network{Here: p.PodsOn(p.Facts.NodeName), Pods: p.Pods()}
		d, err := diff.ComparePrograms(ctx, p.Facts.NodeName, where, was, is)
		if err != nil || d.Empty() {
			return err
		}
		if err := write(&text, d); err != nil {
			return err
		}
	default:
		lines, err := diff.Lines(was, is, p.Output)
		if err != nil || len(lines) == 0 {
			return err
		}
		text.Write(lines)
	}
	_, err := fmt.Fprintf(p.Out, "%s\n%s", at, text.String())
	return err
}

// expect returns errUnexpected if a packet has an unexpected fate.
func (p *Player) expect(at string) error {
	if len(p.Packets) == 0 {
		return nil
	}
	tracer := trace.NewTracer(p.Input, p.Plane.Applied().Programs())
	broken := false
	for _, x := range p.Packets {
		t, err := tracer.Trace(x.From, x.To)
		one := trace.Result{Trace: t, Expectation: x}
		if err == nil && one.Met() {
			continue
		}
		if !broken {
			broken = true
			fmt.Fprintf(p.Out, "%s: not as expected:\n", at)
		}
		if err != nil {
			_, err = fmt.Fprintf(p.Out, "  %s%s -> %s: %v\n", x.Where, x.From, x.To, err)
		} else {
			_, err = fmt.Fprintf(p.Out, "%s  %sexpected: %s\n", t.Text(), x.Where, *x.Expect)
		}
		if err != nil {
			return err
		}
	}
	if broken {
		return errUnexpected
	}
	return nil
}
