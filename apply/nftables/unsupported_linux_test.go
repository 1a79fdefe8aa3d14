package nftables

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// written is what nft can write into a table, by its man page: existing objects, the command, and
// the operations that name the result. $T is the table.
var written = []struct {
	name, script string
	named        []string // "VERB OBJECT"
}{
	// Rules, and the sets that come with them.
	{"anonymous set", "add rule $T nat-prerouting ip saddr { 10.0.0.0/8, 11.0.0.0/8 } drop", inPrerouting},
	{"anonymous set of ports", "add rule $T nat-prerouting tcp dport { 22, 80-90 } drop", inPrerouting},
	{"anonymous concatenation", "add rule $T nat-prerouting ip saddr . tcp dport { 10.0.0.0/8 . 80-90, 10.1.0.1 . 1 } drop", inPrerouting},
	{"anonymous verdict map", "add rule $T nat-prerouting tcp dport vmap { 22 : drop, 23 : accept, 24-25 : jump services }", inPrerouting},
	{"anonymous map", "add rule $T nat-prerouting dnat to tcp dport map { 8080 : 10.0.0.1, 8081 : 10.0.0.2 }", inPrerouting},
	{"anonymous chain", "add rule $T services jump { counter; drop; }", []string{"change ip proxyc chain services"}},
	{"range", "add rule $T services ip saddr 10.0.0.1-10.0.0.9 drop", inServices},
	{"bitmask", "add rule $T services tcp flags & (syn | ack) == syn drop", inServices},
	{"verdicts", "add rule $T services accept; add rule $T services continue; add rule $T services return", inServices},
	{"queue", "add chain $T filter { type filter hook input priority 0; }; add rule $T filter queue num 1-3 fanout,bypass", inFilter},
	{"log", `add rule $T services log prefix "x" group 2 snaplen 10`, inServices},
	{"log level", `add rule $T services log level debug flags all`, inServices},
	{"counter", "add rule $T services counter packets 5 bytes 7", inServices},
	{"limit", "add rule $T services limit rate over 10 mbytes/second burst 5 kbytes drop", inServices},
	{"quota", "add rule $T services quota over 10 mbytes used 1 mbytes drop", inServices},
	{"connection limit", "add rule $T services ct count over 20 drop", inServices},
	{"last", "add rule $T services last", inServices},
	{"meter", "add chain $T filter { type filter hook input priority 0; }; add rule $T filter tcp dport 22 meter flood { ip saddr timeout 10s limit rate 10/second } accept", inFilter},
	{"reject", "add chain $T filter { type filter hook input priority 0; }; add rule $T filter reject with tcp reset", inFilter},
	{"reject of another kind", "add chain $T filter { type filter hook input priority 0; }; add rule $T filter reject with icmp type admin-prohibited", inFilter},
	{"ct", "add rule $T services ct state established,related ct direction reply ct mark 1 ct expiration 10s drop", inServices},
	{"ct set", "add rule $T services ct mark set meta mark; add rule $T services ct label set 1", inServices},
	{"ct helper match", `add rule $T services ct helper "ftp" drop`, inServices},
	{"notrack", "add chain $T raw { type filter hook prerouting priority raw; }; add rule $T raw notrack", []string{"remove ip proxyc chain raw"}},
	{"meta", `add rule $T services meta iifname "eth*" meta skuid 0 meta length 0-100 meta cpu 1 meta rtclassid 1 drop`, inServices},
	{"meta time", `add rule $T services meta hour "10:00"-"12:00" meta day "Saturday" drop`, inServices},
	{"meta set", "add rule $T services meta priority set 1:2; add rule $T services meta nftrace set 1; add rule $T nat-prerouting meta pkttype set host", inServices},
	{"socket", "add chain $T filter { type filter hook input priority 0; }; add rule $T filter socket transparent 1 socket mark 1 accept", inFilter},
	{"osf", `add chain $T filter { type filter hook input priority 0; }; add rule $T filter osf name "Linux" drop`, inFilter},
	{"fib", "add rule $T nat-prerouting fib saddr . iif oif missing drop; add rule $T nat-prerouting fib daddr . mark type blackhole drop", inPrerouting},
	{"rt", "add chain $T filter { type filter hook output priority 0; }; add rule $T filter rt nexthop 10.0.0.1 rt mtu 1500 rt classid 1 drop", inFilter},
	{"numgen", "add rule $T nat-prerouting dnat to numgen inc mod 2 map { 0 : 10.0.0.1, 1 : 10.0.0.2 }", inPrerouting},
	{"jhash", "add rule $T nat-prerouting dnat to jhash ip saddr . tcp dport mod 2 seed 0xabcd map { 0 : 10.0.0.1, 1 : 10.0.0.2 }", inPrerouting},
	{"symhash", "add rule $T nat-prerouting dnat to symhash mod 2 map { 0 : 10.0.0.1, 1 : 10.0.0.2 }", inPrerouting},
	{"payload set", "add rule $T services ip ttl set 1; add rule $T services tcp dport set 81; add chain $T filter { type filter hook forward priority 0; }; add rule $T filter tcp flags syn tcp option maxseg size set rt mtu", inServices},
	{"options", "add rule $T services ip option lsrr exists drop; add rule $T services tcp option sack-perm exists reset tcp option timestamp", nil},
	{"exthdr", "add rule $T services tcp option maxseg size 500 drop", inServices},
	{"raw payload", "add rule $T services @th,16,16 0x50 @nh,8,8 3 drop", inServices},
	{"nat", "add rule $T nat-prerouting tcp dport 1 dnat to 10.0.0.1-10.0.0.5:80-90 random,persistent", inPrerouting},
	{"nat of a prefix", "add rule $T nat-prerouting dnat ip prefix to ip daddr map { 10.0.0.0/24 : 10.1.0.0/24 }", inPrerouting},
	{"redirect", "add rule $T nat-prerouting tcp dport 1 redirect to :8080", inPrerouting},
	{"masquerade", "add rule $T nat-postrouting meta l4proto tcp masquerade to :1024-2048 persistent", []string{"change ip proxyc chain nat-postrouting"}},
	{"snat", "add rule $T nat-postrouting snat to 10.0.0.1", []string{"change ip proxyc chain nat-postrouting"}},
	{"tproxy", "add rule $T nat-prerouting tcp dport 80 tproxy to :50080 meta mark set 1", inPrerouting},
	{"synproxy", "add chain $T filter { type filter hook input priority 0; }; add rule $T filter tcp dport 8888 synproxy mss 1460 wscale 7 timestamp sack-perm", inFilter},
	{"dup", "add rule $T services dup to 10.0.0.1 device lo", inServices},
	{"dynamic set", "add set $T seen { type ipv4_addr; flags dynamic; timeout 5s; size 10; }; add rule $T services update @seen { ip saddr limit rate 1/second } drop",
		[]string{"change ip proxyc chain services", "remove ip proxyc set seen"}},
	{"a rule with a comment", `add rule $T services ip saddr 1.2.3.4 drop comment "why"`, inServices},

	// Named sets and maps.
	{"set", "add set $T mine { type ipv4_addr; }; add element $T mine { 1.2.3.4 }", goneMine},
	{"interval set", "add set $T mine { type ipv4_addr; flags interval; auto-merge; }; add element $T mine { 10.0.0.0/8, 11.0.0.1-11.0.0.5 }", goneMine},
	{"constant set", "add set $T mine { type inet_service; flags constant; elements = { 22, 80 }; }", goneMine},
	{"set with timeouts", "add set $T mine { type ipv4_addr; flags timeout; timeout 1h; gc-interval 5m; }; add element $T mine { 1.2.3.4 timeout 2h }", goneMine},
	{"set with a size", "add set $T mine { type ipv4_addr . inet_service; size 10; policy memory; }; add element $T mine { 1.2.3.4 . 5 }", goneMine},
	{"set with counters", "add set $T mine { type ipv4_addr; counter; }; add element $T mine { 1.2.3.4 counter packets 1 bytes 2 }", goneMine},
	{"set with limits", "add set $T mine { type ipv4_addr; limit rate 1/second; }; add element $T mine { 1.2.3.4 limit rate 5/second }", goneMine},
	{"concatenated intervals", "add set $T mine { type ipv4_addr . inet_proto . inet_service; flags interval; }; add element $T mine { 10.0.0.0/8 . tcp . 80-90, 10.0.0.1-10.0.0.3 . udp . 1 }", goneMine},
	{"catch-all", "add set $T mine { type ipv4_addr; }; add element $T mine { * }", goneMine},
	{"set of other types", "add set $T mine { type ether_addr . ifname . mark . ct_state; }", goneMine},
	{"set by typeof", "add set $T mine { typeof ip saddr . tcp dport . meta mark; }", goneMine},
	{"verdict map", "add chain $T there; add map $T mine { type ipv4_addr : verdict; }; add element $T mine { 1.2.3.4 : jump there, 1.2.3.5 : accept }",
		[]string{"remove ip proxyc set mine", "remove ip proxyc chain there"}},
	{"interval map", "add map $T mine { type ipv4_addr : ipv4_addr; flags interval; }; add element $T mine { 10.0.0.0/8 : 1.2.3.4 }", goneMine},
	{"map to intervals", "add map $T mine { type ipv4_addr : interval ipv4_addr; flags interval; }; add element $T mine { 10.0.0.0/24 : 10.1.0.0/24 }", goneMine},
	{"map of marks", "add map $T mine { type ipv4_addr : mark; }; add element $T mine { 1.2.3.4 : 5 }", goneMine},

	// Named objects and flowtables.
	{"named counter", "add counter $T mine; add rule $T services counter name mine", []string{"change ip proxyc chain services", "remove ip proxyc counter mine"}},
	{"named quota", "add quota $T mine over 10 mbytes", []string{"remove ip proxyc quota mine"}},
	{"named limit", "add limit $T mine rate 10/second; add rule $T services limit name mine drop", []string{"remove ip proxyc limit mine"}},
	{"object map", "add counter $T one; add map $T mine { type ipv4_addr : counter; }; add element $T mine { 1.2.3.4 : one }; add rule $T services counter name ip saddr map @mine",
		[]string{"remove ip proxyc counter one", "remove ip proxyc set mine"}},
	{"ct helper", `add ct helper $T mine { type "ftp" protocol tcp; }`, []string{"remove ip proxyc ct helper mine"}},
	{"ct timeout", "add ct timeout $T mine { protocol tcp; policy = { established: 100 }; }", []string{"remove ip proxyc ct timeout mine"}},
	{"ct expectation", "add ct expectation $T mine { protocol tcp; dport 80; timeout 1h; size 10; }", []string{"remove ip proxyc ct expectation mine"}},
	{"named synproxy", "add synproxy $T mine { mss 1460; wscale 7; timestamp sack-perm; }", []string{"remove ip proxyc synproxy mine"}},
	{"secmark", `add secmark $T mine { "system_u:object_r:ssh_server_packet_t:s0"; }`, []string{"remove ip proxyc secmark mine"}},
	{"flowtable", "add flowtable $T mine { hook ingress priority 0; devices = { lo }; counter; }; add chain $T flows { type filter hook forward priority 0; }; add rule $T flows flow add @mine",
		[]string{"remove ip proxyc chain flows", "remove ip proxyc flowtable mine"}},

	// Chains.
	{"base chain", "add chain $T mine { type filter hook input priority -5; policy drop; }", []string{"remove ip proxyc chain mine"}},
	{"route chain", "add chain $T mine { type route hook output priority -5; }", []string{"remove ip proxyc chain mine"}},

	// Elements of our own sets.
	{"element with a catch-all", "add element $T cluster-ips { * }", []string{"remove ip proxyc cluster-ips unrecognised elements"}},
	{"element that is a range", "add element $T $L { 10.0.0.1-10.0.0.6 }", []string{"remove ip proxyc $L unrecognised elements"}},
	{"a source range more", "add element $T $L { 9.9.9.0/24 }", []string{"remove ip proxyc $L 9.9.9.0/24"}},
	{"all source ranges more", "flush set $T $L; add element $T $L { 0.0.0.0/0 }", []string{"add ip proxyc $L 198.51.100.5/32", "remove ip proxyc $L 0.0.0.0/0"}},
	{"source ranges less", "delete element $T $L { 198.51.100.5, 198.51.100.7 }", []string{"add ip proxyc $L 198.51.100.5/32", "add ip proxyc $L 198.51.100.7/32"}},
	{"no source ranges", "flush set $T $L", []string{"add ip proxyc $L 198.51.100.5/32"}},
	{"element that accepts", "add element $T service-ips { 9.9.9.9 . tcp . 80 : accept }", []string{"remove ip proxyc service-ips 9.9.9.9 . tcp . 80"}},
	{"element of another protocol", "add element $T service-ips { 9.9.9.9 . 200 . 80 : drop }", []string{"remove ip proxyc service-ips"}},

	// What is not in force, or lets less through.
	{"dormant", "add table $T { flags dormant; }", []string{"change table ip proxyc: flags dormant"}},
	{"policy", "add chain $T nat-output { policy drop; }", []string{"change ip proxyc chain nat-output: policy drop"}},
	{"dormant and policy", "add table $T { flags dormant; }; add chain $T nat-output { policy drop; }", []string{"change table ip proxyc: flags dormant"}},
	{"priority", remade("{ type nat hook output priority 5; }"), []string{"change table ip proxyc: chain nat-output: priority 5"}},
	{"hook", remade("{ type nat hook input priority -100; }"), []string{"change table ip proxyc: chain nat-output: hook input"}},
	{"type", "delete chain $T nat-output; add chain $T nat-output { type route hook output priority -100; }",
		[]string{"change table ip proxyc: chain nat-output: type route"}},
	{"no hook", remade(""), []string{"change table ip proxyc: chain nat-output: no hook"}},
	{"a set with a size", reset("size 1"), []string{"change table ip proxyc: set outside-nodeports: size 1"}},
	{"a set with a timeout", reset("timeout 1s"), []string{"change table ip proxyc: set outside-nodeports: timeout 1s"}},
	{"a set with counters of its own", reset("counter"), []string{"change table ip proxyc: set outside-nodeports: counters of connections"}},
}

