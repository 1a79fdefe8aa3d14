package xtables

import (
	"bufio"
	"io"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// Table is one table with our chains, and with the rules that lead into them.
type Table struct {
	Name   string // "filter", "nat"
	Chains []Chain
}

// Chain is a chain with its rules.
type Chain struct {
	Name string
	// BuiltIn: the chain is the kernel's, and its Rules are put, in order, in
	// front of those of others.
	BuiltIn bool
	Rules   []Rule
}

// Rule is one rule: when every match holds, the target decides.
type Rule struct {
	Matches  []Match
	Target   Target
	Comment  string
	Port     ir.ServicePort // the service port that it serves; zero for fixed rules
	Frontend ir.Match       // the frontend that it serves; zero for fixed rules
	Origin   ir.Origin
}

// Match is one condition of a rule.
type Match interface {
	// Append appends it as a rule has it, with a space in front.
	Append(b []byte) []byte
	// Holds tells whether a packet fulfils it.
	Holds(p *Packet) bool
}

type (
	// Source: the source address is within Prefix, or with Not outside it.
	Source struct {
		Prefix netip.Prefix
		Not    bool
	}
	// Destination: the destination address is within Prefix.
	Destination netip.Prefix
	// Input: the packet came in by an interface ("cni+" stands for all that begin so).
	Input struct {
		Interface string
		Not       bool
	}
	// Protocol: the transport protocol.
	Protocol ir.Protocol
	// Port: the transport protocol and the destination port.
	Port struct {
		Protocol ir.Protocol
		Number   uint16
	}
	// InSet: the ipset holds what Fields lists of the packet ("dst,dst": address and port of the destination).
	InSet struct{ Set, Fields string }
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
	// Balanced: the connection is one that the kernel's ipvs took at this address and port.
	Balanced ir.Match
)

// Target is what happens to a packet that a rule takes.
type Target struct {
	Action Action
	Chain  string         // Jump
	Mark   uint32         // SetMark, ClearMark
	To     netip.AddrPort // DNAT, Redirect (the port alone)
	Random bool           // Masquerade: random source ports, to avoid clashes (iptables 1.6.2)
}

// Action is a kind of target.
type Action uint8

const (
	Jump   Action = iota // walk Chain, and come back if that decides nothing
	Return               // back to the chain that jumped here
	Accept
	Drop
	Reject     // with ICMP port unreachable
	SetMark    // set the bits of Mark
	ClearMark  // clear the bits of Mark, which are known to be set
	Masquerade // take the source address of the way out
	DNAT       // change the destination
	Redirect   // change the destination to this node and a port
)

// To matches a destination address, protocol and port.
func To(m ir.Match) []Match {
	return []Match{Destination(netip.PrefixFrom(m.Addr, m.Addr.BitLen())), Port{m.Protocol, m.Port}}
}

// JumpTo is the target that walks a chain.
func JumpTo(chain string) Target { return Target{Chain: chain} }

// Load is the shell command that loads what Write wrote to a file. It can be
// given again and again: our chains are replaced, and jumps from built-in
// chains that the kernel has already are left out of the text. The list of
// these ends with a line that is in no text, as the grep of busybox prints
// nothing at all when it is empty.
func Load(f ir.Family, file string) string {
	tool := Tool(f)
	return `{ ` + tool + `-save | sed -n 's/^-A \([A-Z]* .*-j KUBE-\)/-I \1/p'; echo '#'; } | grep -vxFf - ` + file + ` | ` + tool + `-restore --noflush`
}

// Write writes tables as iptables-restore --noflush reads them.
func Write(w io.Writer, tables []Table) error {
	b := bufio.NewWriter(w)
	for _, t := range tables {
		_, _ = b.WriteString("*" + t.Name + "\n")
		for _, c := range t.Chains {
			if !c.BuiltIn {
				_, _ = b.WriteString(":" + c.Name + " - [0:0]\n")
			}
		}
		for i := range t.Chains {
			t.Chains[i].write(b)
		}
		_, _ = b.WriteString("COMMIT\n")
	}
	return b.Flush()
}

func (c *Chain) write(b *bufio.Writer) {
	command, rules := "-A ", slices.All(c.Rules)
	if c.BuiltIn {
		command, rules = "-I ", slices.Backward(c.Rules) // each goes in front of the one before
	}
	for _, r := range rules {
		line := append(append(b.AvailableBuffer(), command...), c.Name...)
		_, _ = b.Write(append(r.Append(line), '\n'))
	}
}

// Append appends the rule without its chain: " -p tcp ... -j ACCEPT".
func (r *Rule) Append(b []byte) []byte {
	for _, m := range r.Matches {
		b = m.Append(b)
	}
	if r.Comment != "" {
		b = strconv.AppendQuote(append(b, " -m comment --comment "...), r.Comment)
	}
	return r.Target.append(append(b, " -j "...))
}

func (t Target) append(b []byte) []byte {
	switch t.Action {
	case Jump:
		return append(b, t.Chain...)
	case SetMark:
		return append(append(b, "MARK --or-mark "...), hex(t.Mark)...)
	case ClearMark:
		return append(append(b, "MARK --xor-mark "...), hex(t.Mark)...)
	case DNAT:
		return t.To.AppendTo(append(b, "DNAT --to-destination "...))
	case Redirect:
		return strconv.AppendUint(append(b, "REDIRECT --to-ports "...), uint64(t.To.Port()), 10)
	}
	b = append(b, [...]string{Return: "RETURN", Accept: "ACCEPT", Drop: "DROP", Reject: "REJECT", Masquerade: "MASQUERADE"}[t.Action]...)
	if t.Random {
		b = append(b, " --random-fully"...)
	}
	return b
}

func hex(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) }

