package xtables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// inert are targets that change neither the outcome nor the destination of a
// packet.
var inert = []string{"LOG", "NFLOG", "ULOG", "TRACE", "AUDIT", "TCPMSS", "CHECKSUM", "DSCP", "TOS", "TTL", "HL", "ECN", "CLASSIFY", "SET", "TEE",
	"SECMARK", "CONNSECMARK", "TCPOPTSTRIP", "IDLETIMER", "LED", "RATEEST", "HMARK"}

// unknown are targets that affect the packet in an unsupported way.
var unknown = []string{"NFQUEUE", "QUEUE", "TPROXY", "NETMAP", "CLUSTERIP", "SYNPROXY", "DNPT", "SNPT", "CONNMARK", "CT"}

// forwards parses the target of a rule.
func (p *parser) forwards(option, name string) {
	p.target = name
	if slices.Contains(inert, name) {
		return
	}
	p.r.inert = false
	verdict := func(v nftables.Verdict) {
		p.r.does = func(*nfteval.Passing) nftables.Verdict { return v }
	}
	switch name {
	case "ACCEPT":
		verdict(nftables.Verdict{Kind: nftables.Accept})
	case "DROP":
		verdict(nftables.Verdict{Kind: nftables.Drop})
	case "REJECT":
		verdict(nftables.Verdict{Kind: nftables.Reject})
	case "RETURN":
		verdict(nftables.Verdict{Kind: nftables.Return})
	case "MASQUERADE", "SNAT":
		p.r.does = func(q *nfteval.Passing) nftables.Verdict {
			q.Masquerade()
			return nftables.Verdict{Kind: nftables.Accept}
		}
	case "NOTRACK":
		p.untrack()
	case "MARK", "DNAT", "REDIRECT": // an option determines the action
		p.r.odd = "target " + name + " is not understood"
	default:
		if slices.Contains(unknown, name) {
			p.r.odd = "target " + name + " is not understood"
			return
		}
		kind := nftables.Jump
		if option == "-g" {
			kind = nftables.Goto
		}
		verdict(nftables.Verdict{Kind: kind, Chain: p.prefix + name})
	}
}

func (p *parser) untrack() {
	p.r.odd = ""
	p.r.does = func(q *nfteval.Passing) nftables.Verdict {
		q.Untrack()
		return nftables.Verdict{Kind: nftables.Accept}
	}
}

// targetOption parses an option of the target.
func (p *parser) targetOption(word string) {
	value := func() string { return p.next() }
	r := p.r
	switch p.target + " " + word {
	case "MARK --set-xmark", "MARK --set-mark", "MARK --or-mark", "MARK --and-mark", "MARK --xor-mark":
		v, m, ok := markOf(value())
		switch word {
		case "--set-mark":
			m |= v
		case "--or-mark":
			m = v
		case "--and-mark":
			v, m = 0, ^v
		case "--xor-mark":
			m = 0
		}
		if ok {
			p.marks(func(mark, connection uint32) (uint32, uint32) { return mark&^m ^ v, connection })
		}
	case "CONNMARK --set-xmark":
		if v, m, ok := markOf(value()); ok {
			p.marks(func(mark, connection uint32) (uint32, uint32) { return mark, connection&^m ^ v })
		}
	case "CONNMARK --save-mark":
		if from, to, ok := p.masks(); ok {
			p.marks(func(mark, connection uint32) (uint32, uint32) { return mark, connection&^to ^ mark&from })
		}
	case "CONNMARK --restore-mark":
		if to, from, ok := p.masks(); ok {
			p.marks(func(mark, connection uint32) (uint32, uint32) { return mark&^to ^ connection&from, connection })
		}
	case "CT --notrack":
		p.untrack()
	case "CT --helper", "CT --timeout", "CT --ctevents", "CT --expevents":
		value()
		r.odd, r.inert = "", true
	case "DNAT --to-destination":
		text := value()
		to, err := netip.ParseAddrPort(text)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(text); err == nil {
				to = netip.AddrPortFrom(a, 0)
			}
		}
		if err == nil {
			p.redirect(func(*nfteval.Passing) (netip.AddrPort, bool) { return to, true })
		}
	case "REDIRECT --to-ports":
		if n, err := strconv.ParseUint(value(), 10, 16); err == nil {
			p.redirect(func(q *nfteval.Passing) (netip.AddrPort, bool) {
				loopback := netip.MustParseAddr(map[bool]string{false: "127.0.0.1", true: "::1"}[q.Dst().Is6()])
				return netip.AddrPortFrom(loopback, uint16(n)), q.First().FromNode()
			})
		}
	case "MASQUERADE --to-ports", "SNAT --to-source", "REJECT --reject-with", "MASQUERADE --random-fully", "MASQUERADE --random",
		"SNAT --random-fully", "SNAT --random", "SNAT --persistent", "DNAT --persistent", "DNAT --random", "REDIRECT --random":
		if strings.HasPrefix(word, "--to") || word == "--reject-with" {
			value()
		}
	default:
		if strings.HasPrefix(word, "-") && !r.inert && r.odd == "" {
			r.odd = "target " + p.target + " with " + word + " is not understood"
		}
	}
	p.not = false
}

// masks parses the --nfmask and --ctmask of a CONNMARK target that saves or
// restores the mark.
func (p *parser) masks() (packet, connection uint32, ok bool) {
	packet, connection = ^uint32(0), ^uint32(0)
	for p.at+1 < len(p.words) {
		mask, _, ok := markOf(p.words[p.at+1])
		switch {
		case !ok:
			return 0, 0, false
		case p.words[p.at] == "--nfmask":
			packet = mask
		case p.words[p.at] == "--ctmask":
			connection = mask
		case p.words[p.at] == "--mask":
			packet, connection = mask, mask
		default:
			return 0, 0, false
		}
		p.at += 2
	}
	return packet, connection, true
}

func (p *parser) marks(change func(packet, connection uint32) (uint32, uint32)) {
	p.r.odd = ""
	p.r.does = func(q *nfteval.Passing) nftables.Verdict {
		q.SetMark(change(q.Mark()))
		return nftables.Verdict{}
	}
}

func (p *parser) redirect(where func(*nfteval.Passing) (to netip.AddrPort, known bool)) {
	p.r.odd = ""
	p.r.does = func(q *nfteval.Passing) nftables.Verdict {
		to, known := where(q)
		if !known {
			q.Doubt("to which address of the node the packet is redirected is not known")
		}
		q.Redirect(to)
		return nftables.Verdict{Kind: nftables.Accept}
	}
}
