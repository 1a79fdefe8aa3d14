package iptables

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// frontendRule matches a rule of a dispatch chain as iptables-save prints it.
var frontendRule = regexp.MustCompile(`^-A \S+ (?:-d (\S+)/\d+ )?-p (\w+) .*--dport (\d+) .*-j (\S+)`)

// CountedBy returns what the counter of a rule counts, as iptables-save prints the rule; false if it counts
// nothing of one frontend. Each new connection to a frontend with a route passes its rule of table nat.
func CountedBy(rule string, of render.Frontends) (c render.Counted, ok bool) {
	if !strings.Contains(rule, "--dport ") { // most rules
		return c, false
	}
	found := frontendRule.FindStringSubmatch(rule)
	if found == nil {
		return c, false
	}
	var m ir.Match
	m.Addr, _ = netip.ParseAddr(found[1]) // invalid for node ports
	m.Protocol, _ = ir.ParseProtocol(found[2])
	port, _ := strconv.ParseUint(found[3], 10, 16)
	m.Port = uint16(port)
	f := of[m]
	stem, _, _ := strings.Cut(strings.TrimPrefix(found[4], "KUBE-"), "-")
	switch target := found[4]; {
	case f == nil:
		return c, false
	case stem == "SVC", stem == "SVL", stem == "EXT", stem == "FW":
		return render.Count(f, true, render.Admitted), true
	case target == "DROP" && strings.Contains(rule, guardComment):
		return render.Count(f, false, render.SourceRanges), true
	case target == "REJECT", target == "DROP":
		return render.Count(f, len(f.Routes) == 0, render.Unrouted(f)), true
	}
	return c, false
}
