package proof

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/ipvs"
)

// dumps returns dumps of the demo's rules in a mode: the output of nft list, or the input of each
// family's iptables, IPv4 first. In mode ipvs, those of ipvsadm and ipset precede them.
func dumps(t testing.TB, programs ir.Programs) (texts []string) {
	t.Helper()
	if programs.IPv4.Node.Mode == ir.ModeNFTables {
		// nft list ruleset, after proxyc apply.
		text, err := os.ReadFile("../../../../testdata/prove/demo.nft")
		if err != nil {
			t.Fatal(err)
		}
		return []string{string(text)}
	}
	outputs := iptables.LowerAll(programs).Outputs()
	if programs.IPv4.Node.Mode == ir.ModeIPVS {
		outputs = ipvs.LowerAll(programs).Outputs()
		outputs = slices.DeleteFunc(outputs, func(o render.Output) bool { return o.Format == "addresses" })
	}
	for _, o := range outputs {
		var out bytes.Buffer
		if err := o.Write(&out); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, out.String())
	}
	return texts
}

// proved compares the meaning of Programs with dumps.
func proved(t testing.TB, programs ir.Programs, texts ...string) *Proof {
	t.Helper()
	p, _, _ := proving(t, programs, texts...)
	return p
}

// proving is proved with both sides.
func proving(t testing.TB, programs ir.Programs, texts ...string) (p *Proof, meaning, dumped *Side) {
	t.Helper()
	meaning, dumped = &Side{name: "ir"}, dump(t, programs, texts...)
	meaning.meaning(programs)
	p, err := Compare(t.Context(), meaning, dumped, programs)
	if err != nil {
		t.Fatal(err)
	}
	return p, meaning, dumped
}

// dump returns the side of a dump with these texts.
func dump(t testing.TB, programs ir.Programs, texts ...string) *Side {
	t.Helper()
	files := dumpFiles{Side: &Side{name: "dump"}, programs: programs}
	for i, text := range texts {
		if err := files.add(fmt.Sprintf("dump%d", i), text); err != nil {
			t.Fatal(err)
		}
	}
	if err := files.end(); err != nil {
		t.Fatal(err)
	}
	return files.Side
}

// change is an edit of a dump.
type change struct{ name, at, by string }

// besides adds a base chain that drops packets to ClusterIPs.
func besides(name, base string) change {
	return change{name, `^\tchain nat-prerouting \{`, "\tchain early {\n\t\t" + base + "\n\t\tct state new ip daddr @cluster-ips drop\n\t}\n$0"}
}

// top begins a chain with a rule.
func top(chain, rule string) (at, by string) {
	return `^(\tchain ` + chain + ` \{\n(?:\t\ttype .*\n)?)`, "$1\t\t" + rule + "\n"
}

