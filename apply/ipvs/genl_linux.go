package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// Commands and attributes of ip_vs (include/uapi/linux/ip_vs.h).
const (
	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8
	cmdSetConfig  = 12
	cmdGetConfig  = 13

	attrService       = 1
	attrDest          = 2
	attrTimeoutTCP    = 4
	attrTimeoutTCPFin = 5
	attrTimeoutUDP    = 6

	svcFamily    = 1
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
	svcFWMark    = 5
	svcScheduler = 6
	svcFlags     = 7
	svcTimeout   = 8
	svcNetmask   = 9
	svcStats64   = 12 // from Linux 4.1 on
	statsConns   = 1

	destAddr     = 1
	destPort     = 2
	destMethod   = 3
	destWeight   = 4
	destUpper    = 5
	destLower    = 6
	destActive   = 7
	destInactive = 8
	destFamily   = 11

	flagHashed = 0x02 // set by the kernel
	methodMask = 0x07 // 0 is masquerading
)

// genl is a connection to ip_vs.
type genl struct {
	*client
	family uint16
}

// errNoIPVS is the error of a kernel without ip_vs.
var errNoIPVS = errors.New("the kernel has no ip_vs")

// dialIPVS connects to ip_vs. It returns errNoIPVS if the kernel lacks it.
func dialIPVS(ctx context.Context) (*genl, error) {
	s, err := dial(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	g := &genl{client: s}
	ask := message(unix.GENL_ID_CTRL, 0, []byte{unix.CTRL_CMD_GETFAMILY, 1, 0, 0}, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.CTRL_ATTR_FAMILY_NAME, "IPVS")
	})
	err = s.dump(ctx, ask, genlHead, func() {}, func(body []byte) {
		attributes(body[genlHead:], func(kind uint16, value []byte) {
			if kind == unix.CTRL_ATTR_FAMILY_ID {
				g.family = binary.NativeEndian.Uint16(value)
			}
		})
	})
	if errors.Is(err, unix.ENOENT) {
		err = errNoIPVS
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return g, nil
}

// genlHead is the size of the header before the attributes.
const genlHead = unix.GENL_HDRLEN

func (g *genl) command(cmd uint8, flags uint16, write func(*netlink.AttributeEncoder)) netlink.Message {
	return message(g.family, flags, []byte{cmd, 1, 0, 0}, write)
}

// request returns the message for a request about virtual or real servers, or timeouts.
func (g *genl) request(r *request) netlink.Message {
	cmd := map[operation]uint8{
		addServer: cmdNewService, setServer: cmdSetService, removeServer: cmdDelService,
		addDest: cmdNewDest, setDest: cmdSetDest, removeDest: cmdDelDest, setTimeouts: cmdSetConfig,
	}[r.op]
	return g.command(cmd, 0, func(ae *netlink.AttributeEncoder) {
		if r.op == setTimeouts {
			ae.Uint32(attrTimeoutTCP, uint32(r.times.tcp/time.Second))
			ae.Uint32(attrTimeoutTCPFin, uint32(r.times.tcpFin/time.Second))
			ae.Uint32(attrTimeoutUDP, uint32(r.times.udp/time.Second))
			return
		}
		service(ae, r.server, r.op == addServer || r.op == setServer)
		if r.dest != nil {
			nested(ae, attrDest, func(ae *netlink.AttributeEncoder) {
				ae.Bytes(destAddr, r.dest.AddrPort.Addr().AsSlice())
				netUint16(ae, destPort, r.dest.AddrPort.Port())
				if r.op == removeDest {
					return
				}
				ae.Uint32(destMethod, 0)
				ae.Uint32(destWeight, r.dest.Weight)
				ae.Uint32(destUpper, 0)
				ae.Uint32(destLower, 0)
			})
		}
	})
}

func addressFamily(a netip.Addr) uint16 {
	return ir.Pick[uint16](ir.FamilyOf(a), unix.AF_INET, unix.AF_INET6)
}

func service(ae *netlink.AttributeEncoder, v *rules.VirtualServer, whole bool) {
	nested(ae, attrService, func(ae *netlink.AttributeEncoder) {
		ae.Uint16(svcFamily, addressFamily(v.Key.Addr))
		ae.Uint16(svcProtocol, uint16(v.Key.Protocol))
		ae.Bytes(svcAddr, v.Key.Addr.AsSlice())
		netUint16(ae, svcPort, v.Key.Port)
		if !whole {
			return
		}
		ae.String(svcScheduler, v.Scheduler)
		flags := binary.NativeEndian.AppendUint32(nil, uint32(v.Flags))
		ae.Bytes(svcFlags, binary.NativeEndian.AppendUint32(flags, ^uint32(0)))
		ae.Uint32(svcTimeout, uint32(v.Timeout/time.Second))
		ae.Uint32(svcNetmask, netmask(v.Key.Addr))
	})
}

// netmask returns the netmask of a single address, as the kernel encodes it: the mask for IPv4, the
// prefix length for IPv6.
func netmask(a netip.Addr) uint32 { return ir.Pick[uint32](ir.FamilyOf(a), 0xffffffff, 128) }

// servers returns the virtual servers of a family without their real servers. Those for packet
// marks are ignored.
func (g *genl) servers(ctx context.Context, f ir.Family) (all []*server, err error) {
	err = g.dump(ctx, g.command(cmdGetService, unix.NLM_F_DUMP, nil), genlHead,
		func() { all = nil },
		func(body []byte) {
			if v := parseServer(body); v != nil && f.Has(v.Key.Addr) {
				all = append(all, v)
			}
		})
	return all, wrap("virtual servers", err)
}

