package render

import (
	"slices"
	"sync"

	"github.com/proxyc/proxyc/ir"
)

// Counted is what one counter of the kernel counts.
type Counted struct {
	// Port is zero if the packets are for no Service, and only has the Service if they are for no port of it.
	Port        ir.ServicePort
	Kind        ir.Kind // of the frontend
	Connections bool    // all new connections, including refused ones
	Reason      Reason  // for which they are refused or dropped
}

// Reason is why a new connection is refused or dropped.
type Reason uint8

const (
	Admitted         Reason = iota // it is neither
	NoEndpoints                    // no ready endpoint exists (PKT-8)
	NoLocalEndpoints               // traffic policy Local, and endpoints on other nodes only (PKT-9)
	SourceRanges                   // loadBalancerSourceRanges do not contain the client (PKT-10)
	UndeclaredPort                 // the Service of the ClusterIP has no such port
	UnusedAddress                  // no Service has the address of the ServiceCIDR
	Reasons                        // their number
)

var reasonNames = [Reasons]string{"", "no-endpoints", "no-local-endpoints", "source-ranges", "undeclared-port", "unused-address"}

// String returns the value of label "reason".
func (r Reason) String() string { return reasonNames[r] }

// MarshalText returns String.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the text that String returns. Unknown reasons are Admitted.
func (r *Reason) UnmarshalText(text []byte) error {
	*r = Reason(max(0, slices.Index(reasonNames[:], string(text))))
	return nil
}

// Drops reports whether connections are dropped, not refused.
func (r Reason) Drops() bool { return r == NoLocalEndpoints || r == SourceRanges || r == UnusedAddress }

// Frontends finds the frontends of a Program. A Match with only an address finds one of the ClusterIP.
type Frontends map[ir.Match]*ir.Frontend

// FrontendsIn returns the frontends of the Programs by family. It reads the Programs when they are needed.
func FrontendsIn(programs func() ir.Programs) func(ir.Family) Frontends {
	all := sync.OnceValue(func() (all ir.PerFamily[Frontends]) {
		for f, p := range ir.Present(programs()) {
			*all.At(f) = frontendsOf(p)
		}
		return all
	})
	return func(f ir.Family) Frontends { return all().Of(f) }
}

func frontendsOf(p *ir.Program) Frontends {
	all := make(Frontends, 2*len(p.Services))
	for i := range p.Services {
		for j := range p.Services[i].Frontends {
			f := &p.Services[i].Frontends[j]
			all[f.Match] = f
			if f.Kind == ir.ClusterIP {
				all[ir.Match{Addr: f.Match.Addr}] = f
			}
		}
	}
	return all
}

// Count returns a counter of a frontend.
func Count(f *ir.Frontend, connections bool, r Reason) Counted {
	return Counted{Port: f.Port, Kind: f.Kind, Connections: connections, Reason: r}
}

// Unrouted returns why connections to a frontend without a route are refused.
func Unrouted(f *ir.Frontend) Reason {
	if f.Fallback == ir.Reject {
		return NoEndpoints
	}
	return NoLocalEndpoints
}
