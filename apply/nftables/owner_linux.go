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

// An owned table belongs to the socket that made or adopted it, which is the one
// that commits: the kernel refuses what comes over another one, flush ruleset
// included. With flag persist (Linux 6.9) it stays when that socket is closed, without
// an owner, and the next one adopts it.

// ownedByProcess tells who is refused what can be done.
const ownedByProcess = "a process that still runs has made it its own (proxyc watch --nftables-owner, or nft): it has to end first"

// claimOwnership has the tables owned where the kernel knows that.
func (d *Dataplane) claimOwnership() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d.ownTables = true
	if err := d.probeOwnership(ctx); err != nil {
		d.ownTables = false
		if d.log != nil {
			d.log.Warn("the kernel knows no tables with an owner that persist (Linux 6.9): changes of others are repaired, not prevented", "err", err)
		}
	}
}

// probeTable is made and removed in one transaction, so that nobody meets it.
const probeTable = rules.Table + "-probe"

// probeOwnership returns the kernel's reason not to make a table that is owned and persists.
func (d *Dataplane) probeOwnership(ctx context.Context) error {
	b, none := &batch{}, &change{family: ir.IPv4}
	b.create(none, unix.NFT_MSG_NEWTABLE, codec.EncodeTableWith(probeTable, codec.FlagsOwned), purpose{object: "table " + probeTable})
	b.add(none, unix.NFT_MSG_DELTABLE, codec.EncodeTable(probeTable), purpose{object: "table " + probeTable})
	refusals, err := d.c.Send(ctx, b.messages)
	for _, r := range b.refused(refusals) {
		err = errors.Join(err, r)
	}
	return err
}

// mayRead reports whether the tables of an owner may be read: by itself, and by who
// changes nothing if they persist, as proxyc's do.
func (d *Dataplane) mayRead(flags, owner uint32) bool {
	return owner == d.c.PID() || d.readOnly && flags&codec.NFTTablePersist != 0
}

// flags are those of the tables.
func (d *Dataplane) flags() string {
	if d.ownTables {
		return codec.FlagsOwned
	}
	return ""
}
