package xtables

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// inert are targets that change neither the outcome nor the destination of a
// packet.
var inert = []string{"LOG", "NFLOG", "ULOG", "TRACE", "AUDIT", "TCPMSS", "CHECKSUM", "DSCP", "TOS", "ECN", "CLASSIFY", "SET", "TEE",
	"SECMARK", "CONNSECMARK", "TCPOPTSTRIP", "IDLETIMER", "LED", "RATEEST"}

// unknown are targets that affect the packet in an unsupported way, unless a supported option determines it.
var unknown = []string{"NFQUEUE", "QUEUE", "TPROXY", "NETMAP", "CLUSTERIP", "SYNPROXY", "DNPT", "SNPT", "CONNMARK", "CT",
	"TTL", "HL", "HMARK", "MARK", "DNAT", "REDIRECT"}

// verdicts are the targets that decide without options. Others are names of chains.
var verdicts = map[string]nftables.Verdict{
	"ACCEPT": {Kind: nftables.Accept}, "DROP": {Kind: nftables.Drop}, "REJECT": {Kind: nftables.Reject}, "RETURN": {Kind: nftables.Return},
}

// forwards parses the target of a rule.
func (p *parser) forwards(option, name string) {
	p.target = name
	if slices.Contains(inert, name) {
		return
	}
	p.r.inert = false
	verdict, fixed := verdicts[name]
	switch {
	case fixed:
	case name == "MASQUERADE", name == "SNAT":
		p.accepts((*nfteval.Passing).Masquerade)
		return
	case name == "NOTRACK":
		p.accepts((*nfteval.Passing).Untrack)
		return
	case slices.Contains(unknown, name):
		p.r.odd = "target " + name + " is not understood"
		return
	case option == "-g":
		verdict = nftables.Verdict{Kind: nftables.Goto, Chain: p.prefix + name}
	default:
		verdict = nftables.Verdict{Kind: nftables.Jump, Chain: p.prefix + name}
	}
	p.r.does = func(*nfteval.Passing) nftables.Verdict { return verdict }
}

// accepts sets what the target does before it accepts the packet.
func (p *parser) accepts(does func(*nfteval.Passing)) {
	p.r.odd = ""
	p.r.does = func(q *nfteval.Passing) nftables.Verdict {
		does(q)
		return nftables.Verdict{Kind: nftables.Accept}
	}
}

// targetOptions are the supported options, by target.
var targetOptions = map[string]func(p *parser, word string){
	"MARK --set-xmark": setMark, "MARK --set-mark": setMark, "MARK --or-mark": setMark, "MARK --and-mark": setMark, "MARK --xor-mark": setMark,
	"CONNMARK --set-xmark": func(p *parser, _ string) {
		if m, ok := iptparse.Mark(p.next(), math.MaxUint32); ok {
			p.marks(func(mark, connection uint32) (uint32, uint32) { return mark, connection&^m.Mask ^ m.Value })
		}
	},
	"CONNMARK --save-mark": func(p *parser, _ string) {
		if from, to, ok := p.masks(); ok {
			p.marks(func(mark, connection uint32) (uint32, uint32) { return mark, connection&^to ^ mark&from })
		}
	},
	"CONNMARK --restore-mark": func(p *parser, _ string) {
		if to, from, ok := p.masks(); ok {
			p.marks(func(mark, connection uint32) (uint32, uint32) { return mark&^to ^ connection&from, connection })
		}
	},
	"CT --notrack": func(p *parser, _ string) { p.accepts((*nfteval.Passing).Untrack) },
	"CT --helper":  inertOption, "CT --timeout": inertOption, "CT --ctevents": inertOption, "CT --expevents": inertOption,
	"DNAT --to-destination": translate,
	"REDIRECT --to-ports":   redirect,
	"MASQUERADE --to-ports": argument, "SNAT --to-source": argument, "REJECT --reject-with": argument,
	"MASQUERADE --random-fully": without, "MASQUERADE --random": without, "SNAT --random-fully": without, "SNAT --random": without,
	"SNAT --persistent": without, "DNAT --persistent": without, "DNAT --random": without, "REDIRECT --random": without,
}

// argument and without ignore an option with an argument, and one without.
func argument(p *parser, _ string) { p.next() }
func without(*parser, string)      {}

func inertOption(p *parser, _ string) {
	p.next()
	p.r.odd, p.r.inert = "", true
}

// targetOption parses an option of the target.
func (p *parser) targetOption(word string) {
	if parse := targetOptions[p.target+" "+word]; parse != nil {
		parse(p, word)
	} else if strings.HasPrefix(word, "-") && !p.r.inert && p.r.odd == "" {
		p.r.odd = "target " + p.target + " with " + word + " is not understood"
	}
}

func setMark(p *parser, word string) {
	m, ok := iptparse.Mark(p.next(), math.MaxUint32)
	switch word {
	case "--set-mark":
		m.Mask |= m.Value
	case "--or-mark":
		m.Mask = m.Value
	case "--and-mark":
		m = iptables.Mark{Mask: ^m.Value}
	case "--xor-mark":
		m.Mask = 0
	}
	if ok {
		p.marks(func(mark, connection uint32) (uint32, uint32) { return mark&^m.Mask ^ m.Value, connection })
	}
}

func translate(p *parser, _ string) {
	text := p.next()
	to, err := netip.ParseAddrPort(text)
	if err != nil {
		var a netip.Addr
		a, err = netip.ParseAddr(text)
		to = netip.AddrPortFrom(a, 0)
	}
	if err == nil {
		p.accepts(func(q *nfteval.Passing) { q.Redirect(to) })
	}
}

func redirect(p *parser, _ string) {
	n, err := strconv.ParseUint(p.next(), 10, 16)
	if err != nil {
		return
	}
	p.accepts(func(q *nfteval.Passing) {
		if !q.First().FromNode() {
			q.Doubt("to which address of the node the packet is redirected is not known")
		}
		q.Redirect(netip.AddrPortFrom(ir.FamilyOf(q.Dst()).Localhost(), uint16(n)))
	})
}

// masks parses the --nfmask and --ctmask of a CONNMARK target that saves or
// restores the mark.
func (p *parser) masks() (packet, connection uint32, ok bool) {
	packet, connection = ^uint32(0), ^uint32(0)
	for len(p.words) > 1 {
		option := p.next()
		m, ok := iptparse.Mark(p.next(), math.MaxUint32)
		switch {
		case !ok:
			return 0, 0, false
		case option == "--nfmask":
			packet = m.Value
		case option == "--ctmask":
			connection = m.Value
		case option == "--mask":
			packet, connection = m.Value, m.Value
		default:
			return 0, 0, false
		}
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
