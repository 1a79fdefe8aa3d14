package iptables

import (
	"bufio"
	"io"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// Write writes the Ruleset as input of iptables-restore --noflush, or of
// ip6tables-restore. The input flushes and fills our chains, and prepends the
// jumps to the built-in chains.
func (r *Ruleset) Write(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<16)
	for _, t := range r.Tables() {
		t.write(b, r.Family)
	}
	return b.Flush()
}

// write writes a table. Flush returns the first error of b.
func (t *Table) write(b *bufio.Writer, f ir.Family) {
	rule := func(option, chain string, r *Rule) {
		line := append(append(append(b.AvailableBuffer(), option...), chain...), ' ')
		_, _ = b.Write(append(r.Append(line, f), '\n'))
	}
	_, _ = b.WriteString("*" + t.Name + "\n")
	for i := range t.Chains {
		_, _ = b.Write(append(append(append(b.AvailableBuffer(), ':'), t.Chains[i].Name...), " - [0:0]\n"...))
	}
	for i := range t.Chains {
		for j := range t.Chains[i].Rules {
			rule("-A ", t.Chains[i].Name, &t.Chains[i].Rules[j])
		}
	}
	// -I prepends a rule, so the last jump of a chain is written first.
	for i := len(t.Jumps) - 1; i >= 0; i-- {
		rule("-I ", t.Jumps[i].Chain, &t.Jumps[i].Rule)
	}
	_, _ = b.WriteString("COMMIT\n")
}

// Append appends the rule in the tools' syntax, without -A CHAIN. The order of
// matches is that of iptables-save, so that a jump from a built-in chain has the
// same text there.
func (r *Rule) Append(b []byte, f ir.Family) []byte {
	if r.Raw != "" {
		return append(b, r.Raw...)
	}
	start := len(b)
	b = r.appendHeader(b)
	b = r.appendMatches(b, f)
	b = r.appendTarget(b)
	if len(b) > start {
		b = b[:len(b)-1] // every part ends with a space
	}
	return b
}

func (r *Rule) not(b []byte, m Match) []byte {
	if r.Not&m != 0 {
		return append(b, "! "...)
	}
	return b
}

func (r *Rule) appendHeader(b []byte) []byte {
	if r.Src.IsValid() {
		b = append(r.Src.AppendTo(append(r.not(b, Src), "-s "...)), ' ')
	}
	if r.Dst.IsValid() {
		b = append(r.Dst.AppendTo(append(r.not(b, Dst), "-d "...)), ' ')
	}
	if r.In != "" {
		b = append(append(append(r.not(b, In), "-i "...), r.In...), ' ')
	}
	if r.Protocol != 0 {
		b = append(append(append(b, "-p "...), r.Protocol.String()...), ' ')
	}
	return b
}

func (r *Rule) appendMatches(b []byte, f ir.Family) []byte {
	if !r.CommentLast {
		b = r.appendComment(r.appendStates(b))
	}
	if r.Ports != (PortRange{}) {
		b = append(append(append(b, "-m "...), r.Protocol.String()...), " --dport "...)
		b = strconv.AppendUint(b, uint64(r.Ports.First), 10)
		if r.Ports.Last != r.Ports.First {
			b = strconv.AppendUint(append(b, ':'), uint64(r.Ports.Last), 10)
		}
		b = append(b, ' ')
	}
	if r.CommentLast {
		return r.appendComment(r.appendRest(r.appendStates(b), f))
	}
	return r.appendRest(b, f)
}

func (r *Rule) appendStates(b []byte) []byte {
	if r.States == 0 {
		return b
	}
	b = r.not(append(b, "-m conntrack "...), States)
	return append(r.States.appendTo(append(b, "--ctstate "...)), ' ')
}

func (r *Rule) appendComment(b []byte) []byte {
	if r.Comment == "" {
		return b
	}
	return append(appendQuoted(append(b, "-m comment --comment "...), r.Comment), ' ')
}

