package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

type replayCmd struct {
	configFlags
	File        string   `arg:"" help:"What record wrote, which gzip may have compressed; - for standard input."`
	Until       string   `placeholder:"TIME" help:"Stop behind the last change before a time, such as 2026-01-02T03:04:05Z, or 90s after all was known."`
	Packets     string   `placeholder:"FILE" help:"Packets and what is expected of them, as trace --packets takes them: stop at the first change behind which one meets another fate, and exit 1."`
	Prove       bool     `help:"Hold the rules of the Services that changed against what they mean, for every first packet; exit 1 where they differ."`
	Netns       string   `placeholder:"NAME" help:"Write the rules for real, in the network namespace of this name, as ip netns adds one; root."`
	Variant     string   `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Which iptables to use with --netns."`
	SnapshotOut string   `name:"snapshot-out" placeholder:"FILE" help:"Write the objects as they are at the end, as snapshot does."`
	NodeAddress []string `name:"node-address" placeholder:"IP@INTERFACE" help:"An address that the node has beside those of its Node object. May be repeated."`
	Limit       byteSize `name:"recording-limit" default:"1Gi" placeholder:"BYTES" help:"How much the recording may have; 0: any amount."`
	Output      string   `short:"o" default:"text" placeholder:"FORMAT" help:"What is shown of each change: text or wide (the flows that differ), stat, none, or the lines that differ in ir or in a text that the mode writes."`
	Entered     bool     `name:"entered" hidden:""` // the namespace
}

