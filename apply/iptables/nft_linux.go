package iptables

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// Direct access to nf_tables, for properties of the nft variant's tables that the iptables tools do
// not show.

// nfgenHead is the size of the header of each message (struct nfgenmsg).
const nfgenHead = 4

// query requests data about a table. more is optional and adds attributes.
func query(f ir.Family, table string, typ uint16, flags netlink.HeaderFlags, more func(*netlink.AttributeEncoder)) ([]netlink.Message, error) {
	return exchange(f, table, typ, flags, more, func(c *netlink.Conn, m netlink.Message) ([]netlink.Message, error) { return c.Execute(m) })
}

// change makes a change of a table in its own transaction.
func change(f ir.Family, table string, typ uint16, more func(*netlink.AttributeEncoder)) error {
	_, err := exchange(f, table, typ, netlink.Request|netlink.Acknowledge, more, transact)
	return err
}

// exchange builds a message about a table and sends it with send. The first attribute of every message
// is the table's name.
func exchange(f ir.Family, table string, typ uint16, flags netlink.HeaderFlags, more func(*netlink.AttributeEncoder),
	send func(*netlink.Conn, netlink.Message) ([]netlink.Message, error)) (answers []netlink.Message, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("netlink socket of nf_tables: %w", err)
	}
	defer c.Close()
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.String(unix.NFTA_TABLE_NAME, table)
	if more != nil {
		more(ae)
	}
	attributes, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	family := byte(unix.NFPROTO_IPV4)
	if f == ir.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	answers, err = send(c, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: flags},
		Data:   append([]byte{family, 0, 0, 0}, attributes...),
	})
	if err != nil {
		return nil, fmt.Errorf("table %s %s: %w", f.NFT(), table, err)
	}
	return answers, nil
}

// transact sends a message as the only one of a transaction.
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

// decode calls f for each attribute.
func decode(b []byte, f func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}
