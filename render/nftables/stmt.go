package nftables

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// Stmt is one statement of a rule: one of the types in this file, or a rule of another tool.
type Stmt interface {
	// AppendText appends the statement as nft reads it.
	AppendText(b []byte, f ir.Family) []byte
}

// KeyOf returns the set that a statement looks into, and for what; none: "".
func KeyOf(s Stmt) (set string, key []Term) {
	switch s := s.(type) {
	case MatchSet:
		return s.Set, s.Key
	case LookupVerdict:
		return s.Map, s.Key
	case LookupDNAT:
		return s.Map, s.Key
	}
	return "", nil
}

// Field is something of a packet that keys are made of.
type Field uint8

const (
	SrcAddr     Field = iota // ip saddr
	DstAddr                  // ip daddr
	L4Proto                  // meta l4proto
	DstPort                  // th dport
	OrigSrcAddr              // ct original ip saddr
	OrigDstAddr              // ct original ip daddr
	OrigDstPort              // ct original proto-dst; nft wants a MatchProto before it
	Random                   // numgen random mod Term.Mod
	ClientHash               // jhash ip saddr . th sport mod Term.Mod seed ir.MaglevSeed
)

// Type returns the type of what the field holds.
func (f Field) Type() Type {
	switch f {
	case L4Proto:
		return TypeProto
	case DstPort, OrigDstPort:
		return TypePort
	case Random, ClientHash:
		return TypeSlot
	}
	return TypeAddr
}

// Term is one part of a concatenation.
type Term struct {
	Field Field
	Mod   uint32 // of Random and ClientHash: the numbers 0 to Mod-1
}

type (
	// MatchNet holds if the address in Field is in Prefix, or is not.
	MatchNet struct {
		Field  Field
		Prefix netip.Prefix
		Not    bool
	}
	// MatchInterface holds if the packet came in by Name, or by an interface
	// whose name begins so; or did not. Packets of the node have no interface.
	MatchInterface struct {
		Name   string
		Prefix bool
		Not    bool
	}
	// MatchLocal holds if the address in Field is one of the node's.
	MatchLocal struct{ Field Field }
	// MatchProto holds for packets of the protocol.
	MatchProto struct{ Protocol ir.Protocol }
	// MatchNew holds for connections that no answer was seen of.
	MatchNew struct{}
	// MatchDNAT holds for connections whose destination was translated.
	MatchDNAT struct{}
	// MatchMark holds if a bit of Mask is set in the packet's mark, or, with Clear, if none is.
	MatchMark struct {
		Mask  uint32
		Clear bool
	}
	// MatchSet holds if the key is in the set, or is not.
	MatchSet struct {
		Key []Term
		Set string
		Not bool
	}
	// SetMark sets the bits of Mask in the packet's mark.
	SetMark struct{ Mask uint32 }
	// ClearMark clears them.
	ClearMark struct{ Mask uint32 }
	// FlipMark inverts them. kube-proxy clears so what it has matched.
	FlipMark struct{ Mask uint32 }
	// LookupVerdict does what the map says for the key, which may be to go on with the
	// next statement; the rule ends if the map has no such key.
	LookupVerdict struct {
		Key []Term
		Map string
	}
	// LookupDNAT translates the destination to what the map says for the key,
	// and ends the evaluation; the rule ends if the map has no such key.
	LookupDNAT struct {
		Key  []Term
		Map  string
		Port uint16 // for maps of addresses alone; 0 if the map has the port
	}
	// Update adds Key with Data to the map, or renews the time of the element
	// that has Key already, whatever its data.
	Update struct {
		Map       string
		Key, Data Term
	}
	// Masquerade makes the node's address the source of the connection.
	Masquerade struct{}
	// Counter counts packets and bytes, and does nothing to them. No rule of ours has
	// one: it was read from a kernel, or from a listing.
	Counter struct{}
	// Unsupported is what no rule of ours has: something that was read from a
	// kernel and is none of the above. It has no text that nft reads.
	Unsupported struct{ What string }
)
