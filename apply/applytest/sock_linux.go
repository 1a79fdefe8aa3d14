package applytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ipNet converts p for packages net and netlink.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// Dial opens a TCP or UDP connection ("tcp", "udp") from the namespace. With a zero Addr or port of
// from, the kernel selects it. The connection may be used by any goroutine.
func (ns *Namespace) Dial(ctx context.Context, network string, from, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{FallbackDelay: -1, KeepAlive: -1}
	if network == "tcp" && from.Port() != 0 {
		d.Control = reuseAddr // the port may still be in TIME-WAIT from an earlier try
	}
	d.SetMultipathTCP(false)
	local := from
	if !local.Addr().IsValid() && local.Port() != 0 {
		local = netip.AddrPortFrom(unspecified(to.Addr()), from.Port())
	}
	if local.Addr().IsValid() {
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(local)
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(local)
		}
	}
	for {
		conn, err := ns.dial(ctx, &d, network, to)
		if !errors.Is(err, unix.EADDRINUSE) || !pause(ctx, time.Millisecond) {
			return conn, err
		}
		// A child process shares every open socket until its exec, so a port that was closed here may
		// still be in use.
	}
}

func (ns *Namespace) dial(ctx context.Context, d *net.Dialer, network string, to netip.AddrPort) (conn net.Conn, err error) {
	err = ns.Do(func() (err error) {
		// A literal address is dialed on this goroutine, and so on this thread.
		conn, err = d.DialContext(ctx, network, to.String())
		return err
	})
	return conn, err
}

// Get sends a request to an HTTP server on 127.0.0.1 of the namespace.
func (ns *Namespace) Get(ctx context.Context, port int, path string) (code int, body string, err error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			err = ns.Do(func() (err error) {
				conn, err = (&net.Dialer{}).DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
				return err
			})
			return conn, err
		}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// pause waits, and reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// reuseAddr must not be used for UDP: two sockets would share a port, and one could receive the
// other's reply.
func reuseAddr(_, _ string, c syscall.RawConn) error {
	var err error
	cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(cerr, err)
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Failure returns the reason of a failed try, or the error's text if it is unknown.
func Failure(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Refused
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, io.EOF):
		return WasReset
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES):
		return Unreachable
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, unix.ETIMEDOUT):
		return TimedOut
	}
	return err.Error()
}

// An Answer is the reply of an echo server: its own address, and the peer's.
type Answer struct {
	Server, Client netip.AddrPort
	// Resent is the number of segments that the client retransmitted before the reply in a
	// [Namespace.Try] over TCP, except those that the server received twice.
	Resent int
}

func (a Answer) String() string { return a.Server.String() + " " + a.Client.String() }

func parseAnswer(text string) (a Answer, err error) {
	var server, client string
	if _, err := fmt.Sscan(text, &server, &client); err != nil {
		return a, fmt.Errorf("answer %q: %w", text, err)
	}
	a.Server, err = netip.ParseAddrPort(server)
	if err == nil {
		a.Client, err = netip.ParseAddrPort(client)
	}
	return a, err
}

// Query sends a query over an open TCP or UDP connection to an echo server, and reads the reply.
func Query(conn net.Conn, timeout time.Duration) (Answer, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return Answer{}, err
	}
	if err := send(conn, []byte("?\n")); err != nil {
		return Answer{}, err
	}
	return ReadAnswer(conn)
}

// ReadAnswer reads the reply of an echo server: one line that fits into a segment, over TCP and
// UDP.
func ReadAnswer(conn net.Conn) (Answer, error) {
	buf := make([]byte, 256)
	n, err := conn.Read(buf)
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(string(buf[:n]))
}

// send writes a query. On the node itself the sender gets EPERM when a rule drops its packet. Only
// the following read shows whether the rule also rejected it.
func send(w io.Writer, question []byte) error {
	if _, err := w.Write(question); !errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}

// Try makes one try from the namespace to an echo server. Over TCP and UDP it connects, sends a
// query and closes; over SCTP it sends an INIT. proto is "tcp", "udp" or "sctp"; from is as in
// [Namespace.Dial].
func (ns *Namespace) Try(proto string, from, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	if proto == "sctp" {
		return ns.trySCTP(from, to, timeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := ns.Dial(ctx, proto, from, to)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	a, err := Query(conn, timeout)
	if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
		a.Resent, err = resent(tcp)
	}
	return a, err
}

func resent(conn *net.TCPConn) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = max(0, int(info.Total_retrans)-int(info.Dsack_dups))
		}
	})
	return n, errors.Join(cerr, err)
}
