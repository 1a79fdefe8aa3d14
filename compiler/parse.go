package compiler

import (
	"net/netip"
	"strconv"

	"github.com/proxyc/proxyc/compiler/inet"
)

// parseAddr reads an IP address as the API does (SNAP-20); IPv4-mapped IPv6 is IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	a, ok := inet.ParseAddr(s)
	return a.Unmap(), ok
}

// number is a valid port number, or not.
func number(n int32) (uint16, bool) { return uint16(n), n > 0 && n <= 65535 }

// counted gives "1 thing" or "5 things".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// list gives the elements of a list field their names: ports[0], ports[1], …
// The first ones are made once, as they are needed for every object.
type list struct {
	before, after string
	made          []string
}

// newList prepares n names, "before0after", "before1after", …
func newList(before, after string, n int) list {
	l := list{before: before, after: after}
	for i := range n {
		l.made = append(l.made, l.name(i))
	}
	return l
}

func (l *list) name(i int) string { return l.before + strconv.Itoa(i) + l.after }

// at names element i.
func (l *list) at(i int) string {
	if i < len(l.made) {
		return l.made[i]
	}
	return l.name(i)
}
