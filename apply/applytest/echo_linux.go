package applytest

import (
	"bufio"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// echoPorts are the ports of the echo servers, for TCP, UDP and SCTP.
var echoPorts = []uint16{53, 80, 443, 5353, 8080, 8081, 9090}

// An Echo replies to queries in one namespace, on every address, with an [Answer].
type Echo struct {
	closers []io.Closer
}

// ServeEcho starts the echo servers of a namespace, in both families.
func (ns *Namespace) ServeEcho() (*Echo, error) {
	e := &Echo{}
	err := ns.Do(func() error {
		for _, port := range echoPorts {
			if err := e.listen(port); err != nil {
				return err
			}
		}
		return e.listenSCTP()
	})
	if err != nil {
		e.Close()
		return nil, wrap(err, "echo servers in %s", ns.Name)
	}
	return e, nil
}

// Close stops the servers. Open connections end when their clients close them.
func (e *Echo) Close() error {
	var errs []error
	for _, c := range e.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// listen opens the TCP and UDP sockets of one port. Each family has its own, since a dual-stack
// socket reports IPv4 peers as mapped addresses.
func (e *Echo) listen(port uint16) error {
	for _, family := range []string{"4", "6"} {
		addr := ":" + strconv.Itoa(int(port))
		tcp, err := net.Listen("tcp"+family, addr)
		if err != nil {
			return err
		}
		e.closers = append(e.closers, tcp)
		go serveTCP(tcp)

		udp, err := net.ListenPacket("udp"+family, addr)
		if err != nil {
			return err
		}
		e.closers = append(e.closers, udp)
		conn, err := newPacketConn(udp, family)
		if err != nil {
			return err
		}
		go serveUDP(conn, port)
	}
	return nil
}

func (e *Echo) listenSCTP() error {
	for _, family := range []string{"4", "6"} {
		raw, err := net.ListenPacket("ip"+family+":sctp", "")
		if err != nil {
			return err
		}
		e.closers = append(e.closers, raw)
		conn, err := newPacketConn(raw, family)
		if err != nil {
			return err
		}
		go serveSCTP(conn)
	}
	return nil
}

func serveTCP(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			answer := Answer{Server: AddrPort(conn.LocalAddr()), Client: AddrPort(conn.RemoteAddr())}
			for r := bufio.NewReader(conn); ; {
				if _, err := r.ReadString('\n'); err != nil {
					return
				}
				if _, err := io.WriteString(conn, answer.String()+"\n"); err != nil {
					return
				}
			}
		}()
	}
}

func serveUDP(conn packetConn, port uint16) {
	for {
		_, at, peer, err := conn.read()
		if err != nil {
			return
		}
		answer := Answer{Server: netip.AddrPortFrom(at, port), Client: AddrPort(peer)}
		conn.write([]byte(answer.String()), at, peer)
	}
}

func serveSCTP(conn packetConn) {
	for {
		b, at, peer, err := conn.read()
		if err != nil {
			return
		}
		init, ok := parseSCTP(b)
		if !ok || init.chunk != sctpInit {
			continue
		}
		reply := sctpPacket{source: init.dest, dest: init.source, tag: init.initiate, chunk: sctpAbort}
		if slices.Contains(echoPorts, init.dest) {
			client, _ := netip.AddrFromSlice(peer.(*net.IPAddr).IP)
			answer := Answer{
				Server: netip.AddrPortFrom(at, init.dest),
				Client: netip.AddrPortFrom(client.Unmap(), init.source),
			}
			reply.chunk, reply.initiate, reply.cookie = sctpInitAck, rand.Uint32()|1, []byte(answer.String())
		}
		conn.write(reply.marshal(), at, peer)
	}
}

// AddrPort returns the address and port of a TCP or UDP address; IPv4 without its form in IPv6.
func AddrPort(a net.Addr) netip.AddrPort {
	p := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// A packetConn is a socket that reports the destination address of each packet, and replies from
// it.
type packetConn interface {
	read() (b []byte, at netip.Addr, peer net.Addr, err error)
	write(b []byte, from netip.Addr, peer net.Addr) error
}

func newPacketConn(c net.PacketConn, family string) (packetConn, error) {
	if family == "4" {
		conn := ipv4.NewPacketConn(c)
		return packetConn4{conn}, conn.SetControlMessage(ipv4.FlagDst, true)
	}
	conn := ipv6.NewPacketConn(c)
	return packetConn6{conn}, conn.SetControlMessage(ipv6.FlagDst, true)
}

type packetConn4 struct{ *ipv4.PacketConn }

func (c packetConn4) read() ([]byte, netip.Addr, net.Addr, error) {
	b := make([]byte, 2048)
	n, cm, peer, err := c.ReadFrom(b)
	if err != nil {
		return nil, netip.Addr{}, nil, err
	}
	at, _ := netip.AddrFromSlice(cm.Dst.To4())
	return b[:n], at, peer, nil
}

func (c packetConn4) write(b []byte, from netip.Addr, peer net.Addr) error {
	_, err := c.WriteTo(b, &ipv4.ControlMessage{Src: from.AsSlice()}, peer)
	return err
}

type packetConn6 struct{ *ipv6.PacketConn }

func (c packetConn6) read() ([]byte, netip.Addr, net.Addr, error) {
	b := make([]byte, 2048)
	n, cm, peer, err := c.ReadFrom(b)
	if err != nil {
		return nil, netip.Addr{}, nil, err
	}
	at, _ := netip.AddrFromSlice(cm.Dst)
	return b[:n], at, peer, nil
}

func (c packetConn6) write(b []byte, from netip.Addr, peer net.Addr) error {
	_, err := c.WriteTo(b, &ipv6.ControlMessage{Src: from.AsSlice()}, peer)
	return err
}
