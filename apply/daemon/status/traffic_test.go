package status

import (
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// The cause is the most frequent reason: of all connections in NewTraffic, and of the interval after Since, if it has any.
func TestCause(t *testing.T) {
	port := ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: "web"}, Port: "http", Protocol: ir.TCP}
	svc := ir.Service{Name: port.Service, Frontends: []ir.Frontend{{Port: port, Kind: ir.ClusterIP, Fallback: ir.Reject, FallbackOrigin: ir.Origin{Object: "Service ns/web"}}}}
	programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Services: []ir.Service{svc}})
	at := time.Date(2026, 11, 29, 10, 41, 0, 0, time.UTC)
	read := func(seconds int, none, ranges uint64) *Traffic {
		sum := apply.Traffic{Connections: 100 + none + ranges}
		sum.Refused[render.NoEndpoints], sum.Refused[render.SourceRanges] = none, ranges
		return NewTraffic(at.Add(time.Duration(seconds)*time.Second), map[ir.ServicePort]apply.Traffic{port: sum}, programs, func(ir.ServicePort) string { return ", idle" })
	}
	before, now := read(0, 3, 50), read(2, 13, 51)
	if got := before.Services[0].Cause; got != "source-ranges" {
		t.Errorf("the cause is %q", got)
	}
	now.Since(before)
	s := now.Services[0]
	if s.Cause != "no-endpoints: Service ns/web, idle" || s.Interval.Connections != 11 || s.Connections != 164 || now.Seconds != 2 {
		t.Errorf("the interval is %+v of %+v", s.Interval, s)
	}
	if now.Since(now); s.Cause != "source-ranges" || s.Interval.Connections != 0 {
		t.Errorf("without connections, the interval is %+v of %+v", s.Interval, s)
	}
}

// Idle contains since when a port has no ready endpoint, until it has one or its Service is removed.
func TestIdle(t *testing.T) {
	port := ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: "web"}, Port: "http", Protocol: ir.TCP}
	served := ir.Service{Name: port.Service, Frontends: []ir.Frontend{{Port: port, Routes: []ir.Route{{}}}}}
	empty := ir.Service{Name: port.Service, Frontends: []ir.Frontend{{Port: port, Fallback: ir.Reject}}}
	at, idle := time.Unix(1000, 0), Idle{}
	idle.note(nil, &served, at)
	if len(idle) > 0 {
		t.Error(idle)
	}
	idle.note(&served, &empty, at)
	idle.note(&empty, &empty, at.Add(time.Hour))
	if len(idle) != 1 || idle[port] != at {
		t.Error(idle)
	}
	if idle.note(&empty, nil, at); len(idle) > 0 {
		t.Error(idle)
	}
}
