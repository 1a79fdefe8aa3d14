package xtables

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

const testSets = `create nets hash:net family inet hashsize 1024 maxelem 65536
add nets 10.1.0.0/16
add nets 10.1.2.0/24 nomatch
add nets 10.1.2.3/32
create ips hash:ip family inet hashsize 1024 maxelem 65536 timeout 600 comment
add ips 10.9.0.1 timeout 12 comment "a b"
create ports hash:ip,port family inet hashsize 1024 maxelem 65536
add ports 10.2.0.1,tcp:80
add ports 10.1.0.1,udp:53
create wide hash:net,port family inet hashsize 1024 maxelem 65536
add wide 10.2.0.0/16,tcp:80
create pairs hash:net,net family inet hashsize 1024 maxelem 65536
add pairs 10.1.0.0/16,10.2.0.0/16
create ifaces hash:net,iface family inet hashsize 1024 maxelem 65536
add ifaces 10.1.0.0/16,eth0
create masked hash:ip family inet hashsize 1024 maxelem 65536 netmask 24
add masked 10.1.0.0
create numbers bitmap:port range 0-1024
add numbers 80
create macs hash:mac hashsize 1024 maxelem 65536
create list list:set size 8
add list ips
add list nets
create v6 hash:net family inet6 hashsize 1024 maxelem 65536
add v6 fd00::/8
`

// A rule that drops shows whether its matches hold for a TCP packet from 10.1.0.1
// to 10.2.0.1:80. The packet is received on eth0 and leaves through cali1 in the
// hook FORWARD.
func TestMatches(t *testing.T) {
	sets, err := ParseSets(testSets)
	if err != nil {
		t.Fatal(err)
	}
	for match, want := range map[string]string{
		"-p tcp": "yes", "-p 17": "no", "! -p udp": "yes", "-p ipencap": "no", "-p 0": "yes",
		"-s 10.1.0.0/16": "yes", "! -s 10.1.0.0/16": "no", "-d 10.2.0.1": "yes", "-d 10.0.0.1/255.0.0.255": "yes", "-s fd00::/8": "unsure",
		"-i eth+": "yes", "-i eth1": "no", "! -i eth1": "yes", "-o cali+": "yes", "! -o cali+": "no", "-o +": "yes", "-f": "no", "! -f": "yes",
		"-p tcp -m tcp --dport 80": "yes", "-p tcp -m tcp --dport 81:90": "no", "-p tcp -m tcp ! --dport 80": "no", "-p tcp -m tcp --sport 4": "unsure", "-p udp -m udp --sport 4": "no",
		"-p tcp -m multiport --dports 22,79:81": "yes", "-p tcp -m multiport ! --dports 22,80": "no", "-p tcp -m multiport --sports 22": "unsure", "-p tcp -m multiport --ports 80": "yes",
		"-p tcp -m tcp --tcp-flags SYN,RST SYN": "yes", "-p tcp -m tcp --tcp-flags SYN,ACK ACK": "no", "-p tcp -m tcp --tcp-flags ALL NONE": "no",
		"-m conntrack --ctstate NEW": "yes", "-m conntrack --ctstate RELATED,ESTABLISHED": "no", "-m conntrack ! --ctstate NEW": "no", "-m state --state INVALID": "no", "-m conntrack --ctstate DNAT": "no",
		"-m conntrack --ctorigdst 10.2.0.1 --ctorigdstport 80 --ctdir ORIGINAL": "yes", "-m conntrack --ctstatus ASSURED": "unsure",
		"-m mark --mark 0x0/0x10000": "yes", "-m mark --mark 0x1": "no", "-m mark ! --mark 0x1/0x1": "yes", "-m connmark --mark 0x0/0xf": "yes",
		"-m addrtype --dst-type LOCAL": "no", "-m addrtype ! --src-type LOCAL": "yes", "-m addrtype --dst-type MULTICAST": "no", "-m addrtype --dst-type BROADCAST": "unsure", "-m addrtype --src-type LOCAL --limit-iface-in": "no",
		"-m iprange --src-range 10.0.0.0-10.1.255.255": "yes", "-m iprange ! --dst-range 10.2.0.1-10.2.0.2": "no",
		"-m rpfilter --invert": "no", "-m rpfilter --loose": "yes",
		"-m physdev --physdev-is-bridged": "no", "-m physdev ! --physdev-is-in": "yes",
		"-m comment --comment \"it's -j DROP\"": "yes",
		"-m string --algo bm --string \"x y\"":  "unsure", "-p udp -m string --algo bm --string x": "no", "-m string --algo bm --string x -p udp": "no",
		"-m limit --limit 1/sec": "unsure", "-p udp -m limit --limit 1/sec": "no",
		"-m set --match-set nets src": "yes", "-m set ! --match-set nets src": "no", "-m set --match-set nets dst": "no", "-m set --match-set ips src": "no",
		"-m set --match-set ports dst,dst": "yes", "-m set --match-set ports src,dst": "no", "-m set --match-set ports dst,src": "unsure", "-m set --match-set ports dst": "no",
		"-m set --match-set wide dst,dst": "yes", "-m set --match-set pairs src,dst": "yes", "-m set --match-set pairs dst,src": "no",
		"-m set --match-set ifaces src,src": "yes", "-m set --match-set ifaces src,dst": "no", "-m set --match-set masked src": "yes", "-m set --match-set masked dst": "no",
		"-m set --match-set numbers dst": "yes", "-m set --match-set macs src": "unsure", "-m set --match-set list src": "yes", "-m set --match-set list dst": "no",
		"-m set --match-set v6 src": "no", "-m set --match-set gone src": "unsure", "-p udp -m set --match-set gone src": "no",
		"-m set --match-set nets src --return-nomatch": "unsure",
	} {
		packet := sim.Packet{Src: netip.MustParseAddr("10.1.0.1"), Dst: netip.MustParseAddr("10.2.0.1"), Protocol: ir.TCP, Port: 80, In: "eth0"}
		got := verdict(t, packet, "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD "+match+" -j DROP\nCOMMIT\n", sets)
		if got != map[string]string{"yes": "dropped", "no": "not proxied", "unsure": "unsure"}[want] {
			t.Errorf("%s: %s, want %s", match, got, want)
		}
	}
}

