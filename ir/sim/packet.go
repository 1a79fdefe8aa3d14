// Package sim defines the meaning of the IR: the result for each packet under a
// Program. The rules of every back end are tested against it.
package sim

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Packet is the first packet of a new connection, as it arrives at the node's
// rules.
type Packet struct {
	Src      netip.Addr
	Dst      netip.Addr
	Protocol ir.Protocol
	Port     uint16 // destination port
	// SrcPort is the source port; 0 means any: the packet then represents all
	// clients with the source address.
	SrcPort uint16
	// In is the input interface. It is empty for packets from a process of the
	// node; Src is then an address of the node.
	In string
	// Within, if valid, is an address of the range to which Src belongs, if Src is unknown and stands
	// for an address of a pod. Ranges are compared with it.
	Within netip.Addr
	// Later is set for a packet of a connection that has a reply.
	Later bool
	// Reply is set for a packet of the backend to the client instead, whose NAT is decided.
	Reply bool
	// Flags are those of the TCP header if Later is set.
	Flags int
}

// TCPFlags are the flags of a TCP header, from the lowest bit on (RFC 9293).
var TCPFlags = [...]string{"fin", "syn", "rst", "psh", "ack", "urg"}

// Flags of TCP headers.
const (
	SYN = 1 << 1
	PSH = 1 << 3
	ACK = 1 << 4
)

// TCPFlags returns the flags of the packet, with TCP.
func (p Packet) TCPFlags() int {
	if !p.Later {
		return SYN
	}
	return p.Flags
}

// class returns the address that decides which ranges contain the source.
func (p *Packet) class() netip.Addr {
	if p.Within.IsValid() {
		return p.Within
	}
	return p.Src
}

// FromNode reports whether the packet is from the node itself.
func (p Packet) FromNode() bool { return p.In == "" }

// ParsePacket parses a Packet from the parts on a command line or in a test:
// "IP[:PORT]" or "IP[:PORT]@IFACE" for the source, and "IP:PORT/PROTO" for the
// destination. The default of "/PROTO" is TCP.
func ParsePacket(from, to string) (Packet, error) {
	addr, in, _ := strings.Cut(from, "@")
	client, err := netip.ParseAddrPort(addr)
	src, port := client.Addr(), client.Port()
	if err != nil {
		src, err = netip.ParseAddr(addr)
	}
	if err != nil {
		return Packet{}, fmt.Errorf("source %q: must be IP[:PORT][@INTERFACE]", from)
	}
	match := to
	if !strings.Contains(match, "/") {
		match += "/tcp"
	}
	m, ok := ir.ParseMatch(match)
	if !ok || m.IsNodePort() || m.Port == 0 {
		return Packet{}, fmt.Errorf("destination %q: must be IP:PORT or IP:PORT/PROTO, with PROTO tcp, udp or sctp", to)
	}
	if src.Is4() != m.Addr.Is4() {
		return Packet{}, fmt.Errorf("source %s and destination %s are of different families", src, m.Addr)
	}
	return Packet{Src: src, Dst: m.Addr, Protocol: m.Protocol, Port: m.Port, SrcPort: port, In: in}, nil
}
