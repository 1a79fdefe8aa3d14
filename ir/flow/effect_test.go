package flow

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

func TestEffect(t *testing.T) {
	to := func(backends ...string) sim.Outcome {
		var all []sim.Destination
		for _, b := range backends {
			all = append(all, sim.Destination{AddrPort: netip.MustParseAddrPort(b)})
		}
		return sim.NewOutcome(false, all)
	}
	hidden := func(o sim.Outcome) sim.Outcome {
		for i := range o.Destinations {
			o.Destinations[i].SNAT = true
		}
		return o
	}
	sticky := func(o sim.Outcome) sim.Outcome { o.Affinity, o.Timeout = true, time.Hour; return o }
	// partly is served with a share of some millionths, and dropped otherwise.
	partly := func(o sim.Outcome, share uint32) sim.Outcome {
		o.Fate, o.Fallback = sim.Dropped, []sim.FateShare{{Fate: sim.Accepted, Share: share}}
		return o
	}
	weighted := func(o sim.Outcome, shares ...uint32) sim.Outcome { o.Shares = shares; return o }
	dropped, refused, none := sim.Outcome{Fate: sim.Dropped}, sim.Outcome{Fate: sim.Rejected}, sim.Outcome{}
	const a, b, c = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
	web, other := ir.Name{Namespace: "shop", Name: "web"}, ir.Name{Namespace: "shop", Name: "other"}
	mine, taken, gone := claim{owner: web, admits: true}, claim{owner: other, admits: true}, claim{admits: true}
	closed := claim{owner: web}
	by := func(p ir.Policy) claim { return claim{owner: web, admits: true, selection: selection{policy: p}} }
	for _, tt := range []struct {
		name   string
		before claim
		was    sim.Outcome
		after  claim
		is     sim.Outcome
		want   Effect
	}{
		{"dropped by source ranges", closed, dropped, mine, to(a), Opens},
		{"refused", mine, refused, mine, to(a), Opens},
		{"a new Service", gone, none, mine, to(a), Opens},
		{"a new Service without endpoints", gone, none, mine, refused, Other},
		{"a new Service, whose workload is scaled to zero", gone, none, claim{owner: web, admits: true, paused: "Deployment shop/web"}, refused, Opens},
		{"the same, outside of its source ranges", gone, none, claim{owner: web, paused: "Deployment shop/web"}, dropped, Other},
		{"partly served now", mine, dropped, mine, partly(to(a), 10), Opens},
		{"source ranges admit a client, without endpoints", closed, dropped, mine, refused, Opens},
		{"source ranges exclude a client, without endpoints", mine, refused, closed, dropped, Other},
		{"another Service takes the address", mine, to(a), taken, to(b), Opens},
		{"another Service takes address and endpoints", mine, to(a), taken, sticky(to(a)), Spread},
		{"no endpoint", mine, to(a), mine, refused, Lost},
		{"source ranges exclude a client", mine, to(a), closed, dropped, Lost},
		{"partly lost", mine, to(a, b), mine, partly(to(a), 500000), Lost},
		{"less is served", mine, partly(to(a), 500000), mine, partly(to(a), 333333), Lost},
		{"more is served", mine, partly(to(a), 500000), mine, to(a), Spread},
		{"removed", mine, to(a), gone, none, Lost},
		{"removed without endpoints", mine, refused, gone, none, Lost},
		{"dropped instead of refused", mine, refused, mine, dropped, Other},
		{"at ports without a Service", gone, refused, gone, none, Other},
		{"masqueraded", mine, to(a, b), mine, hidden(to(a, b)), ClientAddress},
		{"masqueraded to others", mine, to(a), mine, hidden(to(b)), ClientAddress},
		{"masqueraded, with affinity", mine, to(a), mine, sticky(hidden(to(a))), ClientAddress},
		{"affinity", mine, to(a, b), mine, sticky(to(a, b)), Spread},
		{"affinity and one more", mine, to(a), mine, sticky(to(a, b)), Spread},
		{"weights", mine, to(a, b), mine, weighted(to(a, b), 250000, 750000), Spread},
		{"only local endpoints", by(ir.Cluster), to(a, b), by(ir.Local), to(a), Spread},
		{"one more", by(ir.Cluster), to(a), by(ir.Cluster), to(a, b), Backends},
		{"one less", by(ir.Cluster), to(a, b), by(ir.Cluster), to(a), Backends},
		{"all others", by(ir.Cluster), to(a), by(ir.Cluster), to(b, c), Backends},
	} {
		change := changeOf(netip.MustParseAddr("192.0.2.1"), tt.was, tt.is)
		if got := effectOf(&change, &tt.was, &tt.is, tt.before, tt.after); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestNewTargets(t *testing.T) {
	at := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	behind := func(of ...string) map[netip.Addr][]string {
		return map[netip.Addr][]string{at("10.0.0.1:80").Addr(): of}
	}
	const none = "endpoints of no known workload"
	for _, tt := range []struct {
		name          string
		before, after map[netip.Addr][]string
		added         string
		want          []string
	}{
		{"the same", behind("Deployment shop/web"), behind("Deployment shop/web"), "10.0.0.1:80", nil},
		{"of unknown kind before", behind("shop/web"), behind("Deployment shop/web"), "10.0.0.1:80", nil},
		{"of unknown kind after", behind("Deployment shop/web"), behind("shop/web"), "10.0.0.1:80", nil},
		{"another kind", behind("Deployment shop/web"), behind("StatefulSet shop/web"), "10.0.0.1:80", []string{"StatefulSet shop/web"}},
		{"another name", behind("Deployment shop/web"), behind("shop/db"), "10.0.0.1:80", []string{"workload shop/db"}},
		{"one of two", behind("Deployment shop/web"), behind("Deployment shop/web", "Deployment shop/db"), "10.0.0.1:80", []string{"Deployment shop/db"}},
		{"none after", behind("Deployment shop/web"), behind(), "10.0.0.1:80", []string{none}},
		{"none before", behind(), behind("Deployment shop/web"), "10.0.0.1:80", []string{"Deployment shop/web"}},
		{"always none", behind(), behind(), "10.0.0.1:80", nil},
		{"another port", behind(), behind(), "10.0.0.1:81", []string{"port 81"}},
		{"nothing known", nil, nil, "10.0.0.1:80", nil},
		{"host network", behind("Deployment shop/web"), behind("Deployment shop/web in the host network"), "10.0.0.1:80", []string{"Deployment shop/web in the host network"}},
	} {
		got := newTargets(tt.before, tt.after, map[uint16]bool{80: true}, []netip.AddrPort{at(tt.added)}, func([]string, uint16) bool { return false })
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
