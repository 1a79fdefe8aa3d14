package explain

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// reading is the interpretation of a text: the words to look for in rules, and the possible
// subjects, most specific first. The first subject that exists is used.
type reading struct {
	words    string // padded with single spaces; "" for an address, a port or a Service
	subjects []subject
	// flow is the backend that replies in a line of conntrack.
	flow netip.AddrPort
}

// read interprets a text: an address, a port, a Service, or a line of rules, sets, virtual servers
// or flows of proxyc or kube-proxy. It looks up chains with hashed names in programs.
func read(what string, programs ir.Programs) (reading, error) {
	what = strings.TrimSpace(what)
	if s, ok, err := single(what); ok || err != nil {
		return reading{subjects: []subject{s}}, err
	}
	r := reading{words: " " + strings.Join(strings.Fields(counters.ReplaceAllString(what, "")), " ") + " "}
	r.words = strings.Replace(r.words, " -A ", " ", 1)
	for _, find := range [...]func(string, *reading){
		readConntrack, readVirtualServer, readMatch, chainsOf(programs), readElement, readTargets, readComment,
	} {
		find(what, &r)
	}
	return r, nil
}

// counters matches the counters at the start of a line of iptables-save -c.
var counters = regexp.MustCompile(`^\[\d+:\d+\] `)

func (r *reading) add(s subject) { r.subjects = append(r.subjects, s) }

// addAddress adds an address, a port or both, if the text is one.
func (r *reading) addAddress(text, protocol string, hasProtocol bool) {
	if s, err := address(text, protocol, hasProtocol); err == nil && text != "" {
		r.add(s)
	}
}

// addrLike matches texts that can only be an address, a port or both.
var addrLike = regexp.MustCompile(`^(\[.*|[0-9.]+|[0-9]*:[0-9]*|[0-9.]+:.*|[0-9a-fA-F:]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)$`)

// single parses an address, a port or a Service. ok is false for all other texts. A malformed
// address is an error.
func single(what string) (s subject, ok bool, err error) {
	if what == "" {
		return s, false, fmt.Errorf("must be a chain, an element, a line of rules, IP:PORT[/PROTO], IP, PORT or NAMESPACE/NAME[:PORT], got %q", what)
	}
	text, protoText, hasProto := strings.Cut(strings.TrimPrefix(what, "node:"), "/") // notation of node ports in the IR
	if strings.ContainsAny(what, " \t\n") {
		return s, false, nil
	}
	_, isProtocol := ir.ParseProtocol(protoText)
	if addrLike.MatchString(text) && (!hasProto || strings.ContainsAny(text, ".:") || isProtocol) {
		s, err = address(text, protoText, hasProto)
		return s, err == nil, err
	}
	if hasProto && !strings.Contains(what, ".") && strings.Count(what, "/") == 1 {
		service, port, _ := strings.Cut(protoText, ":")
		if text == "" || service == "" {
			return s, false, fmt.Errorf("must be NAMESPACE/NAME[:PORT], got %q", what)
		}
		return subject{service: ir.Name{Namespace: text, Name: service}, name: port}, true, nil
	}
	return s, false, nil
}

// address parses IP, IP:PORT or PORT, with an optional protocol.
func address(text, protoText string, hasProto bool) (s subject, err error) {
	whole := text
	if hasProto {
		whole += "/" + protoText
		if s.proto, _ = ir.ParseProtocol(protoText); s.proto == 0 {
			return s, fmt.Errorf("%s: protocol must be tcp, udp or sctp, got %q", whole, protoText)
		}
	}
	host, port := text, ""
	if i := strings.LastIndexByte(text, ':'); i >= 0 && (strings.Count(text, ":") == 1 || strings.HasPrefix(text, "[") && i > strings.LastIndexByte(text, ']')) {
		host, port = text[:i], text[i+1:]
	} else if !strings.ContainsAny(text, ".:[") {
		host, port = "", text
	}
	if host != text {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return s, fmt.Errorf("%s: port must be 1-65535, got %q", whole, port)
		}
		s.port = uint16(n)
	}
	if host != "" {
		bare := host
		if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
			bare = host[1 : len(host)-1]
		}
		if s.addr, err = netip.ParseAddr(bare); err != nil {
			return s, fmt.Errorf("%s: must be an IP address, got %q", whole, host)
		}
		s.addr = s.addr.Unmap()
	}
	if hasProto && s.port == 0 {
		return s, fmt.Errorf("%s: a protocol requires a port, as in %s/%s", whole, net.JoinHostPort(strings.Trim(host, "[]"), "PORT"), protoText)
	}
	return s, nil
}

