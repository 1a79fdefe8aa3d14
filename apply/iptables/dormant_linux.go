package iptables

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// Tables of the nft variant are nf_tables tables, which can be dormant. A dormant table keeps its
// rules, but no packet passes them. The iptables tools neither show nor change that.

// flagDormant is NFT_TABLE_F_DORMANT.
const flagDormant = 1

// dormant reports whether a table is dormant. It returns false if the table does not exist.
func dormant(f ir.Family, table string) (bool, error) {
	msgs, err := query(f, table, unix.NFT_MSG_GETTABLE, netlink.Request, nil)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, err
	}
	var flags uint32
	for _, m := range msgs {
		if len(m.Data) < nfgenHead {
			continue
		}
		if err := decode(m.Data[nfgenHead:], func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_TABLE_FLAGS {
				flags = ad.Uint32()
			}
		}); err != nil {
			return false, fmt.Errorf("table %s %s: %w", f.NFT(), table, err)
		}
	}
	return flags&flagDormant != 0, nil
}

// wake clears the dormant flag of a table.
func wake(f ir.Family, table string) error {
	return change(f, table, unix.NFT_MSG_NEWTABLE, func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.NFTA_TABLE_FLAGS, 0) })
}
