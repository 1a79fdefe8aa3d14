package ipvs

import (
	"net/netip"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// Table is one iptables table.
type Table struct {
	Name   string
	Chains []Chain // ours, then the rules that built-in chains get
}

// Chain is a chain with its rules.
type Chain struct {
	Name    string
	BuiltIn bool // the kernel's: its Rules are put in front of what stands there
	Rules   []Rule
}

// Rule is one rule: when every match holds, the target decides.
type Rule struct {
	Matches  []Match
	Target   Target
	Comment  string
	Port     ir.ServicePort // zero for fixed rules
	Frontend ir.Match
	Origin   ir.Origin
}

// Target is what follows -j: a chain's name or one of these, as iptables writes it.
type Target string

const (
	Accept     Target = "ACCEPT"
	Drop       Target = "DROP"
	Return     Target = "RETURN"
	RejectPort Target = "REJECT"
	Masquerade Target = "MASQUERADE"
	// MasqueradeRandom picks source ports at random, which avoids clashes
	// (iptables 1.6.2).
	MasqueradeRandom Target = "MASQUERADE --random-fully"
)

// SetMark is the target that sets the bits of mark.
func SetMark(mark uint32) Target { return Target("MARK --or-mark " + hex(mark)) }

// ClearMark is the target that clears the bits of mark, which are known to be set.
func ClearMark(mark uint32) Target { return Target("MARK --xor-mark " + hex(mark)) }

func hex(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) }

// Match is one condition of a rule.
type Match interface {
	// append writes it as iptables-restore reads it, with a space in front.
	append(b []byte, f ir.Family) []byte
	// holds tells whether a packet on its way through the hooks fulfils it.
	holds(w *walk) bool
}

type (
	// Source: the source address is within Prefix, or with Not outside it.
	Source struct {
		Prefix netip.Prefix
		Not    bool
	}
	// Input: the packet came in by an interface ("cni+" for all that begin so).
	Input struct {
		Interface string
		Not       bool
	}
	// Protocol: the transport protocol.
	Protocol ir.Protocol
	// InSet: the set holds the fields that Fields lists ("dst,dst": address and port of the destination).
	InSet struct {
		Set    Set
		Fields string
	}
	// AddrType: the destination, or with Source the source, is an address of this node.
	AddrType struct{ Source, Not bool }
	// NotBridged: the packet did not come in by a port of a bridge.
	NotBridged struct{}
	// Marked: the mark's bits are set.
	Marked struct {
		Mark uint32
		Not  bool
	}
	// State: the connection is in one of the states ("NEW").
	State string
	// Balanced: the connection is one that the kernel balances for this virtual server.
	Balanced ir.Match
)

func not(b []byte, not bool) []byte {
	if not {
		return append(b, " !"...)
	}
	return b
}

func (m Source) append(b []byte, _ ir.Family) []byte {
	return m.Prefix.AppendTo(append(not(b, m.Not), " -s "...))
}

func (m Input) append(b []byte, _ ir.Family) []byte {
	return append(append(not(b, m.Not), " -i "...), m.Interface...)
}

func (m Protocol) append(b []byte, _ ir.Family) []byte {
	return append(append(b, " -p "...), ir.Protocol(m).String()...)
}

func (m InSet) append(b []byte, f ir.Family) []byte {
	b = append(b, " -m set --match-set "...)
	b = append(b, m.Set.Name(f)...)
	b = append(b, ' ')
	return append(b, m.Fields...)
}

func (m AddrType) append(b []byte, _ ir.Family) []byte {
	b = not(append(b, " -m addrtype"...), m.Not)
	if m.Source {
		return append(b, " --src-type LOCAL"...)
	}
	return append(b, " --dst-type LOCAL"...)
}

func (NotBridged) append(b []byte, _ ir.Family) []byte {
	return append(b, " -m physdev ! --physdev-is-in"...)
}

func (m Marked) append(b []byte, _ ir.Family) []byte {
	b = not(append(b, " -m mark"...), m.Not)
	b = append(b, " --mark "...)
	b = append(b, hex(m.Mark)...)
	return append(append(b, '/'), hex(m.Mark)...)
}

func (m State) append(b []byte, _ ir.Family) []byte {
	return append(append(b, " -m conntrack --ctstate "...), m...)
}

func (m Balanced) append(b []byte, _ ir.Family) []byte {
	b = m.Addr.AppendTo(append(b, " -m ipvs --vaddr "...))
	b = append(append(b, " --vproto "...), m.Protocol.String()...)
	return strconv.AppendUint(append(b, " --vport "...), uint64(m.Port), 10)
}