// Changes of a dump that look harmless but change the fate of packets, or that the model does not
// understand.
func TestDumpsThatAreNotEqual(t *testing.T) {
	at := func(name, chain, rule string) change {
		at, by := top(chain, rule)
		return change{name, at, by}
	}
	first := func(name, chain, rule string) change {
		return change{name, `^-A ` + chain + ` `, "-A " + chain + " " + rule + "\n$0"}
	}
	inNat := func(name, chain, rule string) change {
		return change{name, `(?s)(\*nat\n.*?)(-A ` + chain + ` )`, "${1}-A " + chain + " " + rule + "\n$2"}
	}
	const affinity = `affinity-\S*/1h0m0s`
	for mode, changes := range map[ir.Mode][]change{
		ir.ModeNFTables: {
			besides("a hook before connection tracking", "type filter hook output priority raw - 10; policy accept;"),
			besides("a hook at connection tracking", "type filter hook output priority -200; policy accept;"),
			besides("a filter before the translation", "type filter hook output priority -110; policy accept;"),
			besides("a filter beside the translation", "type filter hook output priority -100; policy accept;"),
			besides("an unknown priority", "type filter hook forward priority filtre; policy accept;"),
			besides("a policy", "type filter hook forward priority filter; policy drop;"),
			besides("a type of chain", "type route hook output priority filter; policy accept;"),
			at("source and destination", "services", "ip saddr . ip daddr { 1.2.3.4 . 10.96.0.10 } drop"),
			{"source and destination before translation", `^\tchain nat-prerouting \{`, "\tchain early {\n\t\ttype filter hook prerouting priority -150; policy accept;\n\t\tip saddr . ip daddr { 1.2.3.4 . 10.96.0.10 } drop\n\t}\n$0"},
			at("source and range of destinations", "services", "ip saddr . ip daddr { 1.2.3.4 . 10.96.0.0/24 } drop"),
			at("destination and source", "services", "ip daddr . ip saddr { 10.96.0.10 . 1.2.3.4 } drop"),
			at("a hairpin of two", "nat-postrouting", "ip saddr . ip daddr { 10.244.1.20 . 10.244.2.10 } masquerade"),
			at("port and destination", "services", "th dport . ip daddr { 4711 . 10.96.0.10 } drop"),
			at("protocol, port and destination", "services", "meta l4proto . th dport . ip daddr { tcp . 4711 . 10.96.0.10 } drop"),
			at("both sources", "services", "ip saddr . ct original ip saddr { 1.2.3.4 . 1.2.3.4 } drop"),
			at("both ports", "services", "th dport . ct original proto-dst . ip daddr { 4711 . 4711 . 1.2.3.4 } drop"),
			at("three addresses", "services", "ip saddr . ip daddr . ct original ip daddr { 1.2.3.4 . 10.96.0.10 . 10.96.0.10 } drop"),
			at("a set of interfaces", "services", `iifname { "eth1", "eth2" } drop`),
			at("an interface by its beginning, and one by more of it", "services", `iifname "cali*" iifname != "cali0*" drop`),
			at("two states", "services", "ct state new,established drop"),
			at("two properties", "nat-postrouting", "ct status dnat,snat masquerade"),
			at("another property", "services", "ct status snat drop"),
			at("a direction", "services", "ct direction reply drop"),
			at("a mark of others", "services", "meta mark & 0x00008000 != 0x00000000 drop"),
			at("a mark of ours and others", "services", "meta mark & 0x0000c000 != 0x00000000 drop"),
			at("a mark for others", "services", "meta mark set meta mark | 0x00001000"),
			at("a mark inverted", "services", "meta mark set meta mark ^ 0x00004000"),
			at("a reset", "services", "ip daddr @cluster-ips reject with tcp reset"),
			at("a part of packets", "services", "limit rate 1/second drop"),
			at("a part of clients", "services", "numgen random mod 2 vmap { 0 : drop }"),
			at("a verdict of its own", "services", "continue"),
			at("a queue", "services", "queue to 1"),
			at("an unknown chain", "services", "jump nowhere"),
			at("a known chain", "services", "jump service-ips-by-source"),
			at("an accept", "nat-postrouting", "accept"),
			at("a set that is not there", "services", "ip saddr @nothing drop"),
			at("a set for something else", "services", "ip saddr @service-ips drop"),
			at("a circle", "services", "jump services"),
			at("too many ways", "services", "numgen random mod 4294967295 vmap { 4711 : drop }"),
			{"what masquerades by other ports", `(& 0xffffbfff masquerade) fully-random`, `$1 to :1024-2000`},
			{"what masquerades marks", `meta mark set meta mark & 0xffffbfff masquerade`, `masquerade`},
			{"elements that expire", `(10\.96\.0\.10 \. tcp \. 80 comment "shop/web:http") :`, `$1 timeout 8s expires 3s :`},
			{"cluster-ips that expire", `(set cluster-ips \{\n\t\ttype ipv4_addr\n)`, "$1\t\tflags timeout\n"},
			{"a set that rules fill", `(set cluster-ips \{\n\t\ttype ipv4_addr\n)`, "$1\t\tflags dynamic\n"},
			{"a time of a set", `(map service-ips \{\n\t\ttype .*\n)`, "$1\t\ttimeout 1h\n"},
			{"a flag of the table", `^table ip proxyc \{\n`, "$0\tflags dormant\n"},
			{"affinity to another port", `(map @` + affinity + `:808)0`, `${1}1`},
			{"affinity remembers the client", `(\{ ct original ip saddr : ip) daddr`, `$1 saddr`},
			{"affinity remembers what was asked for", `(\{ ct original ip saddr : )ip daddr`, `${1}ct original ip daddr`},
			{"affinity remembers the backend", `\{ ct original ip saddr : ip daddr`, `{ ip daddr : ip daddr`},
			{"affinity forgets soon", `(map ` + affinity + ` \{(?:\n\t\t.*)*\n\t\ttimeout) \S+`, `$1 1s`},
			{"affinity never forgets", `(map ` + affinity + ` \{(?:\n\t\t.*)*\n\t\tflags) dynamic,timeout\n\t\ttimeout \S+\n`, "$1 dynamic\n"},
			{"affinity of one", `(map ` + affinity + ` \{\n\t\ttype .*\n(?:\t\tsize .*\n)?)`, "$1\t\tsize 1\n"},
			{"affinity knows for ever", `(map ` + affinity + ` \{(?:\n\t\t.*)*\n\t\ttimeout \S+\n)`, "$1\t\telements = { 10.244.9.9 : 10.244.1.70 }\n"},
			{"affinity leads elsewhere", `(map ` + affinity + ` \{(?:\n\t\t.*)*\n\t\ttimeout \S+\n)`, "$1\t\telements = { 10.244.9.9 expires 59m : 10.99.99.99 }\n"},
			at("another chain remembers", "lb-1", `update @affinity-7GLYWDWX-shop/cart/cluster/tcp//8080/1h0m0s { ip saddr : ct original ip daddr }`),
			at("a list of clients that rules fill", "services", "ip saddr @clients drop\n\t}\n\tset clients {\n\t\ttype ipv4_addr\n\t\tflags dynamic,timeout\n\t\ttimeout 1m\n\t}\n\tchain rest {"),
		},
		ir.ModeIPTables: {
			first("an ipset", "KUBE-SERVICES", "-m set --match-set evil src -j ACCEPT"),
			first("an ipset of the dropped", "KUBE-FORWARD", "-m set --match-set evil src -j DROP"),
			first("an ipset of the masqueraded", "KUBE-SERVICES", "-m set --match-set evil src -j KUBE-MARK-MASQ"),
			first("an ipset inverted", "KUBE-SERVICES", "-m set ! --match-set evil src -j RETURN"),
			first("what ipvs took", "KUBE-POSTROUTING", "-m ipvs --vaddr 10.96.0.10 --vproto 6 --vport 80 -j ACCEPT"),
			{"two states", `(-[AI] FORWARD) (-m conntrack --ctstate NEW .*KUBE-PROXY-FIREWALL)`, `$1 -m conntrack --ctstate ESTABLISHED $2`},
			{"a state and a property", `(-[AI] FORWARD) (-m conntrack --ctstate NEW .*KUBE-PROXY-FIREWALL)`, `$1 -m conntrack --ctstate DNAT $2`},
			{"another state", `(-[AI] FORWARD -m conntrack --ctstate) NEW( .*KUBE-PROXY-FIREWALL)`, `$1 ESTABLISHED$2`},
			{"a part of packets to a chain", `(-[AI] FORWARD) (.*KUBE-PROXY-FIREWALL)`, `$1 -m statistic --mode random --probability 0.5 $2`},
			first("a part of packets", "KUBE-PROXY-FIREWALL", "-m statistic --mode random --probability 0.5 -j RETURN"),
			first("each second packet", "KUBE-PROXY-FIREWALL", "-m statistic --mode nth --every 2 --packet 0 -j RETURN"),
			first("a limit", "KUBE-PROXY-FIREWALL", "-m limit -j RETURN"),
			first("a match without options", "KUBE-PROXY-FIREWALL", "-m rpfilter -j RETURN"),
			first("a socket", "KUBE-SERVICES", "-m socket -j RETURN"),
			first("the mark of the connection", "KUBE-SERVICES", "-m connmark --mark 0x1 -j RETURN"),
			first("any mark", "KUBE-SERVICES", "-m mark ! --mark 0x0 -j ACCEPT"),
			first("a mark of others", "KUBE-SERVICES", "-m mark --mark 0x8000/0x8000 -j ACCEPT"),
			first("a mark that the kubelet does not set", "KUBE-FIREWALL", "-m mark ! --mark 0x8000/0x8000 -j DROP"),
			first("the mark with which the kubelet drops", "KUBE-SERVICES", "-d 10.96.0.10/32 -j KUBE-MARK-DROP"),
			first("a mark for others", "KUBE-SERVICES", "-j MARK --set-xmark 0x1000/0x1000"),
			first("no mark for others", "KUBE-SERVICES", "-j MARK --set-xmark 0x0/0xffffffff"),
			inNat("a source masqueraded", "KUBE-POSTROUTING", "-s 1.2.3.4/32 -j MASQUERADE"),
			first("an unknown chain", "KUBE-SERVICES", "-j EVIL"),
			first("a chain of others", "KUBE-SERVICES", "-d 10.96.0.10/32 -j KUBE-ROUTER-X"),
			first("a target without options", "KUBE-SERVICES", "-j TARPIT"),
			first("a queue", "KUBE-SERVICES", "-j NFQUEUE --queue-num 1"),
			inNat("untracked", "KUBE-SERVICES", "-j CT --notrack"),
			inNat("a goto", "KUBE-SERVICES", "-g KUBE-NODEPORTS"),
			inNat("a circle", "KUBE-SERVICES", "-j KUBE-SERVICES"),
			inNat("a redirection", "KUBE-SERVICES", "-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8080"),
			first("fragments", "KUBE-SERVICES", "-f -j DROP"),
			first("flags", "KUBE-SERVICES", "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP"),
			first("an output interface", "KUBE-POSTROUTING", "-o eth0 -j RETURN"),
			first("an input interface of what leaves", "KUBE-POSTROUTING", "-i eth0 -j RETURN"),
			first("loopback", "KUBE-PROXY-FIREWALL", "-i lo -j RETURN"),
			first("all interfaces", "KUBE-SERVICES", "-i + -j DROP"),
			first("a reset", "KUBE-SERVICES", "-d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with tcp-reset"),
			first("addresses by type", "KUBE-SERVICES", "-m addrtype --src-type LOCAL --limit-iface-in -j DROP"),
			first("counted", "KUBE-SERVICES", "-d 10.96.0.10/32 -j DROP -c 1 2"),
			{"rules with counters", `(?s)^-A KUBE-PROXY-FIREWALL `, `[12:345] -A KUBE-PROXY-FIREWALL -s 1.2.3.4/32 -d 203.0.113.31/32 -j RETURN` + "\n$0"},
			{"masquerade without the mark's end", `(?m)^-A KUBE-POSTROUTING -j MARK .*\n`, ""},
			{"affinity of another list", `(--rcheck .*--name KUBE-SEP-)(\w+)`, `${1}AAAAAAAAAAAAAAAA`},
			{"affinity remembers in another list", `(--set .*--name KUBE-SEP-)\w+`, `${1}AAAAAAAAAAAAAAAA`},
			{"affinity forgets soon", `--seconds \d+`, `--seconds 1`},
			{"affinity does not ask", `(?m)^-A KUBE-SVC-\w+ .*--rcheck.*\n`, ""},
			{"affinity leads elsewhere", `(?m)^(-A KUBE-SVC-\w+ .*--rcheck.*-j) KUBE-SEP-\w+$`, "$1 KUBE-NODEPORTS"},
			{"affinity is entered by those who ask", `--rcheck`, "--update"},
			{"a chain of others that leads here", `(?s)\*nat\n(.*?)\n-A`, "*nat\n:EVIL - [0:0]\n$1\n-A EVIL -j KUBE-MARK-MASQ\n-A"},
		},
		ir.ModeIPVS: {
			{"a real server less", `^-a -t 10\.96\.0\.10:80 -r 10\.244\.1\.10:8080 .*\n`, ""},
			{"a virtual server less", `^-A -t 10\.96\.0\.80:80 .*\n`, ""},
			{"a virtual server of all ports", `^-A -t 10\.96\.0\.10:80 `, "-A -t 10.96.0.10:0 -s rr -p 60\n$0"},
			{"affinity", `^(-A -t 10\.96\.0\.10:80 -s rr)`, "$1 -p 60"},
			{"affinity that forgets soon", `^(-A .* -p) \d+`, "$1 1"},
			{"an element less", `^add KUBE-CLUSTER-IP 10\.96\.0\.10,tcp:80\n`, ""},
			{"an address less", `^add KUBE-IPVS-IPS 10\.96\.0\.10\n`, ""},
			{"a port more", `^add KUBE-NODE-PORT-LOCAL-TCP .*\n`, "add KUBE-NODE-PORT-LOCAL-TCP 30080\n$0"},
			inNat("a masqueraded source, of no Service's", "KUBE-POSTROUTING", "-s 1.2.3.4/32 -j MASQUERADE"),
			inNat("a translated destination, of no Service's", "KUBE-SERVICES", "-d 1.2.3.4/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 4.3.2.1:80"),
			inNat("a translated VIP", "KUBE-SERVICES", "-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 4.3.2.1:80"),
			inNat("a VIP translated to another", "KUBE-SERVICES", "-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.96.0.20:443"),
			inNat("a redirection", "KUBE-SERVICES", "-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8080"),
			inNat("a part of packets", "KUBE-SERVICES", "-m statistic --mode random --probability 0.5 -j RETURN"),
			inNat("a drop", "KUBE-SERVICES", "-d 10.96.0.10/32 -j DROP"),
			inNat("a set of others", "KUBE-SERVICES", "-m set --match-set evil src -j RETURN"),
			first("a drop before balancing", "KUBE-IPVS-FILTER", "-s 1.2.3.4/32 -j DROP"),
			first("a drop of what passes", "KUBE-PROXY-FIREWALL", "-d 1.2.3.4/32 -j DROP"),
			first("a drop of what the node sends", "KUBE-IPVS-OUT-FILTER", "-d 1.2.3.4/32 -j DROP"),
			{"masquerade without the mark's end", `(?m)^-A KUBE-POSTROUTING -j MARK .*\n`, ""},
			{"a chain of others that leads here", `(?s)\*nat\n(.*?)\n-A`, "*nat\n:EVIL - [0:0]\n$1\n-A EVIL -j KUBE-MARK-MASQ\n-A"},
		},
	} {
		programs := reviewtest.Demo(t, mode)
		texts := dumps(t, programs)
		if p := proved(t, programs, texts...); p.Verdict != Equal {
			t.Fatalf("%s: unchanged: %s: %v %v", mode, p.Verdict, p.Unknown, p.Differences)
		}
		for _, c := range changes {
			t.Run(string(mode)+"/"+c.name, func(t *testing.T) {
				changed := slices.Clone(texts)
				reviewtest.Edit(t, changed, c.at, c.by)
				p := proved(t, programs, changed...)
				if p.Verdict == Equal {
					t.Error("equal")
				}
				t.Log(p.Verdict, p.Unknown)
			})
		}
	}
}

