package userspace

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/proxyc/proxyc/ir"
)

// maxDatagram is the maximum size of a UDP datagram.
const maxDatagram = 65535

// datagrams are buffers for one datagram each. Waiting readers hold none.
var datagrams = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// udpSocket is the socket of a UDP listener, with its sessions.
type udpSocket struct {
	*net.UDPConn
	listener *listener
	mu       sync.Mutex
	sessions map[udpClient]*session
}

// udpClient identifies a client: its address, and the node address that it sends to, which replies
// must come from.
type udpClient struct {
	from netip.AddrPort
	at   netip.Addr // invalid if the system does not report it
}

// session is a client's socket to its backend.
type session struct {
	client  udpClient
	backend netip.AddrPort
	conn    *net.UDPConn
	lookups *lookups // nil unless the port uses DNS and there are suffixes
	began   time.Time
	last    atomic.Int64 // last datagram of the client or the backend, in nanoseconds since began
}

// touch records a datagram of the client or the backend. It uses the monotonic clock, since the
// wall clock may be set.
func (one *session) touch() { one.last.Store(int64(time.Since(one.began))) }

// expiry returns when the session expires without further datagrams.
func (one *session) expiry(idle time.Duration) time.Time {
	return one.began.Add(time.Duration(one.last.Load()) + idle)
}

// listenUDP opens a UDP listener.
func (l *listener) listenUDP(at netip.AddrPort) (serve func(), err error) {
	conn, err := net.ListenUDP(network(l.key), net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	if at.Addr().IsUnspecified() {
		// Otherwise the kernel would select the source address of replies, which may differ from the
		// address that the client sent to. If this is not supported, that has to suffice.
		if l.key.Family == ir.IPv6 {
			err = ipv6.NewPacketConn(conn).SetControlMessage(ipv6.FlagDst, true)
		} else {
			err = ipv4.NewPacketConn(conn).SetControlMessage(ipv4.FlagDst, true)
		}
		if log := l.proxy.Log; err != nil && log != nil {
			log.Debug("the destination addresses of datagrams are unknown", "servicePort", l.key.Port.String(), "err", err)
		}
	}
	s := &udpSocket{UDPConn: conn, listener: l, sessions: map[udpClient]*session{}}
	l.socket, l.at, l.changed = s, netip.AddrPortFrom(at.Addr(), conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()), s.endRemoved
	return s.serve, nil
}

// suspendUDP replaces the listener's socket by one that receives nothing, or the reverse.
func (l *listener) suspendUDP(on bool) error {
	l.socket.Close()
	if on {
		// Connect the socket to an address that sends nothing. The kernel then rejects all other clients.
		to := netip.AddrPortFrom(l.at.Addr(), discard)
		if l.at.Addr().IsUnspecified() {
			to = netip.AddrPortFrom(l.key.Family.Loopback().Addr().Next(), discard)
			if l.key.Family == ir.IPv6 {
				to = netip.AddrPortFrom(netip.IPv6Loopback(), discard)
			}
		}
		conn, err := net.DialUDP(network(l.key), net.UDPAddrFromAddrPort(l.at), net.UDPAddrFromAddrPort(to))
		if err != nil { // listen again, and drop datagrams
			serve, again := l.listenUDP(l.at)
			if again != nil {
				return fmt.Errorf("%w: %w; %w", errClosed, err, again)
			}
			l.proxy.work.Go(serve)
			return err
		}
		l.socket, l.changed = conn, nil
		return nil
	}
	serve, err := l.listenUDP(l.at)
	if err != nil {
		return err
	}
	l.proxy.work.Go(serve)
	return nil
}

// discard is the port of the discard protocol, which never sends anything (RFC 863).
const discard = 9

// sentTo returns the destination address in a control message.
func (s *udpSocket) sentTo(oob []byte) (at netip.Addr) {
	var v4 ipv4.ControlMessage
	var v6 ipv6.ControlMessage
	switch f := s.listener.key.Family; {
	case len(oob) == 0:
	case f == ir.IPv6 && v6.Parse(oob) == nil:
		at, _ = netip.AddrFromSlice(v6.Dst)
	case f == ir.IPv4 && v4.Parse(oob) == nil:
		at, _ = netip.AddrFromSlice(v4.Dst)
	}
	return at.Unmap()
}

// sendFrom returns the control message that sets the source address.
func (s *udpSocket) sendFrom(at netip.Addr) []byte {
	switch {
	case !at.IsValid():
		return nil
	case s.listener.key.Family == ir.IPv6:
		return (&ipv6.ControlMessage{Src: at.AsSlice()}).Marshal()
	}
	return (&ipv4.ControlMessage{Src: at.AsSlice()}).Marshal()
}

// serve forwards datagrams of clients to backends until the socket is closed.
func (s *udpSocket) serve() {
	oob := make([]byte, 128)
	for {
		if err := readable(s.UDPConn); errors.Is(err, net.ErrClosed) {
			return
		}
		buffer := datagrams.Get().(*[maxDatagram]byte)
		n, control, _, from, err := s.ReadMsgUDPAddrPort(buffer[:], oob)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // an ICMP error about a reply, which does not matter here
		case !s.forward(udpClient{netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), s.sentTo(oob[:control])}, buffer[:n]):
			s.listener.counts.dropped.Add(1)
		}
		datagrams.Put(buffer)
	}
}

