package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Way is one way of a packet through rules, to its end.
type Way struct {
	Chance
	// Memory is what rules remember of the client on the way.
	Memory []Remembered
	// Asked are the memories that were asked for the client and did not know it,
	// Knew those that did.
	Asked, Knew []Memory
}

// Remembered is a client in a memory of rules, such as a set that they fill.
type Remembered struct {
	In string
	To netip.Addr // where it leads; invalid where the rules that ask for it say that
}

// Memory is something of rules that remembers clients.
type Memory struct {
	Name    string
	Timeout time.Duration // after which it forgets one; Forever: it does not
	Leads   bool          // it says where to
}

// WithAffinity returns the Outcome of all ways of a packet whose client nothing
// knows. Affinity is what becomes of that client's next connection: again returns the
// ways of the packet with a client who is remembered, and they must lead to where
// the first one went. Whoever is known to a memory, from connections to others, too,
// must be led to where some way leads. What is otherwise is a doubt.
func WithAffinity(ways []Way, again func([]Remembered) []Way, doubt func(string)) Outcome {
	chances := make([]Chance, len(ways))
	accepted := 0
	var asked []Memory
	var met map[Memory]bool
	for i := range ways {
		chances[i] = ways[i].Chance
		if ways[i].Fate == Accepted {
			accepted++
		}
		for _, m := range ways[i].Asked {
			if !met[m] {
				if met == nil {
					met = map[Memory]bool{}
				}
				met[m] = true
				asked = append(asked, m)
			}
		}
	}
	o := Shared(chances)
	sticky := 0
	for i := range ways {
		first := &ways[i]
		if first.Fate != Accepted || len(first.Memory) == 0 {
			continue
		}
		known, unknown := false, false
		for _, next := range again(first.Memory) {
			if len(next.Knew) == 0 {
				unknown = true
				continue
			}
			known = true
			m := next.Knew[0]
			if next.Fate != Accepted || next.Destination != first.Destination {
				doubt(m.Name + ": leads a client that it knows elsewhere than before")
			}
			if o.Timeout != 0 && o.Timeout != m.Timeout {
				doubt(fmt.Sprintf("%s: forgets after %s, others after %s", m.Name, m.Timeout, o.Timeout))
			}
			o.Timeout = m.Timeout
		}
		if known {
			sticky++
			if unknown {
				doubt(first.Memory[0].In + ": is asked as chance has it")
			}
		}
	}
	o.Affinity = sticky > 0
	if o.Affinity && sticky < accepted {
		doubt("clients of some backends are remembered, of others not")
	}
	for _, m := range asked {
		if m.Leads {
			continue
		}
		for _, known := range again([]Remembered{{In: m.Name}}) {
			same := func(c Chance) bool { return c.Fate == known.Fate && c.Destination == known.Destination }
			if len(known.Knew) > 0 && !slices.ContainsFunc(chances, same) {
				doubt(m.Name + ": what becomes of a client that it knows becomes of no other")
			}
		}
	}
	return o
}
