package iptables

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// tables counts the rules of our chains, as kube-proxy's metrics do.
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

// written is how many rules a change gives to the tool.
func (d *tableDiff) written() int {
	n := len(d.fill)
	for _, c := range d.set {
		n += len(c.Rules)
	}
	return n
}

// invalidRule finds how many packets met the rule that drops what conntrack
// could not place, with any further matches.
var invalidRule = regexp.MustCompile(`(?m)^\[(\d+):\d+\] -A KUBE-FORWARD .*--ctstate INVALID .*-j DROP$`)

// invalidDropped reads how many packets the kernel has dropped, in all
// families, for being in conntrack state INVALID. It may be called while
// another goroutine uses the Dataplane.
func (d *Dataplane) invalidDropped(ctx context.Context) (packets uint64, err error) {
	for _, f := range d.families {
		name := tool(f, d.Variant, "save")
		out, err := d.output(ctx, name, "--counters", "--table", "filter")
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

// localhostRule finds how many packets met the rule that marks those for node
// ports at localhost.
var localhostRule = regexp.MustCompile(`(?m)^-A KUBE-MARK-MASQ -d 127\.0\.0\.0/8 .*-c (\d+) \d+ -j MARK `)

// localhostNodePorts reads how many connections to node ports at localhost were
// accepted, since the rule was written. It may be called while another
// goroutine uses the Dataplane.
func (d *Dataplane) localhostNodePorts(ctx context.Context) (packets uint64, err error) {
	name := d.tool(ir.IPv4)
	args := append([]string{"--table", "nat", "--verbose", "--list-rules", "KUBE-MARK-MASQ"}, d.waitFlags()...)
	out, err := d.output(ctx, name, args...)
	if err != nil {
		return 0, err
	}
	found := localhostRule.FindStringSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("%s: no rule marks packets to localhost", name)
	}
	return strconv.ParseUint(found[1], 10, 64)
}
