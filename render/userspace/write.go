package userspace

import (
	"encoding/json"
	"io"
	"net/netip"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// WriteRules writes the iptables part as input of iptables-restore --noflush (or
// ip6tables-restore).
func (r *Ruleset) WriteRules(w io.Writer) error { return r.Rules.Write(w) }

// listeners is the format of userspace-listeners.json. Durations have the form of
// the Kubernetes API: "250ms", "3h0m0s".
type listeners struct {
	DialTimeouts   []string   `json:"dialTimeouts"`
	UDPIdleTimeout string     `json:"udpIdleTimeout"`
	Listeners      []listener `json:"listeners"`
	Unserved       []string   `json:"unserved,omitempty"`
}

type listener struct {
	ServicePort     string           `json:"servicePort"`
	Protocol        string           `json:"protocol"`
	Listen          netip.AddrPort   `json:"listen"`
	Backends        []netip.AddrPort `json:"backends"`
	AffinityTimeout string           `json:"affinityTimeout,omitempty"`
	Hold            []netip.AddrPort `json:"hold,omitempty"`
}

// WriteListeners writes the listeners of a node as one JSON object.
func WriteListeners(w io.Writer, rulesets ir.PerFamily[*Ruleset]) error {
	x := listeners{Listeners: []listener{}, DialTimeouts: []string{}}
	for _, r := range ir.Present(rulesets) {
		x.UDPIdleTimeout = r.UDPIdle.String()
		x.DialTimeouts = x.DialTimeouts[:0] // the same in both families
		for _, d := range r.DialTimeouts {
			x.DialTimeouts = append(x.DialTimeouts, d.String())
		}
		for i := range r.Listeners {
			x.Listeners = append(x.Listeners, r.Listeners[i].json())
		}
		for _, name := range r.Unserved {
			x.Unserved = append(x.Unserved, r.Family.String()+" "+name.String()+"/"+name.Protocol.String())
		}
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(x)
}

func (l *Listener) json() listener {
	j := listener{
		ServicePort: l.Port.String(),
		Protocol:    l.Port.Protocol.String(),
		Listen:      l.Listen,
		Backends:    l.Backends,
		Hold:        l.Reserved,
	}
	if j.Backends == nil {
		j.Backends = []netip.AddrPort{}
	}
	if l.Affinity > 0 {
		j.AffinityTimeout = l.Affinity.Round(time.Second).String()
	}
	return j
}
