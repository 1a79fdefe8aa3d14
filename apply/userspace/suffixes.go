package userspace

import (
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsPort is the name of a service port whose datagrams are those of DNS (USR-21).
const dnsPort = "dns"

// maxLookups is how many questions of a client are under way at once. Of more the
// oldest, whose answer may never come, gets what the server says to it.
const maxLookups = 64

// lookups are the questions of one client of a DNS service. A name that the server
// answers with an error is asked for again with each suffix, and the client gets
// the last answer, under the name that it asked for: a search list for clients that have none
// themselves.
type lookups struct {
	suffixes []string

	mu    sync.Mutex
	asked map[uint16]*lookup // by the number that the client gave
	order []uint16           // the numbers, the oldest first
}

// lookup is a question of a client.
type lookup struct {
	message  dnsmessage.Message // as the client sent it
	name     string
	datagram []byte // as it was sent last
	tried    int    // index of the suffix with which it was
}

// ask takes what a client sends, and returns what the server is to be sent.
func (s *lookups) ask(datagram []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(datagram) != nil || m.Response || !plain(&m) {
		return datagram
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.asked[m.ID]; before != nil && before.message.Questions[0] == m.Questions[0] {
		return before.datagram // it was lost
	}
	l := &lookup{message: m, name: m.Questions[0].Name.String(), tried: -1}
	if !l.next(s.suffixes) {
		return datagram
	}
	s.forget(m.ID)
	if len(s.order) == maxLookups {
		s.forget(s.order[0])
	}
	if s.asked == nil {
		s.asked = map[uint16]*lookup{}
	}
	s.asked[m.ID], s.order = l, append(s.order, m.ID)
	return l.datagram
}

// forget ends a lookup, if there is one of that number.
func (s *lookups) forget(id uint16) {
	if s.asked[id] != nil {
		delete(s.asked, id)
		s.order = slices.DeleteFunc(s.order, func(other uint16) bool { return other == id })
	}
}

// answer takes what the server sends, and returns what the client is to be sent, or
// what the server is to be asked again.
func (s *lookups) answer(datagram []byte) (client, server []byte) {
	var m dnsmessage.Message
	if m.Unpack(datagram) != nil || !m.Response || len(m.Questions) != 1 {
		return datagram, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.asked[m.ID]
	if l == nil || !l.answeredBy(&m, s.suffixes) {
		return datagram, nil
	}
	if m.RCode != dnsmessage.RCodeSuccess && l.next(s.suffixes) {
		return nil, l.datagram
	}
	s.forget(m.ID)
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

// plain reports whether a message is one question for an address, and nothing else.
func plain(m *dnsmessage.Message) bool {
	if len(m.Questions) != 1 || len(m.Answers)+len(m.Authorities)+len(m.Additionals) != 0 {
		return false
	}
	q := &m.Questions[0]
	return q.Class == dnsmessage.ClassINET && (q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA)
}

// next turns to the next suffix with which the name is not too long; false: there is none.
func (l *lookup) next(suffixes []string) bool {
	for i := l.tried + 1; i < len(suffixes); i++ {
		name, err := dnsmessage.NewName(with(l.name, suffixes[i]))
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

// answeredBy reports whether an answer is to what was asked last.
func (l *lookup) answeredBy(m *dnsmessage.Message, suffixes []string) bool {
	return m.Questions[0].Type == l.message.Questions[0].Type &&
		strings.EqualFold(m.Questions[0].Name.String(), with(l.name, suffixes[l.tried]))
}

// with returns a name, which ends in a dot, with a suffix.
func with(name, suffix string) string {
	if suffix == "" {
		return name
	}
	return strings.TrimSuffix(name, ".") + "." + suffix + "."
}