// readConntrack parses a line of conntrack -L or /proc/net/nf_conntrack: the frontend that the
// client connected to, and the backend that replies.
func readConntrack(line string, r *reading) {
	e, err := conntrack.Parse(line)
	if err != nil || !e.To.IsValid() {
		return
	}
	r.flow = e.From
	r.add(subject{addr: e.To.Addr(), port: e.To.Port(), proto: e.Protocol})
	r.add(subject{port: e.To.Port(), proto: e.Protocol})
	r.add(subject{addr: e.From.Addr(), port: e.From.Port(), proto: e.Protocol})
}

// readVirtualServer parses a line of ipvsadm -Ln or -Sn.
func readVirtualServer(line string, r *reading) {
	m := virtualServer.FindStringSubmatch(line)
	real := realServer.FindStringSubmatch(line)
	if m != nil {
		protocol := strings.ToLower(m[1] + m[3])
		if long, ok := map[string]string{"-t": "tcp", "-u": "udp"}[protocol]; ok {
			protocol = long
		}
		protocol = strings.TrimSuffix(strings.TrimPrefix(protocol, "--"), "-service")
		if s, err := address(m[2]+m[4], protocol, true); err == nil {
			if real != nil {
				s.backend, _ = netip.ParseAddrPort(real[1])
			}
			r.add(s)
		}
		return
	}
	if real != nil {
		r.addAddress(real[1], "", false)
	}
}

var (
	virtualServer = regexp.MustCompile(`^(?:-[AaEe] )?(-[tu]|--(?:tcp|udp|sctp)-service) (\S+)|^(TCP|UDP|SCTP)\s+(\S+:\d+)`)
	realServer    = regexp.MustCompile(`(?:^->\s+| -r |--real-server )(\S+:\d+)`)
)

// readMatch parses the destination that a rule of iptables or nft matches.
func readMatch(line string, r *reading) {
	line = negated.ReplaceAllString(line, "")
	addr := destination.FindStringSubmatch(line)
	port := dport.FindStringSubmatch(line)
	protocol := protocolMatch.FindStringSubmatch(line)
	text, proto := "", ""
	if port != nil {
		text = port[1]
	}
	if protocol != nil && port != nil {
		proto = protocol[1] + protocol[2]
	}
	if addr != nil {
		if text = addr[1] + addr[2]; port != nil {
			text = net.JoinHostPort(text, port[1])
		}
	}
	r.addAddress(text, proto, proto != "")
}

var (
	destination   = regexp.MustCompile(`(?:^| )-d ([0-9a-f.:]+)(?:/32|/128)?(?: |$)|ip6? daddr ([0-9a-f.:]+)(?: |$)`)
	dport         = regexp.MustCompile(`(?:--dport|dport) (\d+)(?:[^\d:-]|$)`)
	negated       = regexp.MustCompile(`(?:^| )! -d \S+|ip6? daddr != \S+`)
	protocolMatch = regexp.MustCompile(`-p (tcp|udp|sctp)|\b(tcp|udp|sctp) dport`)
)

