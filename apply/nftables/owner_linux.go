package nftables

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// An owned table belongs to the socket that created or adopted it. That is the writer's: the kernel
// rejects changes over other sockets, including flush ruleset. With the flag persist (Linux 6.9)
// the table remains without an owner when the socket is closed, and the next writer adopts it.

// ownedByProcess is the reason for rejected changes, and the fix.
const ownedByProcess = "a process that still runs has made it its own (proxyc watch --nftables-owner, or nft): it has to end first"

// claimOwnership makes the tables owned, if the kernel supports that.
func (w *writer) claimOwnership() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	w.declaration.flags = codec.FlagsOwned
	if err := w.probeOwnership(ctx); err != nil {
		w.declaration.flags = ""
		if w.log != nil {
			w.log.Warn("the kernel knows no tables with an owner that persist (Linux 6.9): changes of others are repaired, not prevented", "err", err)
		}
	}
}

// probeTable is created and removed in one transaction, so it is never visible.
const probeTable = rules.Table + "-probe"

// probeOwnership returns the kernel's error for a table that is owned and persistent.
func (w *writer) probeOwnership(ctx context.Context) error {
	b, none := &batch{}, &change{family: ir.IPv4}
	b.create(none, unix.NFT_MSG_NEWTABLE, codec.EncodeTableWith(probeTable, codec.FlagsOwned), purpose{object: "table " + probeTable})
	b.add(none, unix.NFT_MSG_DELTABLE, codec.EncodeTable(probeTable), purpose{object: "table " + probeTable})
	refusals, err := w.conn.Send(ctx, b.messages)
	for _, r := range b.refused(refusals) {
		err = errors.Join(err, r)
	}
	return err
}
