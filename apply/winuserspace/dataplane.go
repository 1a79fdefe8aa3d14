package winuserspace

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Dataplane is a Proxy with the addresses that it listens on.
type Dataplane struct {
	apply.Drainer // the proxy

	host  Host
	o     Options
	file  addressFile
	proxy *userspace.Proxy

	state   *state // nil if unknown
	applied apply.Applied
	poll    apply.Poll

	mu      sync.Mutex // protects wanted while it changes, and against concurrent readers
	desired *desired   // nil if nothing is applied, or unknown
}

var (
	_ apply.Dataplane = (*Dataplane)(nil)
	_ apply.Counted   = (*Dataplane)(nil)
	_ apply.Drainer   = (*Dataplane)(nil)
)

// Options configure a Dataplane.
type Options struct {
	// AddressFile is the path of the file that lists the added addresses.
	AddressFile string
	// ReadOnly disables changes.
	ReadOnly bool
	// Suffixes are the node's own DNS suffixes (USR-21, DNS suffixes on Windows).
	Suffixes []string
	Log      *slog.Logger
	// Tick returns a channel that receives a value after a duration; time.After if nil.
	Tick func(time.Duration) <-chan time.Time
}

// New returns the Dataplane of a host.
func New(host Host, o Options) *Dataplane {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Tick == nil {
		o.Tick = time.After
	}
	d := &Dataplane{host: host, o: o, file: addressFile(o.AddressFile)}
	d.proxy = userspace.NewProxy(userspace.Options{Limits: userspace.DefaultLimits, DialTimeouts: rules.DialTimeouts(),
		Suffixes: slices.Concat(searchList, o.Suffixes), Log: o.Log})
	d.Drainer = d.proxy
	return d
}

// Read reads the addresses. The listeners belong to this process.
func (d *Dataplane) Read(context.Context, ir.Programs) error {
	noted, err := d.file.read()
	if err != nil {
		return err
	}
	addrs, err := d.host.Addresses()
	if err != nil {
		return err
	}
	d.state = newState(addrs, noted)
	return nil
}

// Plan compares the addresses that were read and the open listeners with the Programs.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	s := d.state
	if s == nil { // nothing is known, and Commit returns an error
		s = newState(nil, nil)
	}
	w := newDesired(want)
	p := d.difference(s, w, sets.KeySet(w.listeners).Insert(d.proxy.Keys()...), sets.KeySet(w.users).Union(sets.KeySet(s.added)))
	p.want, p.desired = w, apply.Desired{Full: true, Programs: want}
	return p
}

// PlanChanges plans the changed Services only.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	p := &Plan{}
	if d.desired != nil && d.state != nil {
		keys, addrs := sets.Set[userspace.Key]{}, sets.Set[netip.Addr]{}
		d.mu.Lock()
		for f, of := range changes.All() {
			for _, c := range of {
				for _, k := range d.desired.set(f, c.Old, c.New) {
					keys.Insert(k)
					addrs.Insert(k.At.Addr())
				}
			}
		}
		d.mu.Unlock()
		p = d.difference(d.state, d.desired, keys, addrs)
	}
	p.desired = apply.Desired{Changes: changes}
	return p
}

// Applied returns the Programs that were last known to be applied.
func (d *Dataplane) Applied() *apply.Applied { return &d.applied }

// Counters returns the counters of the Proxy.
func (d *Dataplane) Counters() apply.Counters { return apply.Counters{Proxied: d.proxy.Counts} }

// pollEvery is how often Drift checks the addresses. A check makes one call, however many addresses
// exist.
const pollEvery = 10 * time.Second

// Drift checks the addresses periodically, and sends a token if a required one is missing.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	return d.poll.Start(ctx, d.o.Tick, pollEvery, d.isMissing), nil
}

// isMissing reports whether a required address is missing, unless a commit ran meanwhile.
func (d *Dataplane) isMissing(undisturbed func() bool) bool {
	addrs, err := d.host.Addresses()
	if err != nil {
		d.o.Log.Warn("the node's addresses cannot be checked", "err", err)
		return false
	}
	s := newState(addrs, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.desired == nil || !undisturbed() {
		return false
	}
	for a, n := range d.desired.users {
		if n > 0 && !s.has(a) {
			return true
		}
	}
	return false
}

// Close closes the listeners. Connections continue until Drain. The addresses stay, so that clients
// are rejected immediately.
func (d *Dataplane) Close() error {
	defer d.proxy.CloseListeners()
	return d.poll.Close()
}