// Run plays a recording.
func (c *replayCmd) Run(e *env) (err error) {
	ctx, stop := untilSignal(&err)
	defer stop()
	if c.Netns != "" && !c.Entered {
		if err := needRoot("replay --netns"); err != nil {
			return err
		}
		return enter(c.Netns) // and come back with --entered
	}
	if err := oneStdin(deref(c.Config), c.File, c.Packets); err != nil {
		return err
	}
	p, err := c.player(ctx, e)
	if err != nil {
		return err
	}
	defer p.plane.Close()
	left := cmp.Or(int64(c.Limit), files.Unlimited)
	data, err := e.read(c.File, &left)
	if errors.Is(err, files.ErrTooMuch) {
		err = fmt.Errorf("has more than the %d bytes of --recording-limit", int64(c.Limit))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	events, cut, err := watch.ReadRecording(data)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	if cut {
		fmt.Fprintf(e.stderr, "warning: %s: is cut off in line %d, which is left out\n", c.File, 1+bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n")))
	}
	if err := p.play(ctx, events); err != nil {
		return err
	}
	if c.SnapshotOut != "" {
		return e.writeOut(c.SnapshotOut, p.snap.Document().Objects().Write)
	}
	return nil
}

// player drives what the daemon drives with each change of a cluster.
type player struct {
	*job
	env      *env
	options  *replayCmd
	packets  []expectation
	until    time.Time     // zero: not told
	within   time.Duration // in place of until; 0: not told
	store    *watch.Store
	source   reconcile.Source
	loop     *reconcile.Reconciler
	plane    apply.Dataplane
	inForce  bool
	changes  int
	unproved bool
}

func (c *replayCmd) player(ctx context.Context, e *env) (*player, error) {
	p := &player{job: new(job), env: e, options: c}
	if c.Until != "" {
		var err error
		if p.until, err = time.Parse(time.RFC3339Nano, c.Until); err != nil {
			if p.within, err = time.ParseDuration(c.Until); err != nil || p.within <= 0 {
				return nil, fmt.Errorf("--until: must be a time such as 2026-01-02T03:04:05Z, or one like 90s after the beginning, got %q", c.Until)
			}
		}
	}
	var err error
	if c.Packets != "" {
		if p.packets, err = e.readPackets(c.Packets, int64(c.Limit)); err != nil {
			return nil, err
		}
	}
	if p.Resolved, err = c.resolve(e, &p.diags); err != nil {
		return nil, err
	}
	e.report(p.diags)
	p.diags = nil
	if err := e.setNode(p.job); err != nil {
		return nil, err
	}
	if p.facts.Named, err = parseNodeAddresses(c.NodeAddress); err != nil {
		return nil, err
	}
	p.plane = new(apply.Memory)
	if c.Netns != "" {
		if p.plane, err = daemon.Open(ctx, p.Resolved.Config.ProxyMode(), apply.Options{IPTables: variantOf(c.Variant)}); err != nil {
			return nil, err
		}
	}
	p.store = watch.NewStore(time.Now)
	p.store.View(func(s *snapshot.Snapshot) { p.snap = s }) // nobody else has the Store
	p.source = daemon.NewSource(p.Resolved.Config, p.store, p.facts, slog.New(slog.DiscardHandler))
	p.loop = &reconcile.Reconciler{Source: p.source, Dataplane: p.plane}
	return p, nil
}

// play plays events until the time that is wanted.
func (p *player) play(ctx context.Context, events []watch.Recorded) error {
	for i := range events {
		event := &events[i]
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !p.until.IsZero() && event.At.After(p.until) {
			break
		}
		found := p.store.Play(event)
		for j := range found {
			found[j].File, found[j].Line, found[j].Column = p.options.File, event.Line, 0
		}
		p.env.report(found)
		switch {
		case event.Type == watch.Synced:
			if p.within > 0 {
				p.until = event.At.Add(p.within)
			}
			if p.ofHost {
				if err := p.noSuchNode(nil); err != nil {
					return err
				}
			}
			p.env.report(compiler.CheckNodeName(p.snap, p.facts))
		case !p.inForce || p.store.Pending() == 0:
			continue
		}
		if err := p.step(ctx, event); err != nil {
			return err
		}
	}
	if !p.inForce {
		return fmt.Errorf("%s: ends before all is there that there was at first", p.options.File)
	}
	services, slices, nodes := p.snap.Count()
	fmt.Fprintf(p.env.stderr, "%d changes, to %d Services, %d EndpointSlices and %d Nodes\n", p.changes, services, slices, nodes)
	if p.unproved {
		return errFindings
	}
	return nil
}

// step puts in force what has changed, as the daemon does, and shows it.
func (p *player) step(ctx context.Context, event *watch.Recorded) error {
	first := !p.inForce
	var was ir.Programs
	kind := reconcile.Change
	if first {
		kind = reconcile.Full
	}
	work := p.source.Take(kind)
	var done reconcile.Done
	var err error
	if first {
		if err = p.canShow(work.Programs); err != nil {
			return err
		}
	}
	if first || work.All {
		was = p.plane.Applied()
		done, err = p.loop.Replace(ctx, work.Programs)
	} else {
		was = only(work, func(c ir.Change) *ir.Service { return c.Old })
		done, err = p.loop.Change(ctx, work.Changes)
		work.Programs = only(work, func(c ir.Change) *ir.Service { return c.New })
	}
	at := fmt.Sprintf("%s:%d: %s %s", p.options.File, event.Line, event.At.Format("2006-01-02T15:04:05.000Z07:00"), event)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	p.inForce = true
	for _, r := range done.RefusedNow {
		fmt.Fprintf(p.env.stderr, "warning: %s: Service %s: the kernel refuses its rules: %v\n", at, r.Service, r.Reason)
	}
	if !first {
		p.changes++
		if err := p.show(ctx, at, was, work.Programs); err != nil {
			return err
		}
	}
	if p.options.Prove {
		for _, u := range unproved(ctx, work.Programs) {
			p.unproved = true
			if _, err := fmt.Fprintf(p.env.stdout, "%s: %s\n", at, u.Text()); err != nil {
				return err
			}
		}
	}
	return p.expect(at)
}

// shownForms are those in which a change is shown without a line of rules.
var shownForms = []string{"none", "stat", "text", "wide"}

// canShow returns an error where what is to be shown of Programs is nothing that there is.
func (p *player) canShow(programs ir.Programs) error {
	if slices.Contains(shownForms, p.options.Output) {
		return nil
	}
	_, texts, _ := outputs(programs)
	forms := slices.Clone(shownForms)
	for _, t := range texts {
		forms = append(forms, t.Format)
	}
	if !slices.Contains(forms, p.options.Output) {
		return fmt.Errorf("-o: must be one of %s in mode %s, got %q", strings.Join(forms, ", "), p.Resolved.Config.ProxyMode(), p.options.Output)
	}
	return nil
}

// only returns the Programs of a Work with one version of the Services that changed.
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

// show prints what a change made of flows, or of lines; nothing where it made nothing.
func (p *player) show(ctx context.Context, at string, was, is ir.Programs) error {
	var text strings.Builder
	write, byFlow := diffForms[p.options.Output]
	switch {
	case p.options.Output == "none":
		return nil
	case byFlow:
		d := &flowDiff{Nodes: []string{p.facts.NodeName}}
		var merged flow.Merger
		where := flow.Network{Here: podsHere(p.job, p.facts.NodeName), Pods: podsOf(p.job)}
		for _, f := range ir.Families() {
			services, classes, err := flow.Compare(ctx, where, was.Of(f), is.Of(f))
			if err != nil {
				return err
			}
			d.Classes += classes
			merged.Add(p.facts.NodeName, services)
		}
		if d.Services = merged.Services(); d.empty() {
			return nil
		}
		if err := write(&text, d); err != nil {
			return err
		}
	default:
		lines, err := diffRules(was, is, p.options.Output)
		if err != nil || len(lines) == 0 {
			return err
		}
		text.Write(lines)
	}
	_, err := fmt.Fprintf(p.env.stdout, "%s\n%s", at, text.String())
	return err
}

// expect fails where a packet meets another fate than what is expected.
func (p *player) expect(at string) error {
	if len(p.packets) == 0 {
		return nil
	}
	scene := p.scene(p.plane.Applied())
	broken := false
	for _, x := range p.packets {
		t, err := scene.trace(x.From, x.To)
		one := result{t, x}
		if err == nil && one.met() {
			continue
		}
		if !broken {
			broken = true
			fmt.Fprintf(p.env.stdout, "%s: not as expected:\n", at)
		}
		if err != nil {
			_, err = fmt.Fprintf(p.env.stdout, "  %s%s -> %s: %v\n", x.where, x.From, x.To, err)
		} else {
			_, err = fmt.Fprintf(p.env.stdout, "%s  %sexpected: %s\n", t.text(), x.where, *x.Expect)
		}
		if err != nil {
			return err
		}
	}
	if broken {
		return errFindings
	}
	return nil
}
