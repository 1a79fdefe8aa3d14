package apply

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// ServiceMetrics is what a Dataplane counts of the traffic of Services. The zero value keeps what
// the rules count already.
type ServiceMetrics string

const (
	MetricsOff      ServiceMetrics = "off"
	MetricsServices ServiceMetrics = "services"
)

// Traffic counts the new connections of a service port. The kernel counts an attempt again that a client
// repeats after a refusal.
type Traffic struct {
	Connections uint64                  // including refused ones
	Kinds       [ir.NodePort + 1]uint64 // Connections by kind of frontend
	Refused     [render.Reasons]uint64
}

// Meter adds up counters of the kernel. A counter starts at 0 when a commit replaces its rule or element.
// The sums of a service port never decrease: the commit reads what it replaces. Read and commits exclude
// each other. ID identifies a counter in the kernel.
type Meter[ID comparable] struct {
	log  *slog.Logger  // optional
	busy chan struct{} // contains the token of a reader or a commit
	last map[ID]uint64 // values that sums contain; of the owner of the token

	mu   sync.Mutex
	sums map[ir.ServicePort]Traffic
}

// NewMeter returns a Meter of counters that are all 0.
func NewMeter[ID comparable](log *slog.Logger) *Meter[ID] {
	return &Meter[ID]{log: log, busy: make(chan struct{}, 1), last: map[ID]uint64{}, sums: map[ir.ServicePort]Traffic{}}
}

// Reading is values of counters. Of returns what one of them counts; false if that is unknown.
type Reading[ID comparable] struct {
	Values []Value[ID]
	Of     func(ID) (render.Counted, bool)
}

// Value is the value of a counter.
type Value[ID comparable] struct {
	ID    ID
	Count uint64
}

// Read returns the sums after reading all counters. If a commit takes longer than ctx, it returns the
// sums before it.
func (m *Meter[ID]) Read(ctx context.Context, read func(context.Context) (Reading[ID], error)) (map[ir.ServicePort]Traffic, error) {
	select {
	case <-ctx.Done():
	case m.busy <- struct{}{}:
		all, err := read(ctx)
		if err == nil {
			m.add(all)
		}
		<-m.busy
		if err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.sums), nil
}

// Around calls commit, which starts some counters again if it returns true. Before, it reads these: what they
// count between the two is lost. Counters that are not read may have counted more, if another program
// removed them.
func (m *Meter[ID]) Around(read func() (Reading[ID], error), again func(ID) bool, commit func() bool) {
	m.busy <- struct{}{}
	before, err := read()
	if err != nil && m.log != nil { // rules matter more than counts
		m.log.Warn("counters cannot be read before a commit removes them: some connections are not counted", "err", err)
	}
	if !commit() {
		again = func(ID) bool { return false }
	}
	m.add(before)
	for _, v := range before.Values {
		if again(v.ID) {
			delete(m.last, v.ID)
		}
	}
	lost := len(m.last)
	maps.DeleteFunc(m.last, func(id ID, _ uint64) bool { return again(id) })
	lost -= len(m.last)
	<-m.busy
	if lost > 0 && m.log != nil {
		m.log.Warn("counters of Services were removed unread: connections since the last read are not counted", "counters", lost)
	}
}

// add adds what counters have counted since they were last read. A smaller value is that of a new counter.
func (m *Meter[ID]) add(r Reading[ID]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range r.Values {
		last := m.last[v.ID]
		if v.Count == last { // most counters: of most Services, few have traffic between two reads
			continue
		}
		c, known := r.Of(v.ID)
		if !known {
			continue
		}
		m.last[v.ID] = v.Count
		if v.Count < last {
			last = 0
		}
		t := m.sums[c.Port]
		if c.Connections {
			t.Connections += v.Count - last
			t.Kinds[c.Kind] += v.Count - last
		}
		if c.Reason != render.Admitted {
			t.Refused[c.Reason] += v.Count - last
		}
		m.sums[c.Port] = t
	}
}

// Forget removes the sums of service ports without frontends after a commit. A Service that is created again
// starts at 0.
func (m *Meter[ID]) Forget(d Desired, applied *Applied) {
	m.mu.Lock()
	defer m.mu.Unlock()
	forget := func(p ir.ServicePort) {
		if !applied.Has(p) {
			delete(m.sums, p)
		}
	}
	if d.Full {
		for p := range m.sums {
			forget(p)
		}
		return
	}
	for _, p := range ir.Present(d.Before(applied)) {
		for s, f := range p.Frontends() {
			forget(f.Port)
			forget(ir.ServicePort{Service: s.Name})
		}
	}
}
