package nftables

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Counters implements apply.Counted.
func (d *Dataplane) Counters() apply.Counters {
	c := apply.Counters{LocalhostRejected: d.reader.localhostRejected}
	if d.writer.meter != nil {
		c.Traffic = d.writer.meter.traffic
	}
	return c
}

// localhostRejected reads the counters of the rules that reject packets to node ports at localhost.
// It reads only their chain, and waits for at most one request of a read or commit in progress.
func (r *reader) localhostRejected(ctx context.Context) (all []apply.Rejected, err error) {
	for _, f := range ir.Families() {
		packets := map[ir.Protocol]uint64{}
		err := r.packets(ctx, f, func(rule *rules.Rule, n uint64) {
			if rule.RejectsLocalhost() != 0 {
				packets[rule.RejectsLocalhost()] = n
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // no table or chain yet
			return nil, err
		}
		for p, n := range packets {
			all = append(all, apply.Rejected{Family: f, Protocol: p, Packets: n})
		}
	}
	return all, nil
}

// packets calls each with the rules of LocalhostChain and the values of their counters.
func (r *reader) packets(ctx context.Context, f ir.Family, each func(*rules.Rule, uint64)) error {
	type counted struct {
		rule    rules.Rule
		packets uint64
	}
	var all []counted
	err := socket.RetryInterrupted(func() (bool, error) { // since a commit may run
		all = nil
		return r.listOf(ctx, unix.NFT_MSG_GETRULE, f, codec.RulesOf(rules.LocalhostChain), func(a codec.Fields) error {
			_, rule := codec.DecodeRule(a, f)
			all = append(all, counted{rule, codec.Packets(a)})
			return nil
		})
	})
	for i := range all {
		each(&all[i].rule, all[i].packets)
	}
	return err
}