// The most specific element of a set of networks decides.
func TestNomatch(t *testing.T) {
	sets, err := ParseSets(testSets)
	if err != nil {
		t.Fatal(err)
	}
	for src, want := range map[string]string{"10.1.0.1": "dropped", "10.1.2.1": "not proxied", "10.1.2.3": "dropped", "10.9.0.1": "not proxied"} {
		packet := sim.Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("10.2.0.1"), Protocol: ir.TCP, Port: 80, In: "eth0"}
		if got := verdict(t, packet, "*filter\n-A FORWARD -m set --match-set nets src -j DROP\nCOMMIT\n", sets); got != want {
			t.Errorf("%s: %s, want %s", src, got, want)
		}
	}
}

// Rules of all tables are evaluated in the order of their hooks and priorities.
func TestTargets(t *testing.T) {
	for rules, want := range map[string]string{
		"*filter\n:FORWARD DROP [0:0]\nCOMMIT":                                                                                                                                                  "dropped",
		"*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j RETURN\n-A FORWARD -j ACCEPT\nCOMMIT":                                                                                                      "dropped",
		"*filter\n:a - [0:0]\n-A FORWARD -j a\n-A FORWARD -j DROP\n-A a -j RETURN\nCOMMIT":                                                                                                      "dropped",
		"*filter\n:a - [0:0]\n-A FORWARD -g a\n-A FORWARD -j DROP\n-A a -j RETURN\nCOMMIT":                                                                                                      "not proxied",
		"*filter\n:a - [0:0]\n-A FORWARD -j a\n-A FORWARD -j DROP\n-A a -j ACCEPT\nCOMMIT":                                                                                                      "not proxied",
		"*filter\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\nCOMMIT":                                                                                                              "rejected",
		"*filter\n-A FORWARD -j LOG --log-prefix \"a b\"\n-A FORWARD -m limit --limit 1/sec -j NFLOG --nflog-group 1\n-A FORWARD -p tcp -j TCPMSS --set-mss 9\nCOMMIT":                          "not proxied",
		"*filter\n-A FORWARD -j NFQUEUE --queue-num 3\nCOMMIT":                                                                                                                                  "unsure",
		"*filter\n-A FORWARD -j gone\nCOMMIT":                                                                                                                                                   "unsure",
		"*mangle\n-A PREROUTING -j MARK --set-xmark 0x10000/0xf0000\nCOMMIT\n*filter\n-A FORWARD -m mark --mark 0x10000/0x10000 -j DROP\nCOMMIT":                                                "dropped",
		"*mangle\n-A FORWARD -j MARK --set-xmark 0x1/0x1\nCOMMIT\n*raw\n-A PREROUTING -m mark --mark 0x1/0x1 -j DROP\nCOMMIT":                                                                   "not proxied",
		"*mangle\n-A PREROUTING -j MARK --set-xmark 0x3/0xff\n-A PREROUTING -j CONNMARK --save-mark --nfmask 0x1 --ctmask 0x1\n-A FORWARD -m connmark --mark 0x1 -j DROP\nCOMMIT":               "dropped",
		"*mangle\n-A PREROUTING -j MARK --set-xmark 0x3/0xff\n-A PREROUTING -j CONNMARK --restore-mark --nfmask 0x1 --ctmask 0x1\n-A FORWARD -m mark --mark 0x2 -j DROP\nCOMMIT":                "dropped",
		"*raw\n-A PREROUTING -j CT --notrack\nCOMMIT\n*filter\n-A FORWARD -m conntrack --ctstate UNTRACKED -j DROP\nCOMMIT\n*nat\n-A PREROUTING -j DNAT --to-destination 10.3.0.1:8080\nCOMMIT": "dropped",
		"*raw\n-A PREROUTING -p tcp -j CT --helper ftp\nCOMMIT":                                                                                                                                 "not proxied",
		"*raw\n-A PREROUTING -m conntrack --ctstate NEW -j DROP\nCOMMIT":                                                                                                                        "not proxied",
		"*nat\n-A PREROUTING -p tcp -j DNAT --to-destination 10.3.0.1:8080\nCOMMIT":                                                                                                             "10.3.0.1:8080",
		"*nat\n-A PREROUTING -j DNAT --to-destination 10.3.0.1\n-A POSTROUTING -m conntrack --ctstate DNAT -o cali+ -j MASQUERADE --random-fully\nCOMMIT":                                       "10.3.0.1:80+snat",
		"*nat\n-A PREROUTING -m statistic --mode random --probability 0.25000000000 -j DNAT --to-destination 10.3.0.1\n-A PREROUTING -j DNAT --to-destination 10.3.0.2\nCOMMIT":                 "10.3.0.1:80(25%) 10.3.0.2:80(75%)",
		"*nat\n-A PREROUTING -m statistic --mode nth --every 2 --packet 0 -j DNAT --to-destination 10.3.0.1\n-A PREROUTING -j DNAT --to-destination 10.3.0.2\nCOMMIT":                           "10.3.0.1:80 10.3.0.2:80",
		"*filter\n-A FORWARD -m recent --rcheck --seconds 5 --name a --mask 255.255.255.255 --rsource -j DROP\nCOMMIT":                                                                          "unsure",
	} {
		packet := sim.Packet{Src: netip.MustParseAddr("10.1.0.1"), Dst: netip.MustParseAddr("10.2.0.1"), Protocol: ir.TCP, Port: 80, In: "eth0"}
		if got := verdict(t, packet, rules+"\n", nil); got != want {
			t.Errorf("%s: %s, want %s", rules, got, want)
		}
	}
}

