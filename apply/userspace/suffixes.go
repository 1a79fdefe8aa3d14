package userspace

import (
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/proxyc/proxyc/ir"
)

// dnsPort is the name of service ports that use DNS (USR-21).
const dnsPort = "dns"

// maxLookups bounds the pending queries of a client. The oldest query above it, which may never be
// answered, receives the server's reply unchanged.
const maxLookups = 64

// lookups are the pending queries of one client of a DNS service. If the server replies with an
// error, the query is repeated with each suffix. The client receives the last reply, under the name
// in its query. This is a search list for clients that have none.
type lookups struct {
	suffixes []string

	mu      sync.Mutex
	pending map[uint16]*lookup // by query ID
	order   []uint16           // query IDs, oldest first
}

// lookup is a pending query.
type lookup struct {
	message  dnsmessage.Message // from the client
	name     string
	datagram []byte // last query that was sent
	tried    int    // index of its suffix
}

// query returns the datagram to send to the server for one from the client.
func (s *lookups) query(datagram []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(datagram) != nil || m.Response || !isAddressQuery(&m) {
		return datagram
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.pending[m.ID]; before != nil && before.message.Questions[0] == m.Questions[0] {
		return before.datagram // the client repeats a lost query
	}
	l := &lookup{message: m, name: m.Questions[0].Name.String(), tried: -1}
	if !l.next(s.suffixes) {
		return datagram
	}
	s.remove(m.ID)
	if len(s.order) == maxLookups {
		s.remove(s.order[0])
	}
	ir.SetIn(&s.pending, m.ID, l)
	s.order = append(s.order, m.ID)
	return l.datagram
}

// remove removes the lookup with an ID, if it exists.
func (s *lookups) remove(id uint16) {
	if s.pending[id] != nil {
		delete(s.pending, id)
		s.order = slices.DeleteFunc(s.order, func(other uint16) bool { return other == id })
	}
}

// reply processes a reply from the server. It returns either the datagram for the client, or the
// next query for the server.
func (s *lookups) reply(datagram []byte) (client, server []byte) {
	var m dnsmessage.Message
	if m.Unpack(datagram) != nil || !m.Response || len(m.Questions) != 1 {
		return datagram, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.pending[m.ID]
	if l == nil || !l.matches(&m, s.suffixes) {
		return datagram, nil
	}
	if m.RCode != dnsmessage.RCodeSuccess && l.next(s.suffixes) {
		return nil, l.datagram
	}
	s.remove(m.ID)
	if s.suffixes[l.tried] == "" {
		return datagram, nil
	}
	asked, tried := l.message.Questions[0].Name, m.Questions[0].Name
	m.Questions[0].Name = asked
	for i := range m.Answers {
		if h := &m.Answers[i].Header; strings.EqualFold(h.Name.String(), tried.String()) {
			h.Name = asked
		}
	}
	renamed, err := m.Pack()
	if err != nil {
		return datagram, nil
	}
	return renamed, nil
}

// isAddressQuery reports whether a message consists of a single address query.
func isAddressQuery(m *dnsmessage.Message) bool {
	if len(m.Questions) != 1 || len(m.Answers)+len(m.Authorities)+len(m.Additionals) != 0 {
		return false
	}
	q := &m.Questions[0]
	return q.Class == dnsmessage.ClassINET && (q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA)
}

// next selects the next suffix that results in a valid name; false if there is none.
func (l *lookup) next(suffixes []string) bool {
	for i := l.tried + 1; i < len(suffixes); i++ {
		name, err := dnsmessage.NewName(appendSuffix(l.name, suffixes[i]))
		if err != nil {
			continue
		}
		m := l.message
		m.Questions = []dnsmessage.Question{m.Questions[0]}
		m.Questions[0].Name = name
		if datagram, err := m.Pack(); err == nil {
			l.datagram, l.tried = datagram, i
			return true
		}
	}
	return false
}

// matches reports whether a reply is for the last query.
func (l *lookup) matches(m *dnsmessage.Message, suffixes []string) bool {
	return m.Questions[0].Type == l.message.Questions[0].Type &&
		strings.EqualFold(m.Questions[0].Name.String(), appendSuffix(l.name, suffixes[l.tried]))
}

// appendSuffix appends a suffix to a name that ends with a dot.
func appendSuffix(name, suffix string) string {
	if suffix == "" {
		return name
	}
	return strings.TrimSuffix(name, ".") + "." + suffix + "."
}
