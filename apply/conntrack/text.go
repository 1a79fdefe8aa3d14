package conntrack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// ReadText passes the entries in the output of conntrack -L, or in /proc/net/nf_conntrack, to each. Those of
// other protocols than TCP, UDP and SCTP have only the protocol. Errors have the line.
func ReadText(r io.Reader, each func(Entry) error) error {
	lines, n := bufio.NewScanner(r), 1
	for ; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "conntrack v") { // the number of entries
			continue
		}
		e, err := Parse(line)
		if err != nil {
			return fmt.Errorf("line %d: %w, got %.80q: save the output of conntrack -L", n, err, line)
		}
		if err := each(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n, err)
	}
	return nil
}

// Parse parses a line: [FAMILY NUMBER] PROTOCOL NUMBER [TIMEOUT] [STATE], both directions, and flags.
func Parse(line string) (e Entry, err error) {
	head, rest, _ := strings.Cut(line, " src=")
	words := strings.Fields(head)
	if len(words) > 2 && strings.HasPrefix(words[0], "ipv") {
		words = words[2:]
	}
	var protocol uint64
	if len(words) > 1 {
		protocol, _ = strconv.ParseUint(words[1], 10, 8)
	}
	switch e.Protocol = ir.Protocol(protocol); e.Protocol {
	case 0:
		return e, errors.New("must begin with a protocol and its number")
	case ir.TCP, ir.UDP, ir.SCTP:
	default:
		return e, nil
	}
	there, back, _ := strings.Cut(rest, " src=")
	var ok, answers bool
	e.Client, e.To, ok = ends(there)
	if e.From, _, answers = ends(back); !ok || !answers || e.From.Addr().Is4() != e.To.Addr().Is4() {
		return e, errors.New("must have src, dst, sport and dport twice, in one family")
	}
	if state := words[len(words)-1]; len(words) > 2 && state[0] > '9' {
		e.State = state
	}
	if strings.Contains(line, "OFFLOAD]") { // also [HW_OFFLOAD]
		e.State = "OFFLOAD"
	}
	e.Unanswered = strings.Contains(line, "[UNREPLIED]")
	_, zone, _ := strings.Cut(line, " zone") // zone=, zone-orig= or zone-reply=
	_, zone, _ = strings.Cut(zone, "=")
	zone, _, _ = strings.Cut(zone, " ")
	n, _ := strconv.ParseUint(zone, 10, 16)
	e.Zone = uint16(n)
	return e, nil
}

// ends parses one direction, after its first key.
func ends(text string) (src, dst netip.AddrPort, ok bool) {
	from, text, _ := strings.Cut(text, " dst=")
	to, text, _ := strings.Cut(text, " sport=")
	sport, text, _ := strings.Cut(text, " dport=")
	dport, _, _ := strings.Cut(text, " ")
	a, err1 := netip.ParseAddr(from)
	b, err2 := netip.ParseAddr(to)
	p, err3 := strconv.ParseUint(sport, 10, 16)
	q, err4 := strconv.ParseUint(dport, 10, 16)
	ok = err1 == nil && err2 == nil && err3 == nil && err4 == nil && a.Is4() == b.Is4()
	return netip.AddrPortFrom(a, uint16(p)), netip.AddrPortFrom(b, uint16(q)), ok
}
