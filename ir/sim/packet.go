// Package sim is the meaning of the IR: it says what happens to a packet under
// a Program. Every back end's rules are held against it.
package sim

import (
	"math"
	"net/netip"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Packet is the first packet of a new connection, as it meets the node's rules.
type Packet struct {
	Src      netip.Addr
	Dst      netip.Addr
	Protocol ir.Protocol
	Port     uint16 // destination port
	// SrcPort is the source port; 0 stands for any: then the packet is one of each client
	// that has the source address.
	SrcPort uint16
	// In is the interface the packet came in by; empty when a process of the
	// node sends it (then Src is an address of the node).
	In string
}

// FromNode reports whether the node itself sends the packet.
func (p Packet) FromNode() bool { return p.In == "" }

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
	// Else are other Fates that chance may bring, which no Program has.
	Else []FateShare
}

// FateShare is how often a packet meets a Fate, in parts of a million.
type FateShare struct {
	Fate  Fate
	Share uint32
}

// Forever is a Timeout of a client that is never forgotten.
const Forever = time.Duration(math.MaxInt64)
