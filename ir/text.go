package ir

import (
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

func utoa(n uint16) string { return strconv.FormatUint(uint64(n), 10) }

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
	n, a, d := &p.Node, &p.Node.NodePorts, &p.Node.Detector
	t.line(0, Origin{}, "program", p.Family.String(), "mode", string(n.Mode), "node", strconv.Quote(n.Name))
	t.setting("zone", n.Zone)
	t.setting("ip", addrText(n.IP))
	for _, a := range n.Addrs {
		t.setting("address", a.String())
	}
	t.line(1, a.Origin, "node-ports", either(a.All, "all", "listed"),
		either(a.Loopback, "loopback", either(a.Proxied, "localhost-proxied", "")), either(a.Rejected, "localhost-rejected", ""))
	for _, pre := range a.Prefixes {
		t.line(2, pre.Origin, pre.Prefix.String(), either(pre.Assigned, "assigned", "address"))
	}
	t.line(1, d.Origin, [...]string{DetectNone: "pods unknown", DetectCIDR: "pods from " + d.Prefix.String(),
		DetectInterface: "pods via " + d.Interface, DetectPrefix: "pods via " + d.Interface + "*"}[d.Mode])
	t.setting("masquerade", either(n.MasqueradeAll, "all", ""))
	t.setting("masquerade-bit", utoa(uint16(n.MasqueradeBit)))
	t.setting("drop", either(n.DropInvalid, "invalid", ""))
	for _, c := range n.ServiceCIDRs {
		t.line(1, c.Origin, "service-cidr", c.Prefix.String())
	}
	t.mode(n)
}

// mode writes the settings of one mode.
func (t *text) mode(n *Node) {
	if i := n.IPVS; i != nil {
		t.setting("ipvs-scheduler", i.Scheduler)
		for _, c := range i.ExcludeCIDRs {
			t.setting("ipvs-exclude", c.String())
		}
		t.setting("ipvs-arp", either(i.StrictARP, "strict", ""))
		t.duration("ipvs-tcp-timeout", i.TCPTimeout)
		t.duration("ipvs-tcpfin-timeout", i.TCPFinTimeout)
		t.duration("ipvs-udp-timeout", i.UDPTimeout)
	}
	if h := n.HNS; h != nil {
		t.setting("hns-network", h.NetworkName+" "+h.NetworkType)
		t.setting("hns-source-vip", addrText(h.SourceVIP))
		t.setting("hns-dsr", either(h.EnableDSR, "enabled", ""))
		t.setting("hns-health-vip", either(h.ForwardHealthCheckVIP, h.RootEndpoint+" port "+utoa(h.HealthzPort), ""))
	}
	if u := n.Userspace; u != nil {
		t.setting("userspace-bind", addrText(u.BindAddress))
		t.setting("userspace-ports", utoa(u.PortMin)+"-"+utoa(u.PortMax))
		t.duration("userspace-udp-idle", u.UDPIdleTimeout)
	}
}

// either returns the word for a condition.
func either(is bool, word, otherwise string) string {
	if is {
		return word
	}
	return otherwise
}

// addrText returns an address, or "" for none.
func addrText(a netip.Addr) string { return either(a.IsValid(), a.String(), "") }

func (t *text) setting(key, value string) {
	if value != "" {
		t.line(1, Origin{}, key, value)
	}
}

func (t *text) duration(key string, d time.Duration) {
	t.setting(key, either(d != 0, d.String(), ""))
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
		t.backends(p.Backends)
	}
	for _, d := range s.Draining {
		t.line(1, d.Origin, "keeps", d.Port.local())
		t.backends(d.Backends)
	}
	for i := range s.Frontends {
		t.frontend(&s.Frontends[i])
	}
	if h := s.Health; h != nil {
		t.line(1, h.Origin, "health-check", utoa(h.Port), "local", strconv.Itoa(h.Local))
	}
	if h := s.HNS; h != nil && h.PreserveDIP {
		t.line(1, Origin{}, "hns preserve-destination")
	}
	if h := s.HNS; h != nil && h.NoOptimize {
		t.line(1, Origin{}, "hns recreate")
	}
}

func (t *text) frontend(f *Frontend) {
	t.line(1, f.Origin, f.Kind.String(), f.Match.String(), "port", f.Port.local(), "policy", strings.ToLower(f.Policy.String()))
	for _, r := range f.SourceRanges {
		t.line(2, r.Origin, "allow", r.Prefix.String())
	}
	for _, r := range f.Routes {
		t.line(2, r.Origin, "from", r.From.String(), "-> pool", strconv.Itoa(r.Pool), either(r.SNAT, "masquerade", ""))
	}
	if m := f.Maglev; m != nil {
		t.line(2, m.Origin, "maglev", strconv.FormatUint(uint64(m.Slots), 10))
	}
	if !RoutesAll(f.Routes) {
		t.line(2, f.FallbackOrigin, "else", f.Fallback.String())
	}
}

func (t *text) backends(all []Backend) {
	for i := range all {
		b := &all[i]
		t.line(2, b.Origin, b.AddrPort.String(), either(b.Local, "local", ""))
	}
}

// local returns the name of the port within its Service: "http/tcp", or "tcp"
// without a name.
func (p ServicePort) local() string {
	if p.Port == "" {
		return p.Protocol.String()
	}
	return p.Port + "/" + p.Protocol.String()
}
