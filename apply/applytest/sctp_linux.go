package applytest

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SCTP is reduced to the first round trip of RFC 9260, over raw sockets: an INIT, and the INIT ACK
// or ABORT that answers it. A packet filter needs no more to translate and track an association. It
// also works if the kernel has no SCTP. The server's reply is in the state cookie.

const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpAbort   = 6

	sctpStateCookie = 7
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// An sctpPacket is a common header with a single chunk. tag is the verification tag. initiate is
// the tag that an INIT or INIT ACK announces for packets to its sender.
type sctpPacket struct {
	source, dest  uint16
	tag, initiate uint32
	chunk         byte
	cookie        []byte
}

func (p sctpPacket) marshal() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.source)
	b = binary.BigEndian.AppendUint16(b, p.dest)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0) // checksum

	chunk := []byte{p.chunk, 0, 0, 0} // type, flags, length
	if p.chunk != sctpAbort {
		chunk = binary.BigEndian.AppendUint32(chunk, p.initiate)
		chunk = binary.BigEndian.AppendUint32(chunk, 1<<16) // receiver window
		chunk = binary.BigEndian.AppendUint16(chunk, 1)     // outbound streams
		chunk = binary.BigEndian.AppendUint16(chunk, 1)     // inbound streams
		chunk = binary.BigEndian.AppendUint32(chunk, p.initiate)
	}
	if p.cookie != nil {
		chunk = binary.BigEndian.AppendUint16(chunk, sctpStateCookie)
		chunk = binary.BigEndian.AppendUint16(chunk, uint16(4+len(p.cookie)))
		chunk = append(chunk, p.cookie...)
	}
	binary.BigEndian.PutUint16(chunk[2:], uint16(len(chunk)))
	for len(chunk)%4 != 0 {
		chunk = append(chunk, 0)
	}
	b = append(b, chunk...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// parseSCTP parses a packet; ok is false unless marshal could have written it.
func parseSCTP(b []byte) (p sctpPacket, ok bool) {
	if len(b) < 16 {
		return p, false
	}
	p.source = binary.BigEndian.Uint16(b)
	p.dest = binary.BigEndian.Uint16(b[2:])
	p.tag = binary.BigEndian.Uint32(b[4:])
	p.chunk = b[12]
	if p.chunk == sctpAbort {
		return p, true
	}
	if p.chunk != sctpInit && p.chunk != sctpInitAck || len(b) < 32 {
		return p, false
	}
	p.initiate = binary.BigEndian.Uint32(b[16:])
	if b = b[32:]; len(b) >= 4 && binary.BigEndian.Uint16(b) == sctpStateCookie {
		if n := int(binary.BigEndian.Uint16(b[2:])); n >= 4 && n <= len(b) {
			p.cookie = b[4:n]
		}
	}
	return p, true
}

// trySCTP sends an INIT and waits for the answer.
func (ns *Namespace) trySCTP(from, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	f, err := ns.rawSCTP(to.Addr())
	if err != nil {
		return Answer{}, err
	}
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return Answer{}, err
	}
	// Only a connected raw socket receives ICMP errors.
	cerr := conn.Control(func(fd uintptr) {
		if from.Addr().IsValid() {
			err = unix.Bind(int(fd), sockaddr(from.Addr()))
		}
		err = errors.Join(err, unix.Connect(int(fd), sockaddr(to.Addr())))
	})
	if err := errors.Join(cerr, err); err != nil {
		return Answer{}, err
	}
	init := sctpPacket{source: from.Port(), dest: to.Port(), chunk: sctpInit, initiate: rand.Uint32() | 1}
	if init.source == 0 {
		init.source = uint16(32768 + ns.sctpPorts.Add(1)%28000) // no kernel keeps two tries from the same port
	}
	if err := f.SetDeadline(time.Now().Add(timeout)); err != nil {
		return Answer{}, err
	}
	if err := send(f, init.marshal()); err != nil {
		return Answer{}, err
	}
	buf := make([]byte, 2048)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return Answer{}, err
		}
		p, ok := parseSCTP(payload(to.Addr(), buf[:n]))
		// The raw socket receives all SCTP packets between the two addresses: those of other tries and,
		// on the node itself, those to the server.
		if !ok || p.source != to.Port() || p.dest != init.source || p.tag != init.initiate {
			continue
		}
		if p.chunk == sctpAbort {
			return Answer{}, unix.ECONNREFUSED
		}
		return parseAnswer(string(p.cookie))
	}
}

// rawSCTP opens a raw SCTP socket of the address's family, as a file with deadlines.
func (ns *Namespace) rawSCTP(like netip.Addr) (*os.File, error) {
	family := unix.AF_INET
	if like.Is6() {
		family = unix.AF_INET6
	}
	var fd int
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
		return err
	})
	if err != nil {
		return nil, wrap(err, "raw SCTP socket in %s", ns.Name)
	}
	return os.NewFile(uintptr(fd), "sctp"), nil
}

// payload returns the data after the IP header. Raw IPv4 sockets include the header; IPv6 ones do
// not.
func payload(like netip.Addr, b []byte) []byte {
	if !like.Is4() {
		return b
	}
	if len(b) < 20 || len(b) < int(b[0]&15)*4 {
		return nil
	}
	return b[int(b[0]&15)*4:]
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}
