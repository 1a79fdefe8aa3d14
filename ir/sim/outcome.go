package sim

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Fate is what can happen to a packet.
type Fate uint8

const (
	NotOurs  Fate = iota // no rule of the Program touches it
	Accepted             // translated to one of the Backends
	Rejected             // refused with ICMP port unreachable
	Dropped              // discarded
)

// String returns not ours, accepted, rejected or dropped.
func (f Fate) String() string { return [...]string{"not ours", "accepted", "rejected", "dropped"}[f] }

// Destination is one possible backend of an accepted packet.
type Destination struct {
	AddrPort netip.AddrPort
	SNAT     bool // the backend sees an address of the node instead of the client's
}

// Outcome is everything that can happen to one packet: with Accepted, every
// destination that load balancing may pick, sorted by address and port
// without duplicates. Affinity reports whether a client sticks to the one that
// it met first. Two Outcomes are equal when Fate, Destinations, Affinity, Timeout,
// Shares, Choice and Else are.
type Outcome struct {
	Fate         Fate
	Destinations []Destination
	Affinity     bool
	// Timeout is how long a client with Affinity sticks without a new connection. 0
	// equals all: no evaluator of hns tells it.
	Timeout time.Duration
	// Shares are how often each of the Destinations is picked, in parts of a
	// million; nil: all alike, as a Program has it.
	Shares []uint32
	// Choice names how the client's address and port choose among several Destinations, and
	// with it how many clients each has, as ir.MaglevChoice does; "": chance chooses.
	Choice string
	// Else are other Fates that chance may bring, as where some backends are refused.
	Else []FateShare
}

// FateShare is how often a packet meets a Fate, in parts of a million.
type FateShare struct {
	Fate  Fate
	Share uint32
}

// Forever is a Timeout of a client that is never forgotten.
const Forever = time.Duration(math.MaxInt64)

// normalize puts destinations in order, each once.
func (o *Outcome) normalize() {
	slices.SortFunc(o.Destinations, Destination.compare)
	o.Destinations = slices.Compact(o.Destinations)
}

// NewOutcome returns an Accepted Outcome in normal form, for evaluators whose
// destinations all have the same share.
func NewOutcome(affinity bool, destinations []Destination) Outcome {
	o := Outcome{Fate: Accepted, Destinations: destinations, Affinity: affinity}
	o.normalize()
	return o
}

// Chance is one way in which chance may fall: a fate, the destination if it is
// Accepted, and how likely it is.
type Chance struct {
	Fate Fate
	Destination
	Weight float64
	Choice string // as in an Outcome; Weight is then the same for all that the client may choose
}

// Shared returns the Outcome in normal form of all ways in which chance may fall.
// Weights of one fate and destination are added up. The first fate in the order of
// Dropped, Rejected, Accepted and NotOurs is the Outcome's, others are Else.
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
			o.Else = append(o.Else, FateShare{f, millionth(fates[f], total)})
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
	if len(o.Destinations)+len(o.Else) > 1 {
		o.Choice = choiceOf(chances)
	}
	return o
}

// choiceOf returns all that chooses among chances.
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

// Chances returns the ways of which Shared made the outcome, of weight 1 together.
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
	for _, e := range o.Else {
		add(e.Fate, float64(e.Share)/1e6)
		first -= float64(e.Share) / 1e6
	}
	add(o.Fate, first)
	return all
}

// near compares shares as far as the tools write them.
func near(a, b uint32) bool { return max(a, b)-min(a, b) <= 3 }

// Equal reports whether two outcomes are the same.
func (o Outcome) Equal(other Outcome) bool {
	return o.Fate == other.Fate && o.Affinity == other.Affinity && o.Choice == other.Choice && slices.Equal(o.Destinations, other.Destinations) &&
		(o.Timeout == other.Timeout || o.Timeout == 0 || other.Timeout == 0) &&
		slices.EqualFunc(o.Shares, other.Shares, near) &&
		slices.EqualFunc(o.Else, other.Else, func(a, b FateShare) bool { return a.Fate == b.Fate && near(a.Share, b.Share) })
}

// String returns the outcome in one line: "10.244.1.10:8080 10.244.2.10:8080+snat". Of several fates
// each has how often it is met: "rejected (50%) or 10.244.1.10:8080 (50%)".
func (o Outcome) String() string {
	if len(o.Else) == 0 {
		return o.text(o.Fate)
	}
	percent := func(share uint32) string { return fmt.Sprintf(" (%.4g%%)", float64(share)/1e4) }
	rest, others := uint32(1e6), ""
	for _, e := range o.Else {
		rest -= min(rest, e.Share)
		others += " or " + o.text(e.Fate) + percent(e.Share)
	}
	return o.text(o.Fate) + percent(rest) + others
}

// text returns a fate in one line: where packets go, if they do.
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
	if c := d.AddrPort.Compare(o.AddrPort); c != 0 {
		return c
	}
	switch {
	case d.SNAT == o.SNAT:
		return 0
	case o.SNAT:
		return -1
	}
	return 1
}
