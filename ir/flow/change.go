package flow

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir/sim"
)

// Change is the difference between the outcomes of a flow on the two sides.
type Change struct {
	Effect        Effect
	Before, After sim.Fate
	// Added and Removed are the backends of only one side, sorted.
	Added, Removed []netip.AddrPort
	// Kept describes whether the client address is kept at the common backends,
	// or, if only one side has backends, at those. It is "" if the connection is
	// not accepted after the change. It is also "" if the only backend is the
	// client itself, whose hairpin connection is always masqueraded.
	Kept [2]string
	// Affinity is the duration of session affinity; 0 if none.
	Affinity [2]time.Duration
	// Moved is the share of connections, from 0 to 1, whose backend changes.
	Moved float64
	// Exact is the full outcome of both sides, set if the other fields do not
	// show the difference, such as shares of backends.
	Exact [2]string
	// Targets are the workloads and ports of Added that the Service did not have:
	// "workload shop/db", "port 9090".
	Targets []string
	// Waits describes what a new destination without endpoints waits for; "" for
	// others.
	Waits string
}

// Values of Change.Kept.
const (
	kept       = "kept"
	masked     = "masqueraded"
	maskedBut  = "masqueraded but to "
	unknown    = "not known"
	noAffinity = 0
)

// changeOf compares the outcomes of a packet.
func changeOf(src netip.Addr, a, b sim.Outcome) Change {
	c := Change{Before: a.Fate, After: b.Fate}
	c.Added, c.Removed = missing(b, a), missing(a, b)
	c.Affinity = [2]time.Duration{affinity(a), affinity(b)}
	both := func(d sim.Destination) bool { return true }
	if a.Fate == sim.Accepted && b.Fate == sim.Accepted {
		c.Moved = moved(a, b)
		if len(c.Added) < len(b.Destinations) { // some are common
			both = func(d sim.Destination) bool {
				return !in(c.Added, d.AddrPort) && !in(c.Removed, d.AddrPort)
			}
		}
	}
	if b.Fate == sim.Accepted { // otherwise no backend receives it
		c.Kept = [2]string{clientAddr(src, a, b, both), clientAddr(src, b, a, both)}
	}
	if same := c.Before == c.After && c.Affinity[0] == c.Affinity[1] && c.Kept[0] == c.Kept[1] &&
		len(c.Added)+len(c.Removed) == 0; same || a.Shares != nil || b.Shares != nil || a.Fallback != nil || b.Fallback != nil || (a.Choice == "") != (b.Choice == "") {
		c.Exact = [2]string{a.String(), b.String()}
	}
	return c
}

// missing returns the backends of a that b does not contain, sorted.
func missing(a, b sim.Outcome) (out []netip.AddrPort) {
	for _, d := range a.Destinations {
		_, has := slices.BinarySearchFunc(b.Destinations, d.AddrPort, func(o sim.Destination, at netip.AddrPort) int { return o.AddrPort.Compare(at) })
		if !has {
			out = append(out, d.AddrPort)
		}
	}
	return slices.Compact(out)
}

// in reports whether a sorted list contains a backend.
func in(list []netip.AddrPort, at netip.AddrPort) bool {
	_, has := slices.BinarySearchFunc(list, at, netip.AddrPort.Compare)
	return has
}

func affinity(o sim.Outcome) time.Duration {
	switch {
	case !o.Affinity:
		return noAffinity
	case o.Timeout == 0: // unknown
		return sim.Forever
	}
	return o.Timeout
}

// moved returns the share of connections whose backend changes.
func moved(a, b sim.Outcome) float64 {
	shares := map[netip.AddrPort]float64{}
	add := func(o sim.Outcome, sign float64) {
		for i, d := range o.Destinations {
			share := 1 / float64(len(o.Destinations))
			if o.Shares != nil {
				share = float64(o.Shares[i]) / 1e6
			}
			shares[d.AddrPort] += sign * share
		}
	}
	add(a, 1)
	add(b, -1)
	sum := 0.0
	for _, s := range shares {
		sum += max(s, 0)
	}
	return sum
}