// forward sends a datagram to the client's backend. It returns false if there is none.
func (s *udpSocket) forward(from udpClient, datagram []byte) bool {
	for range 2 { // retry once if the session's backend has just failed
		one := s.session(from)
		if one == nil {
			return false
		}
		one.touch()
		send := datagram
		if one.lookups != nil {
			send = one.lookups.query(datagram)
		}
		if _, err := one.conn.Write(send); err == nil {
			return true
		}
		s.end(one)
	}
	return false
}

// session returns the client's session, or a new one. It returns nil if there is no backend, or too
// many clients.
func (s *udpSocket) session(from udpClient) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.sessions[from]; one != nil {
		return one
	}
	select {
	case <-s.listener.closed:
		return nil
	default:
	}
	if p := s.listener.proxy; p.sessions.Add(1) > int64(p.Sessions) {
		p.sessions.Add(-1)
		p.warnings.warn("the limit of UDP clients is reached: datagrams of other clients are dropped", "limit", p.Sessions, "servicePort", s.listener.key.Port.String())
		return nil
	}
	one := s.connect(from)
	if one == nil {
		s.listener.proxy.sessions.Add(-1)
		return nil
	}
	s.sessions[from] = one
	s.listener.counts.accepted.Add(1)
	s.listener.counts.clients.Add(1)
	s.listener.proxy.work.Go(func() { s.answer(one) })
	return one
}

// connect creates a session with the next backend.
func (s *udpSocket) connect(from udpClient) *session {
	to, ok := s.listener.balancer.pick(from.from.Addr(), time.Now(), false)
	if !ok {
		return nil
	}
	conn, err := net.DialUDP(network(s.listener.key), nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		s.listener.counts.dialFailures.Add(1)
		s.listener.proxy.warnings.warn("no socket for a UDP client", "servicePort", s.listener.key.Port.String(), "backend", to.String(), "err", err)
		return nil
	}
	one := &session{client: from, backend: to, conn: conn, began: time.Now()}
	if suffixes := s.listener.proxy.Suffixes; len(suffixes) > 0 && s.listener.key.Port.Port == dnsPort {
		one.lookups = &lookups{suffixes: suffixes}
	}
	return one
}

// answer forwards datagrams from the backend to the client, until the session expires or the
// backend rejects datagrams.
func (s *udpSocket) answer(one *session) {
	defer s.listener.proxy.sessions.Add(-1)
	defer s.listener.counts.clients.Add(-1)
	defer s.end(one)
	from := s.sendFrom(one.client.at)
	for {
		one.conn.SetReadDeadline(one.expiry(time.Duration(s.listener.proxy.idle.Load())))
		err := readable(one.conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if time.Now().Before(one.expiry(time.Duration(s.listener.proxy.idle.Load()))) {
				continue // the client has sent a datagram
			}
			return
		}
		if err != nil {
			return
		}
		buffer := datagrams.Get().(*[maxDatagram]byte)
		n, err := one.conn.Read(buffer[:])
		if err == nil {
			one.touch()
			client, server := buffer[:n], []byte(nil)
			if one.lookups != nil {
				client, server = one.lookups.reply(client)
			}
			if server != nil {
				_, err = one.conn.Write(server)
			} else {
				_, _, err = s.WriteMsgUDPAddrPort(client, from, one.client.from)
			}
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		datagrams.Put(buffer)
		if err != nil {
			return
		}
	}
}

// end removes a session. The client's next datagram starts another.
func (s *udpSocket) end(one *session) {
	s.mu.Lock()
	if s.sessions[one.client] == one {
		delete(s.sessions, one.client)
	}
	s.mu.Unlock()
	one.conn.Close()
}

// endRemoved ends the sessions of removed backends.
func (s *udpSocket) endRemoved() {
	s.each(func(one *session) {
		if !s.listener.balancer.has(one.backend) {
			s.end(one)
		}
	})
}

// Close closes the socket and ends its sessions.
func (s *udpSocket) Close() error {
	err := s.UDPConn.Close()
	s.each(s.end)
	return err
}

func (s *udpSocket) each(do func(*session)) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	for _, one := range all {
		do(one)
	}
}
