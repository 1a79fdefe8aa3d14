package iptables

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// tables counts the rules of our chains, as in kube-proxy's metrics.
func (p *Plan) tables() []apply.TableCount {
	var counts []apply.TableCount
	for _, f := range ir.Present(p.families) {
		for i, want := range f.want.Tables() {
			counts = append(counts, apply.TableCount{
				Family: f.want.Family, Table: want.Name, Rules: f.size[i], Written: f.tables[i].written(),
			})
		}
	}
	return counts
}

// written returns the number of rules that a change passes to the tool.
func (d *tableDiff) written() int {
	n := len(d.fill)
	for _, c := range d.set {
		n += len(c.Rules)
	}
	return n
}

// invalidRule matches the packet counter of the rule that drops packets in conntrack state INVALID,
// with any further matches.
var invalidRule = regexp.MustCompile(`(?m)^\[(\d+):\d+\] -A KUBE-FORWARD .*--ctstate INVALID .*-j DROP$`)

// invalidDropped returns how many packets the kernel has dropped, in all families, in conntrack
// state INVALID. It is safe for use during other calls.
func (t *tools) invalidDropped(ctx context.Context) (packets uint64, err error) {
	for _, f := range t.families {
		name := tool(f, t.Variant, "save")
		out, err := t.output(ctx, name, "--counters", "--table", "filter")
		if err != nil {
			return 0, err
		}
		found := invalidRule.FindStringSubmatch(out)
		if found == nil {
			return 0, fmt.Errorf("%s: no rule drops packets of state INVALID", name)
		}
		n, err := strconv.ParseUint(found[1], 10, 64)
		if err != nil {
			return 0, err
		}
		packets += n
	}
	return packets, nil
}

// localhostRule matches the packet counter of the rule that marks packets to node ports on
// localhost.
var localhostRule = regexp.MustCompile(`(?m)^-A KUBE-MARK-MASQ -d 127\.0\.0\.0/8 .*-c (\d+) \d+ -j MARK `)

// localhostNodePorts returns how many connections to node ports on localhost were accepted since
// the rule was written. It is safe for use during other calls.
func (t *tools) localhostNodePorts(ctx context.Context) (packets uint64, err error) {
	name := t.tool(ir.IPv4)
	args := append([]string{"--table", "nat", "--verbose", "--list-rules", "KUBE-MARK-MASQ"}, t.waitFlags()...)
	out, err := t.output(ctx, name, args...)
	if err != nil {
		return 0, err
	}
	found := localhostRule.FindStringSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("%s: no rule marks packets to localhost", name)
	}
	return strconv.ParseUint(found[1], 10, 64)
}
