package daemon

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// findings are the compiler's findings about the current objects. New ones are logged, and sent as
// events if they are about a Service. proxyc status shows all.
type findings struct {
	log   *slog.Logger
	now   func() time.Time
	send  func(watch.Event)
	lines map[string]*lines // by namespace; only for the goroutine that updates

	mu      sync.Mutex
	of      compiler.Findings   // each list is sorted
	read    diag.List           // findings of the last reading of files
	invalid []*snapshot.Invalid // its objects whose newest version is not used
}

func newFindings(log *slog.Logger, now func() time.Time, send func(watch.Event)) *findings {
	return &findings{log: log, now: now, send: send, lines: map[string]*lines{}, of: compiler.Findings{}}
}

// Authors of Services determine the number of findings. Log lines about a namespace are limited to
// a burst of findingBurst, and one each findingEvery.
const (
	findingBurst = 25
	findingEvery = 10 * time.Second
)

// lines limits the log lines about the findings of one namespace.
type lines struct {
	watch.Budget
	omitted int // since the last report
}

// mayLog reports whether the limits allow logging a finding about a Service now. Findings about
// the node are always logged.
func (f *findings) mayLog(about ir.Name, now time.Time) bool {
	if about == (ir.Name{}) {
		return true
	}
	l := f.lines[about.Namespace]
	if l == nil {
		l = &lines{}
		f.lines[about.Namespace] = l
	}
	if l.Spend(now, findingBurst, findingEvery) {
		return true
	}
	l.omitted++
	return false
}

// reportOmitted logs the number of findings that were not logged. Its lines count, too.
func (f *findings) reportOmitted(now time.Time) {
	for _, namespace := range slices.Sorted(maps.Keys(f.lines)) {
		l := f.lines[namespace]
		if l.omitted > 0 && l.Spend(now, findingBurst+1, findingEvery) {
			f.log.Warn("too many findings about one namespace: proxyc status shows those that are not logged", "namespace", namespace, "omitted", l.omitted)
			l.omitted = 0
		}
	}
	maps.DeleteFunc(f.lines, func(_ string, l *lines) bool { return l.omitted == 0 && l.Full(now, findingEvery) })
}

// shownFindings bounds the findings in a status.
const shownFindings = 50

// replace sets all findings.
func (f *findings) replace(all compiler.Findings) {
	f.logNew(all)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of = all
}

// setRead sets the findings of a reading of files. Those about invalid objects are reported with these.
func (f *findings) setRead(all diag.List, invalid []*snapshot.Invalid) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.invalid = invalid
	f.read = slices.DeleteFunc(slices.Clone(all), func(d diag.Diagnostic) bool {
		return slices.ContainsFunc(invalid, func(o *snapshot.Invalid) bool { return o.Object == d.Object })
	})
}

// update sets the findings about some Services.
func (f *findings) update(some compiler.Findings) {
	f.logNew(some)
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, list := range some {
		if len(list) == 0 {
			delete(f.of, name)
		} else {
			f.of[name] = list
		}
	}
}

// logNew logs new findings, in order, and sends events about them, within the limits of their
// namespace. Only the goroutine that updates calls it, so it reads without the lock. It does not
// hold the lock while it logs.
func (f *findings) logNew(now compiler.Findings) {
	at := f.now()
	for _, name := range slices.SortedFunc(maps.Keys(now), ir.Name.Compare) {
		for _, d := range now[name] {
			if _, known := slices.BinarySearchFunc(f.of[name], d, diag.Diagnostic.Compare); known || isProblem(d) && !f.mayLog(name, at) {
				continue
			}
			logDiagnostic(f.log, d)
			if name != (ir.Name{}) && isProblem(d) {
				f.send(eventOf(name, d))
			}
		}
	}
	f.reportOmitted(at)
}

// isProblem reports whether a finding means that an object is not applied as written.
func isProblem(d diag.Diagnostic) bool { return d.Severity == diag.Error || d.Severity == diag.Warning }

// eventOf returns the event for a finding about a Service or one of its slices.
func eventOf(name ir.Name, d diag.Diagnostic) watch.Event {
	reason := "ServiceDoubtful"
	if d.Severity == diag.Error {
		reason = "ServicePartInvalid"
	}
	if d.Object == "Service "+name.String() {
		d.Object = ""
	}
	return watch.Event{Service: name, Warning: true, Reason: reason, Action: "CompileService", Note: d.String()}
}

// report adds the invalid objects and the first findings to a Status.
func (f *findings) report(st *status.Status) {
	st.Findings, st.FindingsTotal = f.first(shownFindings)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.invalid {
		st.Invalid = append(st.Invalid, status.Problem{Object: o.Object, Reason: o.Why})
	}
}

// count returns the number of findings of a severity. Each invalid object is an error.
func (f *findings) count(severity diag.Severity) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if severity == diag.Error {
		n = len(f.invalid)
	}
	for _, list := range f.of {
		for i := range list {
			if list[i].Severity == severity {
				n++
			}
		}
	}
	for i := range f.read {
		if f.read[i].Severity == severity {
			n++
		}
	}
	return n
}

// first returns the errors and warnings, errors first, ordered by Service, and their number. If
// there are more than most, namespaces take turns, each with its errors before its warnings. A
// namespace with many findings thus hides no others.
func (f *findings) first(most int) (first []status.Finding, total int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	type ranked struct {
		*diag.Diagnostic
		turn int // its position within the namespace
	}
	var all []ranked
	turns := map[string]int{}
	names := slices.SortedFunc(maps.Keys(f.of), ir.Name.Compare)
	for _, severity := range [...]diag.Severity{diag.Error, diag.Warning} {
		add := func(namespace string, list diag.List) {
			for i := range list {
				if d := &list[i]; d.Severity == severity {
					all = append(all, ranked{d, turns[namespace]})
					turns[namespace]++
				}
			}
		}
		add("", f.read)
		for _, name := range names {
			add(name.Namespace, f.of[name])
		}
	}
	total = len(all)
	if total > most {
		byTurn := slices.Clone(all)
		slices.SortStableFunc(byTurn, func(a, b ranked) int { return cmp.Compare(a.turn, b.turn) })
		shown := map[*diag.Diagnostic]bool{}
		for _, r := range byTurn[:most] {
			shown[r.Diagnostic] = true
		}
		all = slices.DeleteFunc(all, func(r ranked) bool { return !shown[r.Diagnostic] })
	}
	for _, r := range all {
		msg := diag.Diagnostic{Msg: r.Msg, Hint: r.Hint, More: r.More}.String()
		first = append(first, status.Finding{Severity: r.Severity.String(), Object: r.Object, Field: r.Path, Message: msg})
	}
	return first, total
}
