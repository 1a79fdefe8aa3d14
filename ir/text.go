package ir

import (
	"io"
	"strconv"
	"strings"
	"time"
)

func utoa(n uint16) string { return strconv.FormatUint(uint64(n), 10) }

func atou(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil
}

// WriteText writes the canonical text of the programs of one node, for review:
// one part per line, with its Origin after "#". Equal Programs yield equal bytes.
func WriteText(w io.Writer, programs Programs) error {
	first := true
	for _, p := range Present(programs) {
		t := text{}
		if !first {
			t.b = append(t.b, '\n')
		}
		first = false
		t.program(p)
		for j := range p.Services {
			t.b = append(t.b, '\n')
			t.service(&p.Services[j])
			if len(t.b) > 1<<16 {
				if _, err := w.Write(t.b); err != nil {
					return err
				}
				t.b = t.b[:0]
			}
		}
		if _, err := w.Write(t.b); err != nil {
			return err
		}
	}
	return nil
}

// Text returns the canonical text of one Service, as in WriteText.
func (s *Service) Text() string {
	var t text
	t.service(s)
	return string(t.b)
}

type text struct{ b []byte }

// line writes one indented line: its words, then the origin as a comment.
func (t *text) line(indent int, o Origin, words ...string) {
	start := len(t.b)
	for range indent {
		t.b = append(t.b, "  "...)
	}
	for i, w := range words {
		if w == "" {
			continue
		}
		if i > 0 {
			t.b = append(t.b, ' ')
		}
		t.b = append(t.b, w...)
	}
	if o != (Origin{}) {
		const column = 56
		for pad := column - (len(t.b) - start); pad > 0; pad-- {
			t.b = append(t.b, ' ')
		}
		t.b = append(t.b, " # "...)
		t.b = append(t.b, o.String()...)
	}
	t.b = append(t.b, '\n')
}

func (t *text) program(p *Program) {
	n := &p.Node
	t.line(0, Origin{}, "program", p.Family.String(), "mode", string(n.Mode), "node", strconv.Quote(n.Name))
	t.setting("zone", n.Zone)
	if n.IP.IsValid() {
		t.setting("ip", n.IP.String())
	}
	for _, a := range n.Addrs {
		t.setting("address", a.String())
	}
	a := &n.NodePorts
	addresses, loopback, rejected := "listed", "", ""
	if a.All {
		addresses = "all"
	}
	switch {
	case a.Loopback:
		loopback = "loopback"
	case a.Proxied:
		loopback = "localhost-proxied"
	}
	if a.Rejected {
		rejected = "localhost-rejected"
	}
	t.line(1, a.Origin, "node-ports", addresses, loopback, rejected)
	for _, pre := range a.Prefixes {
		kind := "address"
		if pre.Assigned {
			kind = "assigned"
		}
		t.line(2, pre.Origin, pre.Prefix.String(), kind)
	}
	switch d := &n.Detector; d.Mode {
	case DetectNone:
		t.line(1, d.Origin, "pods unknown")
	case DetectCIDR:
		t.line(1, d.Origin, "pods from", d.Prefix.String())
	case DetectInterface:
		t.line(1, d.Origin, "pods via", d.Interface)
	case DetectPrefix:
		t.line(1, d.Origin, "pods via", d.Interface+"*")
	}
	if n.MasqueradeAll {
		t.setting("masquerade", "all")
	}
	t.setting("masquerade-bit", utoa(uint16(n.MasqueradeBit)))
	if n.DropInvalid {
		t.setting("drop", "invalid")
	}
	for _, c := range n.ServiceCIDRs {
		t.line(1, c.Origin, "service-cidr", c.Prefix.String())
	}
	if i := n.IPVS; i != nil {
		t.setting("ipvs-scheduler", i.Scheduler)
		for _, c := range i.ExcludeCIDRs {
			t.setting("ipvs-exclude", c.String())
		}
		if i.StrictARP {
			t.setting("ipvs-arp", "strict")
		}
		t.duration("ipvs-tcp-timeout", i.TCPTimeout)
		t.duration("ipvs-tcpfin-timeout", i.TCPFinTimeout)
		t.duration("ipvs-udp-timeout", i.UDPTimeout)
	}
	if h := n.HNS; h != nil {
		t.setting("hns-network", h.NetworkName+" "+h.NetworkType)
		if h.SourceVIP.IsValid() {
			t.setting("hns-source-vip", h.SourceVIP.String())
		}
		if h.EnableDSR {
			t.setting("hns-dsr", "enabled")
		}
		if h.ForwardHealthCheckVIP {
			t.setting("hns-health-vip", h.RootEndpoint+" port "+utoa(h.HealthzPort))
		}
	}
	if u := n.Userspace; u != nil {
		if u.BindAddress.IsValid() {
			t.setting("userspace-bind", u.BindAddress.String())
		}
		t.setting("userspace-ports", utoa(u.PortMin)+"-"+utoa(u.PortMax))
		t.duration("userspace-udp-idle", u.UDPIdleTimeout)
	}
}

func (t *text) setting(key, value string) {
	if value != "" {
		t.line(1, Origin{}, key, value)
	}
}

func (t *text) duration(key string, d time.Duration) {
	if d != 0 {
		t.setting(key, d.String())
	}
}

func (t *text) service(s *Service) {
	t.line(0, s.Origin, "service", s.Name.String())
	for i := range s.Pools {
		p := &s.Pools[i]
		affinity := ""
		if p.Affinity != nil {
			affinity = "affinity " + p.Affinity.Timeout.String()
		}
		t.line(1, p.Origin, "pool", strconv.Itoa(i), p.Port.local(), strings.ToLower(p.Policy.String()), affinity)
		for j := range p.Backends {
			t.backend(&p.Backends[j])
		}
	}
	for i := range s.Draining {
		d := &s.Draining[i]
		t.line(1, d.Origin, "keeps", d.Port.local())
		for j := range d.Backends {
			t.backend(&d.Backends[j])
		}
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		t.line(1, f.Origin, f.Kind.String(), f.Match.String(), "port", f.Port.local(), "policy", strings.ToLower(f.Policy.String()))
		for _, r := range f.SourceRanges {
			t.line(2, r.Origin, "allow", r.Prefix.String())
		}
		for _, r := range f.Routes {
			snat := ""
			if r.SNAT {
				snat = "masquerade"
			}
			t.line(2, r.Origin, "from", r.From.String(), "-> pool", strconv.Itoa(r.Pool), snat)
		}
		if m := f.Maglev; m != nil {
			t.line(2, m.Origin, "maglev", strconv.FormatUint(uint64(m.Slots), 10))
		}
		if !RoutesAll(f.Routes) {
			t.line(2, f.FallbackOrigin, "else", f.Fallback.String())
		}
	}
	if h := s.Health; h != nil {
		t.line(1, h.Origin, "health-check", utoa(h.Port), "local", strconv.Itoa(h.Local))
	}
	if h := s.HNS; h != nil {
		if h.PreserveDIP {
			t.line(1, Origin{}, "hns preserve-destination")
		}
		if h.NoOptimize {
			t.line(1, Origin{}, "hns recreate")
		}
	}
}

func (t *text) backend(b *Backend) {
	local := ""
	if b.Local {
		local = "local"
	}
	t.line(2, b.Origin, b.AddrPort.String(), local)
}

// local returns the name of the port within its Service: "http/tcp", or "tcp"
// without a name.
func (p ServicePort) local() string {
	if p.Port == "" {
		return p.Protocol.String()
	}
	return p.Port + "/" + p.Protocol.String()
}