func (r *Rule) appendRest(b []byte, f ir.Family) []byte {
	set, isSet := r.Rare.(InSet)
	if isSet {
		b = set.appendTo(b)
	}
	if r.Not&Bridged != 0 {
		b = append(b, "-m physdev ! --physdev-is-in "...)
	}
	if r.SrcLocal || r.DstLocal {
		b = append(b, "-m addrtype "...)
		if r.SrcLocal {
			b = append(r.not(b, SrcType), "--src-type LOCAL "...)
		}
		if r.DstLocal {
			b = append(b, "--dst-type LOCAL "...)
		}
	}
	if r.Rare != nil && !isSet {
		b = r.Rare.appendTo(b)
	}
	if r.Mark.Mask != 0 {
		b = append(r.not(append(b, "-m mark "...), MarkMatch), "--mark "...)
		b = append(appendMark(append(appendMark(b, r.Mark.Value), '/'), r.Mark.Mask), ' ')
	}
	if r.OneIn > 1 {
		b = append(b, "-m statistic --mode random --probability "...)
		b = append(strconv.AppendFloat(b, 1/float64(r.OneIn), 'f', 10, 64), ' ')
	}
	switch r.Recent.Op {
	case RecentCheck:
		b = append(b, "-m recent --rcheck --seconds "...)
		b = strconv.AppendUint(b, uint64(r.Recent.Seconds), 10)
		b = r.appendList(append(b, " --reap"...), f)
	case RecentSet:
		b = r.appendList(append(b, "-m recent --set"...), f)
	}
	return b
}

func (m InSet) appendTo(b []byte) []byte {
	b = append(append(b, "-m set --match-set "...), m.Set...)
	return append(append(append(b, ' '), m.Fields...), ' ')
}

func (m Balanced) appendTo(b []byte) []byte {
	b = m.Addr.AppendTo(append(b, "-m ipvs --vaddr "...))
	b = append(append(b, " --vproto "...), m.Protocol.String()...)
	return append(strconv.AppendUint(append(b, " --vport "...), uint64(m.Port), 10), ' ')
}

func (m Counted) appendTo(b []byte) []byte {
	return append(append(append(b, "-m nfacct --nfacct-name "...), m.Name...), ' ')
}

// appendList appends the options for a list of single source addresses.
func (r *Rule) appendList(b []byte, f ir.Family) []byte {
	b = append(append(b, " --name "...), r.Recent.Name...)
	return append(b, ir.Pick(f, " --mask 255.255.255.255 --rsource ", " --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource ")...)
}

// targetNames are the names of targets other than Jump.
var targetNames = [...]string{Return: "RETURN", Accept: "ACCEPT", Drop: "DROP", Reject: "REJECT", SetMark: "MARK",
	Masquerade: "MASQUERADE", DNAT: "DNAT", Redirect: "REDIRECT"}

// ParseTarget returns the Target for a name in iptables-save, which is Jump for that of a chain.
func ParseTarget(name string) Target {
	if i := slices.Index(targetNames[:], name); i >= 0 && name != "" {
		return Target(i)
	}
	return Jump
}

func (r *Rule) appendTarget(b []byte) []byte {
	name := targetNames[r.Target]
	switch r.Target {
	case Continue:
		return b
	case Jump:
		name = r.Chain
	}
	b = append(append(append(b, "-j "...), name...), ' ')
	switch r.Target {
	case SetMark:
		return append(r.XMark.appendChange(b), ' ')
	case Masquerade:
		if r.RandomFully {
			b = append(b, "--random-fully "...)
		}
	case DNAT:
		return append(r.To.AppendTo(append(b, "--to-destination "...)), ' ')
	case Redirect:
		return append(strconv.AppendUint(append(b, "--to-ports "...), uint64(r.To.Port()), 10), ' ')
	}
	return b
}

// appendChange appends the most specific option for a change of the mark.
func (m Mark) appendChange(b []byte) []byte {
	switch {
	case m.Value == m.Mask:
		return appendMark(append(b, "--or-mark "...), m.Value)
	case m.Mask == 0:
		return appendMark(append(b, "--xor-mark "...), m.Value)
	}
	return appendMark(append(appendMark(append(b, "--set-xmark "...), m.Value), '/'), m.Mask)
}

// appendMark appends a mark with at least six digits, as kube-proxy does (IPT-3).
func appendMark(b []byte, v uint32) []byte {
	b = append(b, "0x"...)
	for shift := 20; shift >= 4 && v>>shift == 0; shift -= 4 {
		b = append(b, '0')
	}
	return strconv.AppendUint(b, uint64(v), 16)
}

// stateNames has the order of states in iptables-save.
var stateNames = [...]struct {
	state State
	name  string
}{{Invalid, "INVALID"}, {New, "NEW"}, {Related, "RELATED"}, {Established, "ESTABLISHED"}, {DNATed, "DNAT"}}

// ParseState returns the state for a name in iptables-save.
func ParseState(name string) (State, bool) {
	for _, n := range stateNames {
		if n.name == name {
			return n.state, true
		}
	}
	return 0, false
}

func (s State) appendTo(b []byte) []byte {
	for _, n := range stateNames {
		if s&n.state != 0 {
			b = append(append(b, n.name...), ',')
		}
	}
	return b[:len(b)-1]
}

// appendQuoted quotes a string for the tools' own parser.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}
