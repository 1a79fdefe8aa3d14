package ipvs

import (
	"bufio"
	"io"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// WriteIPVS writes the virtual servers as input of ipvsadm -R.
func (r *Ruleset) WriteIPVS(w io.Writer) error {
	b := bufio.NewWriter(w)
	for i := range r.VirtualServers {
		v := &r.VirtualServers[i]
		_, _ = b.Write(v.append(b.AvailableBuffer()))
		for _, rs := range v.RealServers {
			_, _ = b.Write(rs.append(b.AvailableBuffer(), v.Key))
		}
	}
	return b.Flush()
}

// Command returns the ipvsadm options that create the virtual server.
func (v *VirtualServer) Command() string { return strings.TrimSuffix(string(v.append(nil)), "\n") }

// Command returns the ipvsadm options that create the real server in a virtual
// server.
func (s *RealServer) Command(of ir.Match) string {
	return strings.TrimSuffix(string(s.append(nil, of)), "\n")
}

func (v *VirtualServer) append(b []byte) []byte {
	b = append(appendService(append(b, "-A"...), v.Key), " -s "...)
	b = append(b, v.Scheduler...)
	if v.Flags&Persistent != 0 {
		b = append(b, " -p "...)
		b = strconv.AppendInt(b, int64(v.Timeout/time.Second), 10)
	}
	sep := " -b "
	for _, f := range [...]struct {
		flag Flags
		word string
	}{{Fallback, "-fallback"}, {SourceHash, "-port"}} {
		if v.Flags&f.flag != 0 {
			b = append(append(append(b, sep...), v.Scheduler...), f.word...)
			sep = ","
		}
	}
	return append(b, '\n')
}

func (s *RealServer) append(b []byte, key ir.Match) []byte {
	b = append(appendService(append(b, "-a"...), key), " -r "...)
	b = append(s.AddrPort.AppendTo(b), " -m -w "...)
	b = strconv.AppendUint(b, uint64(s.Weight), 10)
	return append(b, '\n')
}

func appendService(b []byte, key ir.Match) []byte {
	switch key.Protocol {
	case ir.UDP:
		b = append(b, " -u "...)
	case ir.SCTP:
		b = append(b, " --sctp-service "...)
	default:
		b = append(b, " -t "...)
	}
	return netip.AddrPortFrom(key.Addr, key.Port).AppendTo(b)
}

// Options of the sets. minMaxElem is kube-proxy's fixed limit, beyond which its
// sets are incomplete.
const (
	hashSize   = 1024
	minMaxElem = 65536
)

// MaxElem returns the capacity for a set of n elements: a power of two, so that
// it rarely changes.
func MaxElem(n int) int {
	return max(minMaxElem, 1<<bits.Len(uint(max(n, 1)-1)))
}

// WriteSets writes all sets as input of ipset restore. The input creates missing
// sets, and flushes and fills all of them.
func (r *Ruleset) WriteSets(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, s := range Sets() {
		name, elements := s.Name(r.Family), r.elements(s)
		_, _ = b.Write(s.appendCreate(b.AvailableBuffer(), r.Family, len(elements)))
		_, _ = b.WriteString("flush " + name + "\n")
		for i := range elements {
			line := append(append(b.AvailableBuffer(), "add "...), name...)
			line = elements[i].AppendTo(append(line, ' '))
			_, _ = b.Write(append(line, '\n'))
		}
	}
	return b.Flush()
}

func (s Set) appendCreate(b []byte, f ir.Family, n int) []byte {
	b = append(append(b, "create "...), s.Name(f)...)
	b = append(append(b, ' '), s.Type().String()...)
	if s.Type() == BitmapPort {
		return append(b, " range 0-65535\n"...)
	}
	b = append(b, ir.Pick(f, " family inet", " family inet6")...)
	b = strconv.AppendInt(append(b, " hashsize "...), hashSize, 10)
	b = strconv.AppendInt(append(b, " maxelem "...), int64(MaxElem(n)), 10)
	return append(b, '\n')
}

// AppendTo appends the element in ipset's notation: "10.96.0.10,tcp:80".
func (k ElementKey) AppendTo(b []byte) []byte {
	typ := k.Set.Type()
	if typ == BitmapPort {
		return strconv.AppendUint(b, uint64(k.Number), 10)
	}
	b = k.Addr.AppendTo(b)
	if typ == HashIP {
		return b
	}
	b = append(append(b, ','), k.Protocol.String()...)
	b = strconv.AppendUint(append(b, ':'), uint64(k.Number), 10)
	switch {
	case typ == HashIPPortIP:
		b = k.Source.Addr().AppendTo(append(b, ','))
	case typ == HashIPPortNet && k.Source.IsSingleIP():
		b = k.Source.Addr().AppendTo(append(b, ','))
	case typ == HashIPPortNet:
		b = k.Source.AppendTo(append(b, ','))
	}
	return b
}

// String is AppendTo as a string.
func (k ElementKey) String() string { return string(k.AppendTo(nil)) }

// WriteAddresses writes the addresses of ir.IPVSDevice, one per line:
// 10.96.0.10/32.
func (r *Ruleset) WriteAddresses(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, e := range r.Addresses() {
		line := append(e.Addr.AppendTo(b.AvailableBuffer()), '/')
		line = strconv.AppendInt(line, int64(e.Addr.BitLen()), 10)
		_, _ = b.Write(append(line, '\n'))
	}
	return b.Flush()
}

// WriteRules writes the iptables part as input of iptables-restore --noflush (or
// ip6tables-restore).
func (r *Ruleset) WriteRules(w io.Writer) error { return r.Rules.Write(w) }