func parseServer(body []byte) (v *server) {
	attributes(body[genlHead:], func(kind uint16, nested []byte) {
		if kind != attrService {
			return
		}
		s := &server{}
		var family uint16
		var addr []byte
		var mask uint32
		attributes(nested, func(kind uint16, value []byte) {
			switch kind {
			case svcFamily:
				family = binary.NativeEndian.Uint16(value)
			case svcProtocol:
				s.Key.Protocol = ir.Protocol(binary.NativeEndian.Uint16(value))
			case svcAddr:
				addr = value
			case svcPort:
				s.Key.Port = binary.BigEndian.Uint16(value)
			case svcScheduler:
				s.Scheduler = text(value)
			case svcFlags:
				s.Flags = rules.Flags(binary.NativeEndian.Uint32(value)) &^ flagHashed
			case svcTimeout:
				s.Timeout = time.Duration(binary.NativeEndian.Uint32(value)) * time.Second
			case svcNetmask:
				mask = binary.NativeEndian.Uint32(value)
			case svcStats64:
				attributes(value, func(kind uint16, n []byte) {
					if kind == statsConns {
						s.conns = binary.NativeEndian.Uint64(n)
					}
				})
			}
		})
		if s.Key.Addr = address(addr, family); !s.Key.Addr.IsValid() {
			return
		}
		if s.Flags&rules.Persistent == 0 {
			s.Timeout = 0 // unused
		}
		s.singleAddress = mask == netmask(s.Key.Addr)
		v = s
	})
	return v
}

// address decodes an address. The kernel sends 16 bytes in either family.
func address(b []byte, family uint16) netip.Addr {
	switch {
	case family == unix.AF_INET && len(b) >= 4:
		return netip.AddrFrom4([4]byte(b[:4]))
	case family == unix.AF_INET6 && len(b) >= 16:
		return netip.AddrFrom16([16]byte(b[:16]))
	}
	return netip.Addr{}
}

func text(value []byte) string { return strings.TrimRight(string(value), "\x00") }

// dests returns the real servers of a virtual server, or none if that does not exist.
func (g *genl) dests(ctx context.Context, key ir.Match) (all map[netip.AddrPort]dest, err error) {
	ask := g.command(cmdGetDest, unix.NLM_F_DUMP, func(ae *netlink.AttributeEncoder) {
		service(ae, &rules.VirtualServer{Key: key}, false)
	})
	err = g.dump(ctx, ask, genlHead,
		func() { all = map[netip.AddrPort]dest{} },
		func(body []byte) {
			if to, d := parseDest(body, addressFamily(key.Addr)); to.IsValid() {
				all[to] = d
			}
		})
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return all, wrap("real servers of "+key.String(), err)
}

func parseDest(body []byte, family uint16) (to netip.AddrPort, d dest) {
	attributes(body[genlHead:], func(kind uint16, nested []byte) {
		if kind != attrDest {
			return
		}
		var addr []byte
		var port uint16
		d.standard = true
		attributes(nested, func(kind uint16, value []byte) {
			number := func() uint32 { return binary.NativeEndian.Uint32(value) }
			switch kind {
			case destAddr:
				addr = value
			case destPort:
				port = binary.BigEndian.Uint16(value)
			case destMethod:
				d.standard = d.standard && number()&methodMask == 0
			case destUpper, destLower:
				d.standard = d.standard && number() == 0
			case destWeight:
				d.weight = number()
			case destActive, destInactive:
				d.conns += number()
			case destFamily:
				family = binary.NativeEndian.Uint16(value)
			}
		})
		to = netip.AddrPortFrom(address(addr, family), port)
	})
	return to, d
}

// timeouts reads the timeouts of the connection table.
func (g *genl) timeouts(ctx context.Context) (t timeouts, err error) {
	err = g.dump(ctx, g.command(cmdGetConfig, 0, nil), genlHead, func() {}, func(body []byte) {
		attributes(body[genlHead:], func(kind uint16, value []byte) {
			if len(value) < 4 {
				return
			}
			seconds := time.Duration(binary.NativeEndian.Uint32(value)) * time.Second
			switch kind {
			case attrTimeoutTCP:
				t.tcp = seconds
			case attrTimeoutTCPFin:
				t.tcpFin = seconds
			case attrTimeoutUDP:
				t.udp = seconds
			}
		})
	})
	return t, wrap("timeouts of ipvs", err)
}

// scheduler checks whether the kernel has a scheduler, which may load its module. It requests an
// invalid virtual server: the kernel checks the scheduler first, and then rejects the netmask.
func (g *genl) scheduler(ctx context.Context, name string) error {
	err := g.send(ctx, g.command(cmdNewService, 0, func(ae *netlink.AttributeEncoder) {
		nested(ae, attrService, func(ae *netlink.AttributeEncoder) {
			ae.Uint16(svcFamily, unix.AF_INET6)
			ae.Uint16(svcProtocol, unix.IPPROTO_TCP)
			ae.Bytes(svcAddr, netip.MustParseAddr("2001:db8::1").AsSlice())
			netUint16(ae, svcPort, 9)
			ae.String(svcScheduler, name)
			ae.Bytes(svcFlags, make([]byte, 8))
			ae.Uint32(svcTimeout, 0)
			ae.Uint32(svcNetmask, 0)
		})
	}))
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("ipvs.scheduler: the kernel has no scheduler %q: modprobe ip_vs_%s", name, name)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EAFNOSUPPORT): // it exists; or there is no IPv6, which adding a virtual server reports
		return nil
	}
	return wrap("ipvs.scheduler "+name, err)
}
