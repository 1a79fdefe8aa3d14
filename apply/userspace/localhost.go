package userspace

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Localhost serves node ports on localhost over TCP, for a mode whose rules do not (KEP-6032, node
// ports on localhost in mode nftables). It follows the applied Programs. Its connections continue
// after changes of Services and rules. Its methods are safe for concurrent use.
type Localhost struct {
	*Proxy

	mu         sync.Mutex
	log        *slog.Logger
	report     func(f ir.Family, l *rules.Listener, err error)
	enabled    ir.PerFamily[bool]
	wanted     ir.PerFamily[map[ir.Name][]rules.Listener]
	failed     map[Key]*rules.Listener
	retryTimer *time.Timer // retries failed listeners; nil without any
}

// retryEvery is the interval at which failed listeners are retried.
const retryEvery = 2 * time.Second

// NewLocalhost returns a Localhost without listeners. report is called with the error after each failed
// attempt to open one; the rest of the Service is served. It is called with nil when the listener is
// open or no longer required. report must not call the Localhost.
func NewLocalhost(log *slog.Logger, report func(f ir.Family, of *rules.Listener, err error)) *Localhost {
	return &Localhost{log: log, report: report, failed: map[Key]*rules.Listener{},
		Proxy: NewProxy(Options{Limits: fitLimits(Limits{Connections: DefaultLimits.Connections}), DialTimeouts: rules.DialTimeouts(), Log: log})}
}

// Replace serves exactly the node ports of these Programs, if they require it.
func (l *Localhost) Replace(programs ir.Programs) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f, p := range programs.All() {
		*l.enabled.At(f) = p != nil && p.Node.NodePorts.Proxied
		wanted := map[ir.Name][]rules.Listener{}
		for name := range l.wanted.Of(f) {
			wanted[name] = nil
		}
		if l.enabled.Of(f) {
			for i := range p.Services {
				s := &p.Services[i]
				if of := rules.Localhost(f, s); len(of) > 0 {
					wanted[s.Name] = of
				}
			}
		}
		l.change(f, wanted)
	}
}

// Change updates the node ports of changed Services. Its cost is proportional to the changes.
func (l *Localhost) Change(changes ir.Changes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f, of := range changes.All() {
		if !l.enabled.Of(f) {
			continue
		}
		wanted := make(map[ir.Name][]rules.Listener, len(of))
		for _, c := range of {
			wanted[c.Name] = nil
			if c.New != nil {
				wanted[c.Name] = rules.Localhost(f, c.New)
			}
		}
		l.change(f, wanted)
	}
}

// change closes removed listeners before it opens others, so that a Service can reuse another's
// port.
func (l *Localhost) change(f ir.Family, wanted map[ir.Name][]rules.Listener) {
	if len(wanted) == 0 {
		return
	}
	of := l.wanted.At(f)
	if *of == nil {
		*of = map[ir.Name][]rules.Listener{}
	}
	for name, now := range wanted {
		for i := range (*of)[name] {
			old := &(*of)[name][i]
			if !slices.ContainsFunc(now, func(n rules.Listener) bool { return n.Port == old.Port && n.Listen == old.Listen }) {
				l.close(f, old)
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(wanted), ir.Name.Compare) {
		now := wanted[name]
		for i := range now {
			l.open(f, &now[i])
		}
		if (*of)[name] = now; len(now) == 0 {
			delete(*of, name)
		}
	}
	l.scheduleRetry()
}

func (l *Localhost) close(f ir.Family, old *rules.Listener) {
	key := KeyOf(f, old)
	if l.failed[key] != nil {
		delete(l.failed, key)
		l.report(f, old, nil)
		return
	}
	l.CloseListener(key)
}

// open opens a listener, or updates the backends of an open one.
func (l *Localhost) open(f ir.Family, want *rules.Listener) {
	key := KeyOf(f, want)
	before := l.failed[key] != nil
	if _, err := l.Open(f, want, nil); err != nil {
		if l.failed[key] = want; !before {
			l.log.Error("a node port is not served on localhost: retrying; the rest of the Service is served",
				"service", want.Port.Service.String(), "port", want.Port.String(), "listen", want.Listen.String(), "err", err)
		}
		l.report(f, want, err)
		return
	}
	if before {
		delete(l.failed, key)
		l.log.Info("a node port is served on localhost again", "port", want.Port.String(), "listen", want.Listen.String())
		l.report(f, want, nil)
	}
}

// scheduleRetry schedules a retry of failed listeners.
func (l *Localhost) scheduleRetry() {
	if l.retryTimer != nil {
		l.retryTimer.Stop()
		l.retryTimer = nil
	}
	if len(l.failed) > 0 {
		l.retryTimer = time.AfterFunc(retryEvery, l.retry)
	}
}

func (l *Localhost) retry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range slices.SortedFunc(maps.Keys(l.failed), func(a, b Key) int { return a.Port.Compare(b.Port) }) {
		l.open(k.Family, l.failed[k])
	}
	l.scheduleRetry()
}

// Close closes all listeners. Connections continue until Drain.
func (l *Localhost) Close() { l.Replace(ir.Programs{}) }

// Counts returns the TCP counters of each family.
func (l *Localhost) Counts() []apply.Proxied {
	return slices.DeleteFunc(l.Proxy.Counts(), func(c apply.Proxied) bool { return c.Protocol != ir.TCP })
}

// Unserved returns the listeners that the Programs require on localhost but that are not open,
// ordered by port.
func Unserved(programs ir.Programs) []rules.Listener {
	var all []rules.Listener
	for f, p := range ir.Present(programs) {
		if !p.Node.NodePorts.Proxied {
			continue
		}
		for i := range p.Services {
			all = append(all, slices.DeleteFunc(rules.Localhost(f, &p.Services[i]), func(l rules.Listener) bool { return len(l.Backends) == 0 || InUse(f, &l) })...)
		}
	}
	slices.SortStableFunc(all, func(a, b rules.Listener) int { return int(a.Listen.Port()) - int(b.Listen.Port()) })
	return all
}
