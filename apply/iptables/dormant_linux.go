package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// Tables of the nft variant are those of nf_tables, and can be dormant there:
// then they have their rules, and no packet meets any. The tools of iptables
// neither tell nor change that.

// flagDormant is NFT_TABLE_F_DORMANT.
const flagDormant = 1

// dormant reports whether no packet meets a table; not, where it is not there.
func dormant(f ir.Family, table string) (bool, error) {
	msgs, err := ask(f, table, netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE, Flags: netlink.Request},
	})
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
		ad, err := netlink.NewAttributeDecoder(m.Data[nfgenHead:])
		if err != nil {
			return false, fmt.Errorf("table %s %s: %w", nftFamily(f), table, err)
		}
		ad.ByteOrder = binary.BigEndian
		for ad.Next() {
			if ad.Type() == unix.NFTA_TABLE_FLAGS {
				flags = ad.Uint32()
			}
		}
	}
	return flags&flagDormant != 0, nil
}

// wake puts a table in force.
func wake(f ir.Family, table string) error {
	_, err := ask(f, table, netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE, Flags: netlink.Request | netlink.Acknowledge},
	})
	return err
}

// nfgenHead is the length of the head of each message (struct nfgenmsg).
const nfgenHead = 4

// ask sends a message about a table, which must have no flags where it is a
// change.
func ask(f ir.Family, table string, m netlink.Message) (answers []netlink.Message, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("netlink socket of nf_tables: %w", err)
	}
	defer c.Close()
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.String(unix.NFTA_TABLE_NAME, table)
	change := m.Header.Type&0xff == unix.NFT_MSG_NEWTABLE
	if change {
		ae.Uint32(unix.NFTA_TABLE_FLAGS, 0)
	}
	attributes, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	family := byte(unix.NFPROTO_IPV4)
	if f == ir.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	m.Data = append([]byte{family, 0, 0, 0}, attributes...)
	if change {
		answers, err = transact(c, m)
	} else {
		answers, err = c.Execute(m)
	}
	if err != nil {
		return nil, fmt.Errorf("table %s %s: %w", nftFamily(f), table, err)
	}
	return answers, nil
}

// transact sends a message as a transaction, which it is the last of.
func transact(c *netlink.Conn, m netlink.Message) ([]netlink.Message, error) {
	frame := func(t uint16) netlink.Message {
		subsystem := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, unix.NFNL_SUBSYS_NFTABLES)
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(t), Flags: netlink.Request}, Data: subsystem}
	}
	if _, err := c.SendMessages([]netlink.Message{frame(unix.NFNL_MSG_BATCH_BEGIN), m, frame(unix.NFNL_MSG_BATCH_END)}); err != nil {
		return nil, err
	}
	return c.Receive()
}