func remade(declaration string) string {
	return "delete chain $T nat-output; add chain $T nat-output " + declaration + "; add rule $T nat-output accept"
}

func reset(property string) string {
	return "flush chain $T service-nodeports-by-source; flush map $T outside-nodeports; delete map $T outside-nodeports; " +
		"add map $T outside-nodeports { type inet_proto . inet_service : verdict; " + property + "; }"
}

// handle matches the handle of a rule, which differs from run to run.
var handle = regexp.MustCompile(" # handle [1-9][0-9]*")

// Unsupported rules are named by the statements that proxyc has, and by the other instructions.
func TestUnsupportedRulesAreDescribed(t *testing.T) {
	n, want := newNode(t), both(nftest.Program)
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	for rule, reported := range map[string]string{
		"counter drop":                             "counter drop",
		"ip saddr 10.0.0.0/8 drop":                 "ip saddr 10.0.0.0/8 drop",
		"ip daddr 1.2.3.4 tcp dport 80 accept":     "<ip daddr 1.2.3.4 meta l4proto tcp th dport 80 accept>",
		"tcp dport > 80 drop":                      "<meta l4proto tcp payload cmp drop>",
		"meta mark set 0x7":                        "<immediate meta>",
		`log prefix "why" jump masq-lb`:            "<log jump masq-lb>",
		"tcp dport { 22, 23 } drop":                "meta l4proto tcp th dport @__set0 drop",
		"tcp dport vmap { 22 : drop }":             "meta l4proto tcp th dport vmap @__map0",
		"ct state established limit rate 1/second": "<ct bitwise cmp limit>",
	} {
		if err := n.write(t, "insert rule ip proxyc services "+rule); err != nil {
			t.Fatal(err)
		}
		have, err := n.reader.read(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		plan := newPlan(have, want)
		got := slices.Collect(plan.Differences)
		if len(got) != 1 || got[0].Object != "ip proxyc chain services" || len(got[0].Have) != 1 || handle.ReplaceAllString(got[0].Have[0], "") != reported || got[0].Want != nil {
			t.Errorf("%s: want have %q, got %+v", rule, reported, got)
		}
		if _, err := n.Commit(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
	}
	// And what is missing.
	for script, reported := range map[string]apply.Operation{
		"flush chain ip proxyc lb-2":                    {Verb: apply.Change, Object: "ip proxyc chain lb-2", Want: []string{"dnat ip addr . port to ip daddr . meta l4proto . th dport . numgen random mod 2 map @backends"}},
		"add element ip proxyc cluster-ips { 9.9.9.9 }": {Verb: apply.Remove, Object: "ip proxyc cluster-ips 9.9.9.9", Have: []string{"9.9.9.9"}},
	} {
		if err := n.write(t, script); err != nil {
			t.Fatal(err)
		}
		have, err := n.reader.read(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		plan := newPlan(have, want)
		got := slices.Collect(plan.Differences)
		for i := range got {
			got[i].Origin = ir.Origin{}
		}
		if diff := cmp.Diff([]apply.Operation{reported}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", script, diff)
		}
		if _, err := n.Commit(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
	}
}

var (
	inPrerouting = []string{"change ip proxyc chain nat-prerouting"}
	inServices   = []string{"change ip proxyc chain services"}
	inFilter     = []string{"remove ip proxyc chain filter"}
	goneMine     = []string{"remove ip proxyc set mine"}
)

// mostUnwritten is the maximum number of these that the kernel or nft may not support.
const mostUnwritten = 5

// Everything that nft writes into our table is read, named and removed. No other difference is
// found.
func TestRulesOfNFT(t *testing.T) {
	n := newNode(t)
	want := both(nftest.Program)
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	before := n.list(t)
	list := want.IPv4.Sets[len(want.IPv4.Sets)-1].Name
	var unknown []string
	for i, w := range written {
		t.Run(w.name, func(t *testing.T) {
			names := strings.NewReplacer("$T", "ip proxyc", "$L", list)
			script := names.Replace(w.script)
			if err := n.write(t, script); err != nil {
				unknown = append(unknown, w.name)
				t.Skip(err)
			}
			have, err := n.reader.read(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			plan := newPlan(have, want)
			var ops []string
			for op := range plan.Differences {
				ops = append(ops, op.Verb.String()+" "+op.Object+": "+strings.Join(op.Have, "; "))
				if op.Verb == apply.Change && strings.Contains(op.Object, " chain ") && len(op.Have) == 0 {
					t.Errorf("change %s: does not report what the kernel has", op.Object)
				}
			}
			for _, name := range w.named {
				if !slices.ContainsFunc(ops, func(op string) bool { return strings.HasPrefix(op, names.Replace(name)) }) {
					t.Errorf("nothing to do begins with %q:\n%s", name, strings.Join(ops[:min(len(ops), 9)], "\n"))
				}
			}
			if len(ops) == 0 {
				t.Error("it is not noticed")
			}
			if _, err := n.Commit(t.Context(), plan); err != nil {
				t.Fatal(err)
			}
			holds(t, "after "+w.name, n, want)
		})
		if i%8 < 7 && i < len(written)-1 {
			continue // nft takes most of the time, and no case removes what another leaves
		}
		if after := n.list(t); !onlyOrder(before, after) {
			t.Fatalf("one of the cases from %q to %q leaves (-before +after):\n%s", written[i-i%8].name, w.name, cmp.Diff(before, after))
		}
	}
	if len(unknown) > mostUnwritten {
		t.Errorf("nft writes too few: not %q", unknown)
	}
}

// write runs a script of commands, separated by semicolons outside of braces.
func (n node) write(t *testing.T, script string) error {
	var b strings.Builder
	depth := 0
	for i, c := range script {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		}
		if c == ';' && depth == 0 && strings.HasPrefix(script[i:], "; ") {
			c = '\n'
		}
		b.WriteRune(c)
	}
	cmd := n.Namespace.Command(context.WithoutCancel(t.Context()), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(b.String() + "\n")
	_, err := n.Namespace.Run(cmd)
	return err
}

// A catch-all element in an affinity map, which no rule adds, would match every new client. It is
// found and removed.
func TestCatchAllAffinityIsRemoved(t *testing.T) {
	n := newNode(t)
	want := both(nftest.Program)
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(want.IPv4.Sets, func(s rules.Set) bool { return s.Timeout > 0 })
	name := want.IPv4.Sets[i].Name
	if err := n.write(t, `add element ip proxyc `+name+` { * : 10.244.2.10 }`); err != nil {
		t.Fatal(err)
	}
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	plan := newPlan(have, want)
	if got := allOperations(plan); len(got) != 1 || !strings.Contains(got[0], name+" unrecognised elements") {
		t.Errorf("want the map's unrecognised elements to go, got %q", got)
	}
	if _, err := n.Commit(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	holds(t, "afterwards", n, want)
	if out := n.nft(t, "", "list", "map", "ip", "proxyc", name); strings.Contains(out, "10.244.2.10") {
		t.Errorf("it is still there:\n%s", out)
	}
}
