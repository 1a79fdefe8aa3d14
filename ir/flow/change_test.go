package flow

import (
	"net/netip"
	"testing"
	"time"

	"github.com/proxyc/proxyc/ir/sim"
)

func TestChange(t *testing.T) {
	client := netip.MustParseAddr("10.244.1.9")
	to := func(backends ...sim.Destination) sim.Outcome { return sim.NewOutcome(false, backends) }
	at := func(text string, snat bool) sim.Destination {
		return sim.Destination{AddrPort: netip.MustParseAddrPort(text), SNAT: snat}
	}
	sticky := func(o sim.Outcome, d time.Duration) sim.Outcome {
		o.Affinity, o.Timeout = true, d
		return o
	}
	a, b, c := at("10.0.0.1:80", false), at("10.0.0.2:80", false), at("10.0.0.3:80", false)
	hidden := func(d sim.Destination) sim.Destination { d.SNAT = true; return d }
	self := sim.Destination{AddrPort: netip.AddrPortFrom(client, 80)}
	dropped, refused := sim.Outcome{Fate: sim.Dropped}, sim.Outcome{Fate: sim.Rejected}
	for _, tt := range []struct {
		name     string
		was, is  sim.Outcome
		want     string
		fraction float64
	}{
		{"one more", to(a), to(a, b), "+10.0.0.2:80; 50 % of connections move", 0.5},
		{"one less of three", to(a, b, c), to(a, c), "-10.0.0.2:80; 33 % of connections move", 1. / 3},
		{"all others", to(a), to(b), "+10.0.0.2:80 -10.0.0.1:80; 100 % of connections move", 1},
		{"begins", dropped, to(a), "dropped → served; +10.0.0.1:80; client address kept", 0},
		{"begins, masqueraded", sim.Outcome{}, to(hidden(a)), "not proxied → served; +10.0.0.1:80; client address masqueraded", 0},
		{"ends", to(hidden(a)), refused, "served → rejected; -10.0.0.1:80", 0},
		{"refused in place of dropped", dropped, refused, "dropped → rejected", 0},
		{"masqueraded", to(a, b), to(hidden(a), hidden(b)), "client address kept → masqueraded", 0},
		{"masqueraded to one", to(a, b), to(a, hidden(b)), "client address kept → masqueraded but to 10.0.0.1:80", 0},
		{"one more, and masqueraded", to(a), to(hidden(a), hidden(b)), "+10.0.0.2:80; 50 % of connections move; client address kept → masqueraded", 0.5},
		{"to itself", to(a, self), to(a, hidden(self)), "client address kept, to itself kept → kept, to itself masqueraded", 0},
		{"one less beside itself", to(a, b, hidden(self)), to(a, hidden(self)), "-10.0.0.2:80; 33 % of connections move", 1. / 3},
		{"affinity", to(a), sticky(to(a), time.Hour), "affinity none → 1h0m0s", 0},
		{"its timeout", sticky(to(a), time.Hour), sticky(to(a), time.Minute), "affinity 1h0m0s → 1m0s", 0},
		{"begins with affinity", refused, sticky(to(a), time.Hour), "rejected → served; +10.0.0.1:80; client address kept; affinity none → 1h0m0s", 0},
		{"shares", to(a, b), sim.Outcome{Fate: sim.Accepted, Destinations: []sim.Destination{a, b}, Shares: []uint32{250000, 750000}},
			"25 % of connections move; 10.0.0.1:80 10.0.0.2:80 → 10.0.0.1:80(25%) 10.0.0.2:80(75%)", 0.25},
		{"by chance", to(a), sim.Outcome{Fate: sim.Dropped, Destinations: []sim.Destination{a}, Fallback: []sim.FateShare{{Fate: sim.Accepted, Share: 500000}}},
			"served → dropped; 10.0.0.1:80 → dropped (50%) or 10.0.0.1:80 (50%)", 0},
	} {
		got := changeOf(client, tt.was, tt.is)
		if got.String() != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got.String(), tt.want)
		}
		if d := got.Moved - tt.fraction; d > 1e-6 || d < -1e-6 {
			t.Errorf("%s: %v of connections move, want %v", tt.name, got.Moved, tt.fraction)
		}
	}
}