// clientAddr describes whether a client's address is kept at some backends of an
// outcome. Hairpin connections are usually masqueraded regardless of other
// connections, so they are mentioned only if the other side differs.
func clientAddr(src netip.Addr, o, other sim.Outcome, at func(sim.Destination) bool) string {
	var hidden, plain []string
	itself := ""
	for _, d := range o.Destinations {
		switch {
		case !at(d):
		case d.AddrPort.Addr() == src:
			if slices.Contains(other.Destinations, sim.Destination{AddrPort: d.AddrPort, SNAT: !d.SNAT}) {
				itself = ", to itself " + kept
				if d.SNAT {
					itself = ", to itself " + masked
				}
			}
		case d.SNAT:
			hidden = append(hidden, d.AddrPort.String())
		default:
			plain = append(plain, d.AddrPort.String())
		}
	}
	switch {
	case len(hidden) == 0 && len(plain) == 0:
		return strings.TrimPrefix(itself, ", ")
	case len(hidden) == 0:
		return kept + itself
	case len(plain) == 0:
		return masked + itself
	}
	return maskedBut + strings.Join(plain, ", ") + itself
}

// key is equal for changes that are reported together. anyAddr ignores the
// client's address, and the effect that may depend on it.
func (c *Change) key(anyAddr bool) string {
	k := []byte{byte(c.Before), byte(c.After)}
	for _, list := range [...][]netip.AddrPort{c.Added, c.Removed} {
		for _, b := range list {
			k = append(b.AppendTo(k), ' ')
		}
		k = append(k, '-')
	}
	for i := range c.Affinity {
		k = append(append(strconv.AppendInt(k, int64(c.Affinity[i]), 10), ' '), c.Exact[i]...)
	}
	k = append(k, c.Waits...) // Added decides about Targets
	if anyAddr {
		return string(k)
	}
	if c.ChangesAddr() {
		k = append(append(append(k, c.Kept[0]...), '>'), c.Kept[1]...)
	}
	return string(append(k, byte(c.Effect)))
}

// ChangesAddr reports whether the change affects the client's address.
func (c *Change) ChangesAddr() bool { return c.Kept[0] != c.Kept[1] }

// unaddressed reports whether the client's address is unknown on a side that
// serves the flow.
func (c *Change) unaddressed() bool {
	return c.After == sim.Accepted && (c.Kept[1] == "" || c.Before == sim.Accepted && c.Kept[0] == "")
}

// String describes the change: "served → dropped", "+10.244.2.11:8080, 33 % of
// connections move".
func (c *Change) String() string {
	var parts []string
	if c.Before != c.After {
		parts = append(parts, c.Before.String()+" → "+c.After.String())
	}
	if text := backendsText(c.Added, c.Removed); text != "" {
		parts = append(parts, text)
	}
	if c.Before == c.After && c.Moved > 0 {
		parts = append(parts, percent(c.Moved)+" of connections move")
	}
	switch {
	case !c.ChangesAddr():
	case c.Before != c.After:
		parts = append(parts, "client address "+c.Kept[1])
	default:
		parts = append(parts, "client address "+cmp.Or(c.Kept[0], unknown)+" → "+cmp.Or(c.Kept[1], unknown))
	}
	if c.Affinity[0] != c.Affinity[1] && (c.Before == c.After || c.Affinity[1] != noAffinity) {
		parts = append(parts, "affinity "+AffinityText(c.Affinity[0])+" → "+AffinityText(c.Affinity[1]))
	}
	if len(c.Targets) > 0 {
		parts = append(parts, "to "+strings.Join(c.Targets, ", ")+" now")
	}
	if c.Waits != "" {
		parts = append(parts, c.Waits)
	}
	if c.Exact != [2]string{} {
		parts = append(parts, c.Exact[0]+" → "+c.Exact[1])
	}
	return strings.Join(parts, "; ")
}

// AffinityText describes a duration of session affinity.
func AffinityText(d time.Duration) string {
	switch d {
	case noAffinity:
		return "none"
	case sim.Forever:
		return "ClientIP"
	}
	return d.String()
}

// shownBackends is the maximum number of backends on a line.
const shownBackends = 6

func backendsText(added, removed []netip.AddrPort) string {
	var words []string
	for _, list := range [...]struct {
		sign string
		of   []netip.AddrPort
	}{{"+", added}, {"-", removed}} {
		for i, b := range list.of {
			if i == shownBackends {
				words = append(words, fmt.Sprintf("%s%d more", list.sign, len(list.of)-i))
				break
			}
			words = append(words, list.sign+b.String())
		}
	}
	return strings.Join(words, " ")
}

func percent(share float64) string {
	switch p := share * 100; {
	case p < 1:
		return "under 1 %"
	default:
		return fmt.Sprintf("%.0f %%", p)
	}
}
