package main

import (
	"log/slog"
	"reflect"
	"time"

	"github.com/proxyc/proxyc/apply/loop"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// follower compiles what changes in a Store: it is the Input of the daemon's loop.
type follower struct {
	cfg   *config.Config
	store *watch.Store
	facts compiler.Facts
	// interfaces reads the node's network interfaces.
	interfaces func() ([]compiler.Interface, error)
	log        *slog.Logger

	compiler *compiler.Compiler
	waiting  watch.Changes // taken, and not in force yet
	said     map[diag.Diagnostic]bool
}

var _ loop.Input = (*follower)(nil)

func (f *follower) Changed() <-chan struct{} { return f.store.Changed() }

// Take compiles the Services that changed; all of them at first, when the node
// changed, and when a full sync finds other interfaces.
func (f *follower) Take(k loop.Kind) (w loop.Work) {
	moved := k == loop.Full && f.readInterfaces()
	f.store.Follow(func(snap *snapshot.Snapshot, c watch.Changes) {
		f.wait(c)
		if moved || c.Node || f.compiler == nil {
			w.All = true
			f.compiler = compiler.New(f.cfg, snap, f.facts)
			f.report(f.compiler.Diagnostics(), true)
		} else {
			var diags diag.List
			w.Changes, diags = f.compiler.Update(c.Services)
			f.report(diags, false)
		}
	})
	w.Programs = f.compiler.Programs()
	return w
}

// readInterfaces tells whether the interfaces are others than before.
func (f *follower) readInterfaces() bool {
	now, err := f.interfaces()
	if err != nil {
		f.log.Error("reading the node's network interfaces", "err", err)
		return false
	}
	if reflect.DeepEqual(f.facts.Interfaces, now) {
		return false
	}
	f.facts.Interfaces = now
	return true
}

// wait adds to what is not in force yet.
func (f *follower) wait(c watch.Changes) {
	if f.waiting.Since.IsZero() {
		f.waiting.Since = c.Since
	}
	f.waiting.Triggers = append(f.waiting.Triggers, c.Triggers...)
	f.waiting.ServiceEvents += c.ServiceEvents
	f.waiting.EndpointEvents += c.EndpointEvents
}

// inForce gives what was waiting and is in force now.
func (f *follower) inForce() watch.Changes {
	c := f.waiting
	f.waiting = watch.Changes{}
	return c
}

// report logs what there is to say. What was said is not said again before a
// full compilation that has nothing to say of it.
func (f *follower) report(diags diag.List, full bool) {
	before := f.said
	if full || before == nil {
		f.said = make(map[diag.Diagnostic]bool, len(diags))
	}
	for _, d := range diags {
		if !before[d] {
			logDiagnostic(f.log, d)
		}
		f.said[d] = true
	}
}

// logDiagnostic logs a finding under the name of its object.
func logDiagnostic(log *slog.Logger, d diag.Diagnostic) {
	object := d.Object
	d.Object = ""
	say := log.Warn
	switch d.Severity {
	case diag.Error:
		say = log.Error
	case diag.Info:
		say = log.Debug
	}
	say(d.String(), "object", object)
}

// latency is how long ago something happened, never negative.
func latency(now, then time.Time) float64 { return max(0, now.Sub(then).Seconds()) }
