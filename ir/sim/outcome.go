package sim

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Fate is the result for a packet.
type Fate uint8

const (
	NotOurs  Fate = iota // no rule of the Program applies
	Accepted             // translated to one of the Destinations
	Rejected             // rejected with ICMP port unreachable
	Dropped              // discarded
)

// String returns not proxied, served, rejected or dropped.
func (f Fate) String() string { return [...]string{"not proxied", "served", "rejected", "dropped"}[f] }

// Destination is one possible backend of an accepted packet.
type Destination struct {
	AddrPort netip.AddrPort
	SNAT     bool // the backend receives the node's address instead of the client's
}

// Outcome is the set of all possible results for one packet. If Accepted, it
// contains every destination that load balancing may select, sorted by address
// and port without duplicates. Affinity reports whether a client is always
// forwarded to its first destination. Two Outcomes are equal if Fate,
// Destinations, Affinity, Timeout, Shares, Choice and Else are.
type Outcome struct {
	Fate         Fate
	Destinations []Destination
	Affinity     bool
	// Timeout is the duration of Affinity without a new connection. 0 equals any
	// value, because evaluators of hns do not determine it.
	Timeout time.Duration
	// Shares are the probabilities of the Destinations, in millionths; nil if
	// they are equal, as in a Program.
	Shares []uint32
	// Choice is a fingerprint of the mapping from the client's address and port
	// to the Destinations, as returned by ir.MaglevChoice; "" for random
	// selection.
	Choice string
	// Fallback are further possible Fates, for example if some backends are refused.
	Fallback []FateShare
}

// FateShare is the probability of a Fate, in millionths.
type FateShare struct {
	Fate  Fate
	Share uint32
}

// Forever is the Timeout of entries that do not expire.
const Forever = time.Duration(math.MaxInt64)

// normalize sorts the destinations and removes duplicates.
func (o *Outcome) normalize() {
	slices.SortFunc(o.Destinations, Destination.compare)
	o.Destinations = slices.Compact(o.Destinations)
}

// NewOutcome returns a normalized Accepted Outcome whose destinations have equal
// shares.
func NewOutcome(affinity bool, destinations []Destination) Outcome {
	o := Outcome{Fate: Accepted, Destinations: destinations, Affinity: affinity}
	o.normalize()
	return o
}

// Chance is one possible random result: a fate, the destination if Accepted, and
// its weight.
type Chance struct {
	Fate Fate
	Destination
	Weight float64
	Choice string // as in an Outcome; all possible destinations then have equal Weight
}

// Shared returns the normalized Outcome of all chances. It adds the weights of
// equal fates and destinations. The first fate in the order Dropped, Rejected,
// Accepted, NotOurs is the Outcome's Fate; others are in Else.
func Shared(chances []Chance) Outcome {
	slices.SortStableFunc(chances, func(a, b Chance) int { return a.Destination.compare(b.Destination) })
	var o Outcome
	var fates [Dropped + 1]float64
	var weights []float64
	total := 0.0
	last := -1
	for i, c := range chances {
		fates[c.Fate] += c.Weight
		total += c.Weight
		switch {
		case c.Fate != Accepted:
		case last >= 0 && c.Destination == chances[last].Destination:
			weights[len(weights)-1] += c.Weight
		default:
			o.Destinations, weights, last = append(o.Destinations, c.Destination), append(weights, c.Weight), i
		}
	}
	if total == 0 {
		return o
	}
	millionth := func(w, of float64) uint32 { return uint32(w/of*1e6 + 0.5) }
	known := false
	for _, f := range [...]Fate{Dropped, Rejected, Accepted, NotOurs} {
		switch {
		case fates[f] == 0:
		case !known:
			o.Fate, known = f, true
		default:
			o.Fallback = append(o.Fallback, FateShare{f, millionth(fates[f], total)})
		}
	}
	alike := true
	shares := make([]uint32, len(weights))
	for i, w := range weights {
		shares[i] = millionth(w, fates[Accepted])
		alike = alike && near(shares[i], shares[0])
	}
	if !alike {
		o.Shares = shares
	}
	if len(o.Destinations)+len(o.Fallback) > 1 {
		o.Choice = choiceOf(chances)
	}
	return o
}

// choiceOf returns the choices of all chances.
func choiceOf(chances []Chance) string {
	var all []string
	for _, c := range chances {
		if c.Choice != "" && !slices.Contains(all, c.Choice) {
			all = append(all, c.Choice)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "+")
}

// Chances returns chances from which Shared yields the outcome, with a total
// weight of 1.
func (o Outcome) Chances() (all []Chance) {
	add := func(f Fate, weight float64) {
		if f != Accepted {
			all = append(all, Chance{Fate: f, Weight: weight, Choice: o.Choice})
			return
		}
		for i, d := range o.Destinations {
			share := 1 / float64(len(o.Destinations))
			if o.Shares != nil {
				share = float64(o.Shares[i]) / 1e6
			}
			all = append(all, Chance{Fate: f, Destination: d, Weight: weight * share, Choice: o.Choice})
		}
	}
	first := 1.0
	for _, e := range o.Fallback {
		add(e.Fate, float64(e.Share)/1e6)
		first -= float64(e.Share) / 1e6
	}
	add(o.Fate, first)
	return all
}

// near compares shares with the precision of the tools' output.
func near(a, b uint32) bool { return max(a, b)-min(a, b) <= 3 }

// Equal reports whether two outcomes are equal.
func (o Outcome) Equal(other Outcome) bool {
	return o.Fate == other.Fate && o.Affinity == other.Affinity && o.Choice == other.Choice && slices.Equal(o.Destinations, other.Destinations) &&
		(o.Timeout == other.Timeout || o.Timeout == 0 || other.Timeout == 0) &&
		slices.EqualFunc(o.Shares, other.Shares, near) &&
		slices.EqualFunc(o.Fallback, other.Fallback, func(a, b FateShare) bool { return a.Fate == b.Fate && near(a.Share, b.Share) })
}

// String returns the outcome on one line: "10.244.1.10:8080
// 10.244.2.10:8080+snat". Several fates have probabilities: "rejected (50%) or
// 10.244.1.10:8080 (50%)".
func (o Outcome) String() string {
	if len(o.Fallback) == 0 {
		return o.text(o.Fate)
	}
	percent := func(share uint32) string { return fmt.Sprintf(" (%.4g%%)", float64(share)/1e4) }
	rest, others := uint32(1e6), ""
	for _, e := range o.Fallback {
		rest -= min(rest, e.Share)
		others += " or " + o.text(e.Fate) + percent(e.Share)
	}
	return o.text(o.Fate) + percent(rest) + others
}

// text returns a fate on one line, with the destinations if accepted.
func (o Outcome) text(f Fate) string {
	if f != Accepted {
		return f.String()
	}
	var b strings.Builder
	for i, d := range o.Destinations {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(d.AddrPort.String())
		if d.SNAT {
			b.WriteString("+snat")
		}
		if o.Shares != nil {
			fmt.Fprintf(&b, "(%.4g%%)", float64(o.Shares[i])/1e4)
		}
	}
	if o.Affinity {
		b.WriteString(" (affinity)")
	}
	if o.Choice != "" {
		b.WriteString(" (" + o.Choice + ")")
	}
	return b.String()
}

func (d Destination) compare(o Destination) int {
	return cmp.Or(d.AddrPort.Compare(o.AddrPort), ir.Int(d.SNAT)-ir.Int(o.SNAT))
}
