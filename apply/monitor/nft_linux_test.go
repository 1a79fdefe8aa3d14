package monitor

import (
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A message is also matched by its family. A message about a table may disable everything in it.
func TestRelevant(t *testing.T) {
	for _, tc := range []struct {
		name   string
		c      Filter
		family byte
		kind   uint8
		table  string
		want   bool
	}{
		{"our table", NFTables, unix.NFPROTO_IPV4, unix.NFT_MSG_NEWTABLE, "proxyc", true},
		{"our table of IPv6", NFTables, unix.NFPROTO_IPV6, unix.NFT_MSG_DELTABLE, "proxyc", true},
		{"a namesake", NFTables, unix.NFPROTO_INET, unix.NFT_MSG_DELTABLE, "proxyc", false},
		{"a table whose flags change", IPTables, unix.NFPROTO_IPV4, unix.NFT_MSG_NEWTABLE, "nat", true},
		{"another one", IPTables, unix.NFPROTO_IPV4, unix.NFT_MSG_NEWTABLE, "mangle", false},
		{"a firewall's", IPTables, unix.NFPROTO_INET, unix.NFT_MSG_DELTABLE, "filter", false},
		{"a set of somebody", IPTables, unix.NFPROTO_IPV4, unix.NFT_MSG_NEWSETELEM, "filter", false},
	} {
		ae := netlink.NewAttributeEncoder()
		ae.String(unix.NFTA_TABLE_NAME, tc.table)
		attributes, err := ae.Encode()
		if err != nil {
			t.Fatal(err)
		}
		m := NFT{filter: tc.c}
		if got := m.relevant(tc.kind, append([]byte{tc.family, 0, 0, 0}, attributes...)); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