// Changes of a dump that are harmless, and are recognized as harmless.
func TestDumpsThatAreEqual(t *testing.T) {
	for mode, changes := range map[ir.Mode][]change{
		ir.ModeNFTables: {
			{"a jump to a chain that has the last word", `(10\.96\.0\.50 \. tcp \. 80 .*) : goto`, `$1 : jump`},
			{"a priority by its number", `hook postrouting priority srcnat`, `hook postrouting priority 100`},
			{"a table of others", `^table ip6 proxyc`, "table inet filter {\n\tchain c {\n\t\twhatever \"{\" { it } is\n\t}\n}\n$0"},
			{"a rule for what does not come", `(\tchain node-ports \{\n)`, "$1\t\tip daddr . ct original ip daddr { 10.244.1.10 . 9.9.9.9 } drop\n"},
			{"a client whom affinity knows", `(map affinity-\S*/1h0m0s \{(?:\n\t\t.*)*\n\t\ttimeout \S+\n)`, "$1\t\telements = { 10.244.9.9 expires 59m : 10.244.1.70 }\n"},
		},
		ir.ModeIPTables: {
			{"rules with counters", `^-A`, "[12:345] -A"},
			{"a comment", `^-A KUBE-SERVICES `, `-A KUBE-SERVICES -m comment --comment "here we are"` + "\n$0"},
			{"a mark that only the kubelet sets", `^-A KUBE-FIREWALL `, "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n$0"},
			{"a state that does not come", `^-A KUBE-SERVICES `, "-A KUBE-SERVICES -m conntrack --ctstate INVALID -j DROP\n$0"},
		},
	} {
		programs := reviewtest.Demo(t, mode)
		texts := dumps(t, programs)
		for _, c := range changes {
			t.Run(string(mode)+"/"+c.name, func(t *testing.T) {
				texts := slices.Clone(texts)
				reviewtest.Edit(t, texts[:1], c.at, c.by)
				if p := proved(t, programs, texts...); p.Verdict != Equal {
					t.Errorf("%s: %v %v", p.Verdict, p.Unknown, p.Differences)
				}
			})
		}
	}
}

// Rules that packets meet besides the compared ones are named.
func TestDumpsNameOthers(t *testing.T) {
	programs := reviewtest.Demo(t, ir.ModeIPTables)
	texts := dumps(t, programs)
	texts[0] = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j NOTRACK\nCOMMIT\n" + strings.Replace(texts[0], "*filter\n", "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -s 1.2.3.4/32 -j ACCEPT\n", 1)
	want := []string{"foreign rules that may drop: table filter chain FORWARD: policy DROP", "foreign rules that may divert: table raw chain PREROUTING: NOTRACK in chain PREROUTING"}
	if p := proved(t, programs, texts...); !slices.Equal(p.NotCompared, want) {
		t.Errorf("named: %q, want %q", p.NotCompared, want)
	}
}
