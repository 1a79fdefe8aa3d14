package codec

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// A rule whose answer another program changed is not read as ours.
func TestDecodeReject(t *testing.T) {
	for _, tt := range []struct {
		kind uint32
		code byte
		f    ir.Family
		want rules.Verdict
	}{
		{unix.NFT_REJECT_ICMP_UNREACH, 3, ir.IPv4, rules.Verdict{Kind: rules.Reject}},
		{unix.NFT_REJECT_ICMP_UNREACH, 4, ir.IPv6, rules.Verdict{Kind: rules.Reject}},
		{unix.NFT_REJECT_ICMPX_UNREACH, unix.NFT_REJECT_ICMPX_PORT_UNREACH, ir.IPv6, rules.Verdict{Kind: rules.Reject}},
		{unix.NFT_REJECT_ICMP_UNREACH, 13, ir.IPv4, rules.Verdict{Kind: rules.RejectWith, Chain: "icmp 13"}},
		{unix.NFT_REJECT_ICMPX_UNREACH, unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED, ir.IPv4, rules.Verdict{Kind: rules.RejectWith, Chain: "icmpx 3"}},
		{unix.NFT_REJECT_TCP_RST, 0, ir.IPv4, rules.Verdict{Kind: rules.RejectWith, Chain: "tcp reset"}},
	} {
		got := decodeReject(Instruction{"reject", Fields{
			unix.NFTA_REJECT_TYPE:      binary.BigEndian.AppendUint32(nil, tt.kind),
			unix.NFTA_REJECT_ICMP_CODE: {tt.code},
		}}, tt.f)
		if got != tt.want {
			t.Errorf("type %d, code %d, %s: %+v, want %+v", tt.kind, tt.code, tt.f, got, tt.want)
		}
	}
}
