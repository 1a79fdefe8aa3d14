package winuserspace

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Dataplane is a Proxy, and the addresses at which it listens.
type Dataplane struct {
	host  Host
	o     Options
	notes notes
	proxy *userspace.Proxy // nil: another Dataplane has it

	state   *state // nil: not known
	applied apply.Applied
	commits atomic.Uint64 // begun and ended

	mu     sync.Mutex // held while wanted changes, and by others than the one who changes it while they read
	wanted *wanted    // nil: nothing is in force, or it is not known

	cancel  context.CancelFunc // ends what Drift began; nil: nothing
	looking sync.WaitGroup
}

var _ apply.Dataplane = (*Dataplane)(nil)

// Options say how a Dataplane is opened.
type Options struct {
	// Notes is the file that lists the addresses that were added.
	Notes string
	// ReadOnly tells that nothing is to be changed.
	ReadOnly bool
	// Suffixes are the node's own DNS suffixes (USR-21).
	Suffixes []string
	// Previous is the Dataplane that is in force; nil: none. Its Proxy is taken over,
	// with its listeners and connections.
	Previous *Dataplane
	Log      *slog.Logger
	// Tick returns a channel that gives a token when a time has passed; nil: time.After.
	Tick func(time.Duration) <-chan time.Time
}

// New returns the Dataplane of a host.
func New(host Host, o Options) *Dataplane {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Tick == nil {
		o.Tick = time.After
	}
	d := &Dataplane{host: host, o: o, notes: notes(o.Notes)}
	if before := o.Previous; before != nil && before.proxy != nil {
		d.proxy, before.proxy, d.o.Previous = before.proxy, nil, nil
		return d
	}
	d.proxy = userspace.NewProxy(userspace.Options{Limits: userspace.DefaultLimits, DialTimeouts: rules.DialTimeouts(),
		Suffixes: searchList(o.Suffixes), Log: o.Log})
	return d
}

// Read reads the addresses.
func (d *Dataplane) Read(context.Context) (err error) {
	d.state, err = d.read()
	return err
}

func (d *Dataplane) read() (*state, error) {
	noted, err := d.notes.read()
	if err != nil {
		return nil, err
	}
	addrs, err := d.host.Addresses()
	if err != nil {
		return nil, err
	}
	return newState(addrs, noted), nil
}

// Plan compares what was read, and the listeners that are open, with what the
// Programs want.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	s := d.state
	if s == nil { // nothing can be said, and Commit says so
		s = newState(nil, nil)
	}
	p := d.full(s, newWanted(want))
	p.desired = apply.Desired{Full: true, Programs: want}
	return p
}

// PlanChanges plans from the Services that change alone.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	changes = d.applied.From(changes)
	p := &Plan{}
	if d.wanted != nil && d.state != nil {
		p = d.changes(d.state, d.wanted, changes)
	}
	p.desired = apply.Desired{Changes: changes}
	return p
}

// Compare reads the addresses. The listeners are the process's own: nobody else changes them.
func (d *Dataplane) Compare(context.Context) (apply.Plan, error) {
	s, err := d.read()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted == nil {
		return &Plan{found: s}, nil
	}
	p := d.full(s, d.wanted)
	p.found, p.want = s, nil
	return p, nil
}

// Applied returns the Programs that were in force when that was last known.
func (d *Dataplane) Applied() ir.Programs { return d.applied.Programs() }

// Counters returns what the Proxy counts.
func (d *Dataplane) Counters() apply.Counters { return apply.Counters{Proxied: d.proxy.Counts} }

// lookEvery is how often the addresses are looked at for what others do to them: a
// call, however many there are.
const lookEvery = 10 * time.Second

// Drift looks at the addresses now and then, and gives a token when one is missing
// that is wanted.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	ctx, d.cancel = context.WithCancel(ctx)
	drift := make(chan struct{}, 1)
	d.looking.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.o.Tick(lookEvery):
			}
			if d.lacks() {
				select {
				case drift <- struct{}{}:
				default:
				}
			}
		}
	})
	return drift, nil
}

// lacks reports whether an address is missing that is wanted, and no commit was at work.
func (d *Dataplane) lacks() bool {
	began := d.commits.Load()
	addrs, err := d.host.Addresses()
	if err != nil {
		d.o.Log.Warn("looking at the node's addresses", "err", err)
		return false
	}
	s := newState(addrs, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted == nil || began != d.commits.Load() || began%2 != 0 {
		return false
	}
	for a := range maps.Keys(d.wanted.users) {
		if !s.has(a) {
			return true
		}
	}
	return false
}

// Close shuts the listeners. Connections go on until Drain ends them; the addresses
// stay, so that clients are refused at once.
func (d *Dataplane) Close() error {
	if d.cancel != nil {
		d.cancel()
	}
	d.looking.Wait()
	if d.proxy != nil {
		for _, k := range d.proxy.Keys() {
			d.proxy.Shut(k)
		}
	}
	return nil
}

// Drain lets connections go on until ctx ends, and returns how many it cut off
// then. It comes after Close.
func (d *Dataplane) Drain(ctx context.Context) (cut int) {
	return d.proxy.Close(ctx)
}

// Carried returns how many TCP connections Drain would wait for.
func (d *Dataplane) Carried() int {
	return d.proxy.Connections()
}
