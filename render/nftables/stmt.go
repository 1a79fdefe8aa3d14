package nftables

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// Stmt is one statement of a rule: one of the types in this file, or a rule of
// another tool.
type Stmt interface {
	// AppendText appends the statement in nft's syntax.
	AppendText(b []byte, f ir.Family) []byte
}

// KeyOf returns the set that a statement looks up, and the key; "" if none.
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

// Field is a property of a packet that keys contain.
type Field uint8

const (
	SrcAddr     Field = iota // ip saddr
	DstAddr                  // ip daddr
	L4Proto                  // meta l4proto
	DstPort                  // th dport
	OrigSrcAddr              // ct original ip saddr
	OrigDstAddr              // ct original ip daddr
	OrigDstPort              // ct original proto-dst; nft requires a preceding MatchProto
	Random                   // numgen random mod Term.Mod
	ClientHash               // jhash ip saddr . th sport mod Term.Mod seed ir.MaglevSeed
)

// Type returns the type of the field's value.
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
	// MatchNet matches if the address in Field is in Prefix, or if it is not.
	MatchNet struct {
		Field  Field
		Prefix netip.Prefix
		Not    bool
	}
	// MatchInterface matches packets received on Name, or on an interface with
	// that prefix, or all others. Packets from the node have no input interface.
	MatchInterface struct {
		Name   string
		Prefix bool
		Not    bool
	}
	// MatchLocal matches if the address in Field belongs to the node, or if it does not.
	MatchLocal struct {
		Field Field
		Not   bool
	}
	// MatchProto matches packets of the protocol.
	MatchProto struct{ Protocol ir.Protocol }
	// MatchNew matches connections without a reply so far; with a State, those in it, if the rules are for its packets.
	MatchNew struct{ State string }
	// MatchDNAT matches connections whose destination was translated.
	MatchDNAT struct{}
	// MatchMark matches if a bit of Mask is set in the packet's mark, or, with
	// Clear, if none is.
	MatchMark struct {
		Mask  uint32
		Clear bool
	}
	// MatchSet matches if the set contains the key, or if it does not.
	MatchSet struct {
		Key []Term
		Set string
		Not bool
	}
	// SetMark sets the bits of Mask in the packet's mark.
	SetMark struct{ Mask uint32 }
	// ClearMark clears the bits of Mask.
	ClearMark struct{ Mask uint32 }
	// FlipMark inverts the bits of Mask. kube-proxy clears a matched mark in this
	// way.
	FlipMark struct{ Mask uint32 }
	// LookupVerdict applies the map's verdict for the key, which may be Continue.
	// The rule ends if the map does not contain the key.
	LookupVerdict struct {
		Key []Term
		Map string
	}
	// LookupDNAT translates the destination to the map's data for the key and
	// ends the evaluation. The rule ends if the map does not contain the key.
	LookupDNAT struct {
		Key  []Term
		Map  string
		Port uint16 // for maps of addresses only; 0 if the map contains the port
	}
	// Update adds Key with Data to the map. If an element has Key already, Update
	// only renews its time.
	Update struct {
		Map       string
		Key, Data Term
	}
	// Masquerade changes the source of the connection to the node's address.
	Masquerade struct{}
	// Counter counts packets and bytes without affecting them.
	Counter struct{}
	// Unsupported is a statement from a kernel or a listing that none of the
	// types above can represent. Our rules never contain it, and nft cannot parse
	// its text.
	Unsupported struct{ What string }
)
