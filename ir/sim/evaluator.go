package sim

import (
	"net/netip"
	"sync"

	"github.com/proxyc/proxyc/ir"
)

// Evaluator computes the outcomes of many packets under one immutable Program. It
// is safe for concurrent use.
type Evaluator struct {
	program *ir.Program
	caps    ir.Capability
	own     *Own
	at      map[ir.Match]frontendOf
	byAddr  map[addrProtocol][]uint16 // ports of frontends; node ports without an address
	checks  *PortSet                  // of health checks
	vips    map[netip.Addr]frontendOf // the first frontend of an address whose undefined ports the mode rejects
	carried map[netip.Addr]bool       // addresses of Services that the node carries
	locals  map[ir.Match]bool         // backends that are local for some Service, if the mode then treats them as local for all
	slots   sync.Map                  // *slots by *ir.Frontend, created on first use
	ranges  sync.Map                  // *Prefixes by rangesKey, created on first use
}

// slots is the table of a frontend with Maglev.
type slots struct {
	table  []int // indexes of backends
	choice string
}

func (e *Evaluator) slotsOf(f *ir.Frontend, p *ir.Pool) *slots {
	if known, ok := e.slots.Load(f); ok {
		return known.(*slots)
	}
	s := &slots{table: f.Maglev.Table(p.Backends)}
	to := make([]netip.AddrPort, len(s.table))
	for slot, b := range s.table {
		to[slot] = p.Backends[b].AddrPort
	}
	s.choice = ir.MaglevChoice(to)
	e.slots.Store(f, s)
	return s
}

type frontendOf struct {
	service  *ir.Service
	frontend *ir.Frontend
}

// localKey returns the key of a backend in locals.
func (e *Evaluator) localKey(b *ir.Backend, p ir.Protocol) ir.Match {
	k := ir.Match{Addr: b.AddrPort.Addr()}
	if e.caps.Has(ir.HairpinByPort) {
		k.Protocol, k.Port = p, b.AddrPort.Port()
	}
	return k
}

type addrProtocol struct {
	addr     netip.Addr
	protocol ir.Protocol
}

// NewEvaluator returns an Evaluator of a Program. The cost is linear in the
// Program.
func NewEvaluator(p *ir.Program) *Evaluator { return NewEvaluatorWith(p, p.Node.Mode.Capabilities()) }

// NewEvaluatorWith is NewEvaluator with other capabilities than those of the
// mode.
func NewEvaluatorWith(p *ir.Program, caps ir.Capability) *Evaluator {
	e := &Evaluator{program: p, caps: caps, own: NewOwn(p.Family.Loopback(), p.Node.Addrs),
		at: map[ir.Match]frontendOf{}, byAddr: map[addrProtocol][]uint16{}, vips: map[netip.Addr]frontendOf{}, carried: map[netip.Addr]bool{}, locals: map[ir.Match]bool{}}
	minds := e.caps.Has(ir.RejectUndefinedVIPPorts)
	var checks []uint16
	for i := range p.Services {
		s := &p.Services[i]
		if s.Health != nil {
			checks = append(checks, s.Health.Port)
		}
		for j := range s.Pools {
			for k := range s.Pools[j].Backends {
				if b := &s.Pools[j].Backends[k]; b.Local && e.caps.Has(ir.HairpinByAddress) {
					e.locals[e.localKey(b, s.Pools[j].Port.Protocol)] = true
				}
			}
		}
		for j := range s.Frontends {
			f := &s.Frontends[j]
			of := frontendOf{s, f}
			if _, twice := e.at[f.Match]; !twice {
				e.at[f.Match] = of
				key := addrProtocol{f.Match.Addr, f.Match.Protocol}
				e.byAddr[key] = append(e.byAddr[key], f.Match.Port)
			}
			if _, known := e.vips[f.Match.Addr]; !known && !f.Match.IsNodePort() && (minds || f.Kind == ir.ClusterIP) {
				e.vips[f.Match.Addr] = of
			}
			if e.caps.Has(ir.CarriesVIPs) && !f.Match.IsNodePort() {
				e.carried[f.Match.Addr] = true
			}
		}
	}
	e.checks = NewPortSet(checks)
	return e
}

// Outcome is Trace; it records in cuts the constants with which it compared the
// packet.
func (e *Evaluator) Outcome(pkt Packet, cuts *Cuts) Outcome {
	t := tracer{Evaluator: e, pkt: pkt, cuts: cuts}
	return t.trace()
}

// Frontend returns the frontend with a match, or nil.
func (e *Evaluator) Frontend(m ir.Match) *ir.Frontend { return e.at[m].frontend }

// Destinations calls add with the prefixes with which destinations are compared,
// possibly with duplicates.
func (e *Evaluator) Destinations(add func(netip.Prefix)) {
	for key := range e.byAddr {
		if key.addr.IsValid() {
			add(netip.PrefixFrom(key.addr, key.addr.BitLen()))
		}
	}
	node := &e.program.Node
	e.own.Prefixes(add)
	for _, p := range node.NodePorts.Prefixes {
		add(p.Prefix)
	}
	for _, c := range node.ServiceCIDRs {
		add(c.Prefix)
	}
}