func not(b []byte, not bool) []byte {
	if not {
		return append(b, " !"...)
	}
	return b
}

// Append implements Match.
func (m Source) Append(b []byte) []byte { return m.Prefix.AppendTo(append(not(b, m.Not), " -s "...)) }

// Append implements Match.
func (m Destination) Append(b []byte) []byte { return netip.Prefix(m).AppendTo(append(b, " -d "...)) }

// Append implements Match.
func (m Input) Append(b []byte) []byte {
	return append(append(not(b, m.Not), " -i "...), m.Interface...)
}

// Append implements Match.
func (m Protocol) Append(b []byte) []byte {
	return append(append(b, " -p "...), ir.Protocol(m).String()...)
}

// Append implements Match.
func (m Port) Append(b []byte) []byte {
	proto := m.Protocol.String()
	b = append(append(append(append(b, " -p "...), proto...), " -m "...), proto...)
	return strconv.AppendUint(append(b, " --dport "...), uint64(m.Number), 10)
}

// Append implements Match.
func (m InSet) Append(b []byte) []byte {
	b = append(append(b, " -m set --match-set "...), m.Set...)
	return append(append(b, ' '), m.Fields...)
}

// Append implements Match.
func (m AddrType) Append(b []byte) []byte {
	b = not(append(b, " -m addrtype"...), m.Not)
	if m.Source {
		return append(b, " --src-type LOCAL"...)
	}
	return append(b, " --dst-type LOCAL"...)
}

// Append implements Match.
func (NotBridged) Append(b []byte) []byte { return append(b, " -m physdev ! --physdev-is-in"...) }

// Append implements Match.
func (m Marked) Append(b []byte) []byte {
	b = append(not(append(b, " -m mark"...), m.Not), " --mark "...)
	return append(append(append(b, hex(m.Mark)...), '/'), hex(m.Mark)...)
}

// Append implements Match.
func (m State) Append(b []byte) []byte { return append(append(b, " -m conntrack --ctstate "...), m...) }

// Append implements Match.
func (m Balanced) Append(b []byte) []byte {
	b = m.Addr.AppendTo(append(b, " -m ipvs --vaddr "...))
	b = append(append(b, " --vproto "...), m.Protocol.String()...)
	return strconv.AppendUint(append(b, " --vport "...), uint64(m.Port), 10)
}