// verdict evaluates a packet on a node that sends all packets through cali1.
func verdict(t *testing.T, packet sim.Packet, saved string, sets *Sets) string {
	t.Helper()
	r := &nftables.Ruleset{Family: ir.IPv4}
	if err := Add(r, "", saved, sets); err != nil {
		t.Fatal(err)
	}
	own := sim.NewOwn(netip.MustParsePrefix("127.0.0.0/8"), []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	on := nfteval.Machine{
		Out: func(src, dst netip.Addr, in string, _ uint32) (string, error) {
			switch {
			case dst == packet.Src:
				return packet.In, nil
			case in == "":
				return "", errors.New("asked for what the node sends")
			}
			return "cali1", nil
		},
		Carries: func(netip.Addr, string) bool { return false },
		Bridged: func(string) bool { return false },
	}
	way := nfteval.NewFollower(r, own).On(on).Follow(packet)
	if len(way.Unknown) > 0 {
		if !strings.HasPrefix(way.Unknown[0], "table ") {
			t.Errorf("%q names no rule", way.Unknown)
		}
		return "unsure"
	}
	return fmt.Sprint(way.Outcome)
}

func TestParseSetsRefusesOtherText(t *testing.T) {
	for _, text := range []string{"add a 10.0.0.1\n", "create a\n", "flush a\n"} {
		if _, err := ParseSets(text); err == nil || !strings.Contains(err.Error(), "line 1: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
