package userspace

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Localhost serves node ports at localhost over TCP, beside the rules of a mode
// that has none for them (KEP-6032). It follows what is in force: the connections
// that it took go on whatever becomes of Services, rules and mode. Where nothing
// asks for it, it costs nothing. Its methods may be called by several goroutines.
type Localhost struct {
	proxy atomic.Pointer[Proxy] // nil: nothing was ever served

	mu     sync.Mutex
	log    *slog.Logger
	tell   func(f ir.Family, l *rules.Listener, err error)
	on     ir.PerFamily[bool]
	wanted ir.PerFamily[map[ir.Name][]rules.Listener]
	failed map[Key]*rules.Listener
	again  *time.Timer // tries what failed again; nil: nothing did
}

// tryAgain is how long after a failure a listener is tried again.
const tryAgain = 2 * time.Second

// Follow has log and tell hear from now on what becomes of listeners. tell gets
// the error of one that cannot be opened, at each try (all else of its Service is
// served), and nil when it is open after that, or is not wanted any longer. It
// must not call l.
func (l *Localhost) Follow(log *slog.Logger, tell func(f ir.Family, of *rules.Listener, err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log, l.tell = log, tell
}

// Replace serves the node ports of these Programs, as far as they ask for it, and
// no others.
func (l *Localhost) Replace(programs ir.Programs) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f, p := range programs.All() {
		*l.on.At(f) = p != nil && p.Node.NodePorts.Proxied
		wanted := map[ir.Name][]rules.Listener{}
		for name := range l.wanted.Of(f) {
			wanted[name] = nil
		}
		if l.on.Of(f) {
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

// Change serves the node ports of Services that changed as they are now. It costs
// what the changes do.
func (l *Localhost) Change(changes ir.Changes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f, of := range changes.All() {
		if !l.on.Of(f) {
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

// change shuts what goes before it opens others, so that a Service can take over
// another's number.
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
				l.shut(f, old)
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
	l.rearm()
}

func (l *Localhost) shut(f ir.Family, old *rules.Listener) {
	key := KeyOf(f, old)
	if l.failed[key] != nil {
		delete(l.failed, key)
		l.tell(f, old, nil)
		return
	}
	if p := l.proxy.Load(); p != nil {
		p.Shut(key)
	}
}

// open opens a listener, or leads one that is open where it is to lead now.
func (l *Localhost) open(f ir.Family, want *rules.Listener) {
	p := l.proxy.Load()
	if p == nil {
		p = NewProxy(Options{Limits: affordable(Limits{Connections: DefaultLimits.Connections}), DialTimeouts: rules.DialTimeouts(), Log: l.log})
		l.proxy.Store(p)
	}
	key := KeyOf(f, want)
	before := l.failed[key] != nil
	if _, err := p.Open(f, want, nil); err != nil {
		if l.failed == nil {
			l.failed = map[Key]*rules.Listener{}
		}
		if l.failed[key] = want; !before {
			l.log.Error("a node port is not served at localhost, and all else of its Service is: will be tried again",
				"service", want.Port.Service.String(), "port", want.Port.String(), "listen", want.Listen.String(), "err", err)
		}
		l.tell(f, want, err)
		return
	}
	p.Update(f, want)
	if before {
		delete(l.failed, key)
		l.log.Info("a node port is served at localhost, after failures", "port", want.Port.String(), "listen", want.Listen.String())
		l.tell(f, want, nil)
	}
}

// rearm has what failed be tried again.
func (l *Localhost) rearm() {
	if l.again != nil {
		l.again.Stop()
		l.again = nil
	}
	if len(l.failed) > 0 {
		l.again = time.AfterFunc(tryAgain, l.retry)
	}
}

func (l *Localhost) retry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range slices.SortedFunc(maps.Keys(l.failed), func(a, b Key) int { return a.Port.Compare(b.Port) }) {
		l.open(k.Family, l.failed[k])
	}
	l.rearm()
}

// Close shuts all listeners. Connections go on until Drain ends them.
func (l *Localhost) Close() { l.Replace(ir.Programs{}) }

// Counts returns what is carried over TCP, of each family; nothing where nothing
// was ever served.
func (l *Localhost) Counts() []apply.Proxied {
	p := l.proxy.Load()
	if p == nil {
		return nil
	}
	return slices.DeleteFunc(p.Counts(), func(c apply.Proxied) bool { return c.Protocol != ir.TCP })
}

// Carried returns how many connections Drain would wait for.
func (l *Localhost) Carried() int {
	if p := l.proxy.Load(); p != nil {
		return p.Connections()
	}
	return 0
}

// Drain lets connections go on until ctx ends, and returns how many it cut off
// then. It comes after Close.
func (l *Localhost) Drain(ctx context.Context) (cut int) {
	if p := l.proxy.Load(); p != nil {
		return p.Close(ctx)
	}
	return 0
}

// Unserved returns the node ports that the Programs want served at localhost where
// nobody listens, in order of their numbers.
func Unserved(programs ir.Programs) []rules.Listener {
	var all []rules.Listener
	for f, p := range ir.Present(programs) {
		if !p.Node.NodePorts.Proxied {
			continue
		}
		for i := range p.Services {
			for _, l := range rules.Localhost(f, &p.Services[i]) {
				if len(l.Backends) > 0 && !InUse(f, &l) {
					all = append(all, l)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b rules.Listener) int { return int(a.Listen.Port()) - int(b.Listen.Port()) })
	return all
}
