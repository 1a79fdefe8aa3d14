package status

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// TrafficPath is the path of the Traffic, as JSON, on the status socket.
const TrafficPath = "/proxyc/traffic"

// Traffic is the new connections of Services that a daemon counted.
type Traffic struct {
	At       time.Time         `json:"at"`
	Seconds  float64           `json:"seconds,omitempty"` // of an interval
	Error    string            `json:"error,omitempty"`   // why nothing is counted
	Services []*ServiceTraffic `json:"services"`
}

// ServiceTraffic is the Traffic of a service port. It has no Service for unused addresses, and no Port
// and Protocol for undeclared ports.
type ServiceTraffic struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      string `json:"port"` // its name
	Protocol  string `json:"protocol,omitempty"`
	Counts
	Kinds    map[string]uint64        `json:"kinds"`            // Connections by kind of frontend
	Causes   map[render.Reason]string `json:"causes,omitempty"` // the objects and fields behind each reason
	Interval *Counts                  `json:"interval,omitempty"`
	// Cause is the most frequent reason of the interval, or of all if it has none, and what is behind it.
	Cause string `json:"cause,omitempty"`
}

// Counts are numbers of new connections.
type Counts struct {
	Connections uint64                   `json:"connections"` // including refused ones
	Refused     map[render.Reason]uint64 `json:"refused,omitempty"`
}

// NewTraffic returns what was counted, by service port. programs are the applied ones. idle describes a
// service port without ready endpoints.
func NewTraffic(now time.Time, sums map[ir.ServicePort]apply.Traffic, programs ir.Programs, idle func(ir.ServicePort) string) *Traffic {
	t := &Traffic{At: now, Services: []*ServiceTraffic{}}
	for _, port := range slices.SortedFunc(maps.Keys(sums), ir.ServicePort.Compare) {
		s := &ServiceTraffic{Namespace: port.Service.Namespace, Service: port.Service.Name, Port: port.Port,
			Counts: Counts{sums[port].Connections, map[render.Reason]uint64{}}, Kinds: map[string]uint64{}, Causes: map[render.Reason]string{}}
		for k, n := range sums[port].Kinds {
			if n > 0 {
				s.Kinds[ir.Kind(k).String()] = n
			}
		}
		if port.Protocol != 0 {
			s.Protocol = port.Protocol.String()
		}
		for r, n := range sums[port].Refused {
			if r := render.Reason(r); n > 0 {
				s.Refused[r], s.Causes[r] = n, cause(r, port, programs)
				if r == render.NoEndpoints {
					s.Causes[r] += idle(port)
				}
			}
		}
		s.Cause = s.causeOf(s.Counts)
		t.Services = append(t.Services, s)
	}
	return t
}

// cause returns a reason with its origin in the applied Programs, if that still exists.
func cause(r render.Reason, port ir.ServicePort, programs ir.Programs) string {
	for _, p := range ir.Present(programs) {
		i, ok := p.Find(port.Service)
		if !ok {
			continue
		}
		for _, f := range p.Services[i].Frontends {
			switch same := f.Port == port; {
			case same && r == render.SourceRanges && len(f.SourceRanges) > 0:
				return r.String() + ": " + f.SourceRanges[0].Origin.String()
			case same && r == render.Unrouted(&f) && f.FallbackOrigin != (ir.Origin{}):
				return r.String() + ": " + f.FallbackOrigin.String()
			}
		}
	}
	return r.String()
}

// causeOf returns the cause of the most frequent reason.
func (s *ServiceTraffic) causeOf(c Counts) string {
	var most render.Reason
	for _, r := range slices.Sorted(maps.Keys(c.Refused)) {
		if c.Refused[r] > c.Refused[most] {
			most = r
		}
	}
	return s.Causes[most]
}

// Name returns ns/name:port, or a description of packets for no Service.
func (s *ServiceTraffic) Name() string {
	if s.Service == "" {
		return "(no Service)"
	}
	return ir.ServicePort{Service: ir.Name{Namespace: s.Namespace, Name: s.Service}, Port: s.Port}.String()
}

// Refusals returns the number of refused and of dropped connections.
func (c *Counts) Refusals() (refused, dropped uint64) {
	for r, n := range c.Refused {
		if r.Drops() {
			dropped += n
		} else {
			refused += n
		}
	}
	return refused, dropped
}

// MoreRefused orders by refused and dropped connections.
func MoreRefused(a, b *Counts) int {
	refused, dropped := a.Refusals()
	r, d := b.Refusals()
	return cmp.Compare(r+d, refused+dropped)
}

// Refusing returns the first n service ports that refused or dropped the most connections.
func (t *Traffic) Refusing(n int) []*ServiceTraffic {
	all := slices.DeleteFunc(slices.Clone(t.Services), func(s *ServiceTraffic) bool { return len(s.Refused) == 0 })
	slices.SortStableFunc(all, func(a, b *ServiceTraffic) int { return MoreRefused(&a.Counts, &b.Counts) })
	return all[:min(n, len(all))]
}

// Since adds the interval since an earlier Traffic. A Service that was created again starts at 0.
func (t *Traffic) Since(before *Traffic) {
	t.Seconds = max(t.At.Sub(before.At), time.Millisecond).Seconds()
	was := map[[2]string]*ServiceTraffic{}
	for _, s := range before.Services {
		was[[2]string{s.Name(), s.Protocol}] = s
	}
	for _, s := range t.Services {
		old := was[[2]string{s.Name(), s.Protocol}]
		if old == nil || old.Connections > s.Connections {
			old = new(ServiceTraffic)
		}
		s.Interval = &Counts{s.Connections - old.Connections, map[render.Reason]uint64{}}
		for r, n := range s.Refused {
			if n > old.Refused[r] {
				s.Interval.Refused[r] = n - old.Refused[r]
			}
		}
		s.Cause = cmp.Or(s.causeOf(*s.Interval), s.causeOf(s.Counts))
	}
}

// Idle is since when service ports of a family have no ready endpoint; zero if they had none at the first sync.
type Idle map[ir.ServicePort]time.Time

// NoteIdle records which service ports have no ready endpoint after a sync.
func NoteIdle(all *ir.PerFamily[Idle], programs ir.Programs, changes ir.Changes, at time.Time) {
	for f, program := range ir.Present(programs) {
		idle := all.At(f)
		if *idle == nil {
			*idle, at = Idle{}, time.Time{}
		}
		for _, c := range changes.Of(f) {
			idle.note(c.Old, c.New, at)
		}
		for i := range program.Services {
			idle.note(&program.Services[i], &program.Services[i], at)
		}
	}
}

// note records that a Service is now another one; nil if there is none.
func (i Idle) note(old, now *ir.Service, at time.Time) {
	idle := Idle{}
	for k := 0; now != nil && k < len(now.Frontends); k++ {
		if f := &now.Frontends[k]; len(f.Routes) == 0 && render.Unrouted(f) == render.NoEndpoints {
			idle[f.Port] = at
		}
	}
	for k := 0; old != nil && k < len(old.Frontends); k++ {
		port := old.Frontends[k].Port
		_, still := idle[port]
		if since, known := i[port]; known && still {
			idle[port] = since
		}
		delete(i, port)
	}
	maps.Copy(i, idle)
}
