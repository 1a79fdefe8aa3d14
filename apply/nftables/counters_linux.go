package nftables

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/ir"
)

// Counters implements apply.Counted.
func (d *Dataplane) Counters() apply.Counters {
	return apply.Counters{LocalhostRejected: d.reader.localhostRejected}
}

// localhostRejected reads the counters of the rules that reject packets to node ports at localhost.
// It waits until a read in progress ends.
func (r *reader) localhostRejected(ctx context.Context) (all []apply.Rejected, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range ir.Families() {
		packets := map[ir.Protocol]uint64{} // a dump may repeat a rule
		_, err := r.list(ctx, unix.NFT_MSG_GETRULE, f, func(a codec.Fields) error {
			if _, rule := codec.DecodeRule(a, f); rule.RejectsLocalhost() != 0 {
				packets[rule.RejectsLocalhost()] = codec.Packets(a)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for p, n := range packets {
			all = append(all, apply.Rejected{Family: f, Protocol: p, Packets: n})
		}
	}
	return all, nil
}
