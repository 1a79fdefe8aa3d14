package trace

import (
	"slices"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/userspace"
)

// localhost explains the fate of a packet that the node sends to a node port at a loopback address
// and that no rule matches, as steps show: proxyc watch proxies the port (KEP-6032), or the reason
// why not. It reports whether it handled the packet.
func (t *Trace) localhost(p *ir.Program, pkt sim.Packet, steps []sim.Step) bool {
	service, port := nodePort(p, pkt)
	if port == nil || !pkt.Dst.IsLoopback() || !pkt.FromNode() {
		return false
	}
	addrs := &p.Node.NodePorts
	if !addrs.Proxied || pkt.Dst != p.Family.Localhost() {
		t.Steps = append(t.Steps, steps...)
		t.addStep(addrs.Origin, "%s", whyNotLocalhost(p, pkt))
		return true
	}
	t.hindrances = nil // they concern rules
	t.addStep(port.Origin, "%d/%s is the NodePort of %s", pkt.Port, pkt.Protocol, port.Port)
	gate := ir.Origin{Object: "config", Field: "featureGates." + config.GateLocalhost}
	t.addStep(gate, "proxyc watch listens there, and opens its own connection to a backend")
	all := userspace.Localhost(p.Family, service)
	l := all[slices.IndexFunc(all, func(l userspace.Listener) bool { return l.Listen.Port() == pkt.Port })]
	if len(l.Backends) == 0 {
		t.addStep(l.Origin, "no backend: it does not listen")
		t.Outcome = sim.Outcome{Fate: sim.Rejected}
		return true
	}
	t.addStep(l.Origin, "one of %d backends in turn; if it does not answer, the next one", len(l.Backends))
	if t.Outcome = (sim.Outcome{Fate: sim.Accepted, Affinity: l.Affinity > 0, Timeout: l.Affinity}); l.Affinity > 0 {
		t.addStep(l.Origin, "all clients on the node keep one backend until %s pass without a new connection", l.Affinity)
	}
	for _, b := range l.Backends {
		t.Outcome.Destinations = append(t.Outcome.Destinations, sim.Destination{AddrPort: b, SNAT: true})
	}
	return true
}

// whyNotLocalhost returns the reason why node ports do not answer at a loopback address.
func whyNotLocalhost(p *ir.Program, pkt sim.Packet) string {
	localhost := p.Family.Localhost().String()
	switch caps := p.Node.Mode.Capabilities(); {
	case p.Node.NodePorts.Proxied:
		return "watch serves them only at " + localhost
	case caps.Has(ir.ProxiesLocalhost):
		return "in mode " + string(p.Node.Mode) + " watch serves them at " + localhost + " over TCP with feature gate " + config.GateLocalhost + " and localhost in nodePortAddresses"
	case caps.Has(ir.LocalhostByProcess):
		return "nodePortAddresses does not contain it"
	case caps.Has(ir.LocalhostNodePorts) && p.Family == ir.IPv4:
		return "iptables.localhostNodePorts is false, or nodePortAddresses does not contain it"
	}
	return "mode " + string(p.Node.Mode) + " does not serve node ports at " + p.Family.String() + " loopback addresses"
}

// nodePort returns the frontend whose node port is the packet's destination, and its Service. It
// returns nil if there is none.
func nodePort(p *ir.Program, pkt sim.Packet) (*ir.Service, *ir.Frontend) {
	for i := range p.Services {
		s := &p.Services[i]
		for j := range s.Frontends {
			if s.Frontends[j].Match == (ir.Match{Protocol: pkt.Protocol, Port: pkt.Port}) {
				return s, &s.Frontends[j]
			}
		}
	}
	return nil, nil
}
