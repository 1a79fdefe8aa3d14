package proof

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
)

// tokenStride is how many changes of dumps TestTokens leaves out for one that it
// makes; where it begins changes from run to run.
const tokenStride = 13

// Every change of one word or line of a dump makes packets meet another fate, cannot
// be proved, or is known to be no harm for the demo's packets.
func TestTokens(t *testing.T) {
	start := int(applytest.Seed(t) % tokenStride)
	word := regexp.MustCompile(`"[^"]*"|[^\s"]+`)
	for _, mode := range []ir.Mode{ir.ModeNFTables, ir.ModeIPTables} {
		programs := reviewtest.Demo(t, mode)
		text := dumps(t, programs)[0]
		programs.IPv6 = nil
		text, _, _ = strings.Cut(text, "table ip6 ")
		n, made, alike, block := 0, 0, 0, ""
		try := func(how, line, changed string) {
			if n++; n%tokenStride != start {
				return
			}
			made++
			meaning, dumped := &Side{name: "ir"}, &Side{name: "dump"}
			meaning.meaning(programs)
			files := dumpFiles{Side: dumped, programs: programs}
			if files.add("dump", changed) != nil || files.end() != nil {
				return
			}
			p, err := Compare(t.Context(), meaning, dumped, programs)
			if err != nil || p.Verdict != Equal {
				return
			}
			alike++
			line = strings.TrimSpace(line)
			if what := how + " @ " + block + line; !harmless.MatchString(what) {
				t.Errorf("equal with %s", what)
			}
		}
		at := 0
		for line := range strings.Lines(text) {
			begin := at
			at += len(line)
			before, behind := text[:begin], text[at:]
			if words := strings.Fields(line); len(words) == 3 && words[2] == "{" {
				block = words[1] + ": "
			}
			if strings.TrimSpace(line) == "" || line[0] == '#' {
				continue
			}
			try("line lost", line, before+behind)
			try("line twice", line, before+line+line+behind)
			for _, w := range word.FindAllStringIndex(line, -1) {
				token := line[w[0]:w[1]]
				if token[0] == '"' {
					continue
				}
				put := func(by string) {
					try(token+" -> "+by, line, before+line[:w[0]]+by+line[w[1]:]+behind)
				}
				core := strings.TrimRight(token, ",;")
				tail := token[len(core):]
				put("")
				put(token + " " + token)
				if i, err := strconv.Atoi(core); err == nil {
					put(strconv.Itoa(i+1) + tail)
				} else if p, err := netip.ParsePrefix(core); err == nil {
					put(netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked().String() + tail)
				} else if a, err := netip.ParseAddr(core); err == nil {
					put(a.Next().String() + tail)
				} else {
					put(core + "x" + tail)
					for _, other := range swaps[core] {
						put(other + tail)
					}
				}
			}
		}
		t.Logf("%s: %d changes of %d, %d alike", mode, made, n, alike)
	}
}

// swaps are words in place of others that mean something, too.
var swaps = map[string][]string{
	"tcp": {"udp", "sctp"}, "udp": {"tcp"}, "sctp": {"tcp"}, "goto": {"jump"}, "jump": {"goto"}, "drop": {"accept", "reject", "return"}, "reject": {"drop"},
	"saddr": {"daddr"}, "daddr": {"saddr"}, "accept": {"drop"}, "prerouting": {"input", "output", "forward", "postrouting"}, "input": {"forward", "prerouting"}, "output": {"prerouting", "input"}, "forward": {"input"}, "postrouting": {"input"},
	"filter": {"nat", "raw", "mangle"}, "nat": {"filter"}, "dstnat": {"srcnat", "raw"}, "srcnat": {"filter"}, "new": {"established", "invalid"}, "dnat": {"snat"}, "!=": {"=="}, "original": {"reply"}, "random": {"inc"},
	"ACCEPT": {"DROP", "RETURN"}, "DROP": {"ACCEPT", "RETURN"}, "REJECT": {"DROP"}, "NEW": {"ESTABLISHED", "INVALID"}, "-s": {"-d"}, "-d": {"-s"}, "!": {""}, "--rcheck": {"--set", "--update"}, "--set": {"--rcheck"}, "-A": {"-I"}, "--dport": {"--sport"}, "--ctstate": {"! --ctstate"}, "--mark": {"! --mark"}, "-j": {"-g"},
}

