package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Way is one path of a packet through rules.
type Way struct {
	Chance
	// Memory is the client entries that rules add on the path.
	Memory []Remembered
	// Missed are the memories that were consulted and did not contain the client,
	// Knew those that did.
	Missed, Hit []Memory
}

// Remembered is a client in a memory of rules, such as a dynamic set.
type Remembered struct {
	In string
	To netip.Addr // the destination; invalid if the rules that consult the memory determine it
}

// Memory is a state of rules that remembers clients.
type Memory struct {
	Name    string
	Timeout time.Duration // of an entry; Forever if it does not expire
	Pins    bool          // the memory contains the destination
}

// WithAffinity returns the Outcome of all ways of a packet from an unknown
// client. It determines session affinity from that client's next connection.
// again returns the ways of the packet for a remembered client, and they must
// lead to the first destination. A client that a memory contains, possibly
// because of other connections, must be led to the destination of some way.
// Violations are reported as doubts.
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
		for _, m := range ways[i].Missed {
			if !met[m] {
				ir.SetIn(&met, m, true)
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
			if len(next.Hit) == 0 {
				unknown = true
				continue
			}
			known = true
			m := next.Hit[0]
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
		doubt("some backends have affinity, others have none")
	}
	for _, m := range asked {
		if m.Pins {
			continue
		}
		for _, known := range again([]Remembered{{In: m.Name}}) {
			same := func(c Chance) bool { return c.Fate == known.Fate && c.Destination == known.Destination }
			if len(known.Hit) > 0 && !slices.ContainsFunc(chances, same) {
				doubt(m.Name + ": what becomes of a client that it knows becomes of no other")
			}
		}
	}
	return o
}