// chainsOf returns a function that parses the names of kube-proxy's chains for a service port or an
// endpoint: KUBE-SVC- and similar names, which end in a hash, and those of kube-proxy's nftables
// mode, which contain the name.
func chainsOf(programs ir.Programs) func(string, *reading) {
	return func(line string, r *reading) {
		for _, m := range nftChain.FindAllStringSubmatch(line, -1) {
			s := subject{service: ir.Name{Namespace: m[2], Name: m[3]}, name: m[5], chain: m[0]}
			s.proto, _ = ir.ParseProtocol(m[4])
			if m[6] != "" {
				s.backend = chainEndpoint(m[6], m[7])
			}
			r.add(s)
		}
		chains := hashedChain.FindAllString(line, -1)
		for i := len(chains) - 1; i >= 0; i-- { // the target, which comes last, says more than the rule's own chain
			r.subjects = append(r.subjects, ofChain(chains[i], programs))
		}
	}
}

// chainEndpoint parses the endpoint in a chain's name. kube-proxy writes dots for the colons of
// IPv6.
func chainEndpoint(host, port string) netip.AddrPort {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		addr, _ = netip.ParseAddr(strings.ReplaceAll(host, ".", ":"))
	}
	n, _ := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(addr, uint16(n))
}

var (
	nftChain    = regexp.MustCompile(`\b(service|local|external|firewall|endpoint|affinity)-[A-Z2-7]{8}-([a-z0-9-]+)/([a-z0-9-]+)/(tcp|udp|sctp)/([a-z0-9-]*)(?:__([0-9a-f.:]+)/(\d+))?`)
	hashedChain = regexp.MustCompile(`KUBE-(?:SVC|SVL|EXT|XLB|FW|SEP)-[A-Z2-7]{16}`)
)

// ofChain returns the subject of a chain. If the chain belongs to no Service, the subject has only
// the name of the chain.
func ofChain(chain string, programs ir.Programs) subject {
	for _, p := range programs.All() {
		for i := range p.Services {
			for _, f := range p.Services[i].Frontends {
				if iptables.ChainIsOf(chain, f.Port, netip.AddrPort{}) {
					return subject{service: f.Port.Service, name: f.Port.Port, proto: f.Port.Protocol, chain: chain}
				}
			}
			for _, pool := range p.Services[i].Pools {
				for _, b := range pool.Backends {
					if iptables.ChainIsOf(chain, pool.Port, b.AddrPort) {
						return subject{service: pool.Port.Service, name: pool.Port.Port, proto: pool.Port.Protocol, backend: b.AddrPort, chain: chain}
					}
				}
			}
		}
	}
	return subject{chain: chain}
}

// readElement parses the key of an element of an nft set or map, or of an ipset.
func readElement(line string, r *reading) {
	for _, key := range [...]*regexp.Regexp{element, ipsetEntry} {
		if m := key.FindStringSubmatch(line); m != nil {
			r.addAddress(net.JoinHostPort(m[1], m[3]), m[2], true)
			return
		}
	}
	if m := nodePortElement.FindStringSubmatch(line); m != nil {
		r.addAddress(m[2], m[1], true)
	}
}

var (
	element         = regexp.MustCompile(`\b([0-9a-f.:]+) \. (tcp|udp|sctp) \. (\d+)`)
	nodePortElement = regexp.MustCompile(`\b(tcp|udp|sctp) \. (\d+)`)
	ipsetEntry      = regexp.MustCompile(`\b([0-9a-f.:]+),(tcp|udp|sctp):(\d+)`)
)

// readTargets parses the target of a rule.
func readTargets(line string, r *reading) {
	if m := targets.FindStringSubmatch(line); m != nil {
		r.addAddress(m[1], "", false)
	}
}

var targets = regexp.MustCompile(`(?:--to-destination |dnat (?:ip6? )?to )(\S+:\d+)`)

// readComment parses the service port at the start of a comment.
func readComment(line string, r *reading) {
	if m := comment.FindStringSubmatch(line); m != nil {
		r.add(subject{service: ir.Name{Namespace: m[1], Name: m[2]}, name: m[3]})
	}
}

var comment = regexp.MustCompile(`comment "?(?:masquerade traffic for |route LOCAL traffic for |pod traffic for )?([a-z0-9-]+)/([a-z0-9-]+)(?::([a-z0-9-]+))?\b`)