// harmless are changes after which the demo's packets meet what they met. A change
// that the model does not see has no place here, but for those that docs/review.md names.
var harmless = regexp.MustCompile(strings.Join([]string{
	`^line twice @ `,                          // what was done is done again
	`^jump -> goto @ |^goto -> jump @ `,       // nothing follows
	`@ :KUBE-`,                                // a declaration, but for its name
	`@ (filter|nat)-[a-z-]+: chain `,          // names of base chains
	`: typeof ip daddr|: typeof meta l4proto`, // another field of the same type
	`^ip ->  @ lb-`,                           // dnat to
	`^meta ->  @ .* meta mark set meta mark`,  // meta mark set mark
	`^(dynamic,timeout|interval) -> `,         // flags twice
	`(size 131070|^(131070) -> 131071)`,       // room enough
	`fully-random -> `,                        // source ports: docs/review.md
	// The one Service with source ranges admits neither pods nor the node.
	`@ inside-ips: `, `@ service-ips-by-source: (.*@inside-ips|accept)$`, `@ outside-backends: .*203\.0\.113\.31`, `@ backends: 203\.0\.113\.31`,
	// No node port lacks endpoints, no backend is on the node, and affinity is of a TCP port that is no node port.
	`@no-endpoint-nodeports reject$`, `@ affinity-input: `, `@ affinity-nodeports: `, `(udp|sctp) dport .* @affinity-ips$`,
	// No pool is shared, no node port is rejected at localhost, and each Service with policy Local has endpoints.
	`@ (affinity-(nodeport-)?pools|localhost-nodeports): `, `@affinity-(nodeport-)?pools$`, `@ service-ips-by-source: .*@no-endpoint-services reject$`,
	// Two rules reject packets to a Service without endpoints.
	`@ no-endpoint-services: .*10\.96\.0\.80`, `^reject ->  @ services: .*@no-endpoint-services`,
	// No rule uses these sets: no pool has more than two backends, none of a node port one, and none is of Maglev's.
	`@ count-(2|4|8|16|32)-ips: `, `@ count-\d+-nodeports: `, `@ maglev-`,
	// Only packets from pods and the node reach this chain, and the source ranges do not admit them.
	`@ masq-nonlocal-lb-2: `, `@ lb-outside-nodeport-1: }$`, // whose end begins it
	// An earlier lookup matches every packet.
	`^accept; -> drop; @ nat-(prerouting|output): `, `@ service-nodeports-by-source: accept$`,
	// 192.0.2.11 is no address of the loopback interface.
	`192\.0\.2\.11 ip daddr != 127\.0\.0\.0/8`,
	// Priorities between others, or of chains that translate, which the kernel calls in one place.
	`(filter;|10;|-110;|-100;|dstnat;|srcnat;) -> \S+ @ (filter|nat)-`,
	`^filter -> nat @ filter-(prerouting|output)`,
	// Packets that are not the first of a connection, that come in for loopback, or that only rules of others
	// would refuse: docs/review.md.
	`KUBE-FORWARD`, `KUBE-FIREWALL`, `health check`, `-d 127\.0\.0\.0/8|127\.0\.0\.0/8 -> `,
	// The load balancer's address is none of the node's, and no external address lacks endpoints.
	`-I INPUT .*KUBE-PROXY-FIREWALL$`, `-I (INPUT|FORWARD) .*KUBE-EXTERNAL-SERVICES$`,
	`"other traffic to shop/edge`, // a rule that is a comment
	`^--rsource ->  @`,            // is what recent does by itself
	`--random-fully ->  @`,        // source ports
	// The neighbour of a backend is no backend, and only pods and the node come here.
	`/32 -> \S+/31 @ -A KUBE-HAIRPIN`, `/16 -> \S+ @ masq-nonlocal-lb-nodeport-2: `,
	// The chain of a Service is reached by its address alone.
	`^10\.96\.0\.\d+/32 -> \S+/31 @ -A KUBE-SVC-.*KUBE-MARK-MASQ$`,
}, "|"))
