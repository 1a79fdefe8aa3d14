package nftables

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// purpose describes a message. It leads from a rejection to the Service.
type purpose struct {
	change   *change
	object   string // in errors
	set      *rules.Set
	count    int             // number of elements in the message
	elements []rules.Element // these elements; nil if there are too many to be held
	chain    *rules.Chain
	removal  bool // of an obsolete chain, set or object
	purge    bool // of entries of an affinity map
}

// maxElements is the maximum size in bytes of the elements in a message. Their attribute has a
// length of 16 bits.
const maxElements = 48 << 10

// batch collects the messages of a commit.
type batch struct {
	messages []conn.Message
	purposes []purpose // of each message
	lastSet  uint32
	free     []byte // remaining memory of the last chunk
	chunk    int    // how large the last piece of memory was made
}

// The messages of a batch are consecutive in a few chunks of memory, which are sent as they are. A
// second copy of a whole cluster's would be too large.
const (
	firstChunk = 1 << 10
	maxChunk   = 1 << 20
)

// alloc returns the memory of a message with its data. Its header is empty.
func (b *batch) alloc(data ...[]byte) []byte {
	n := codec.NetlinkHead
	for _, d := range data {
		n += codec.Align(len(d))
	}
	if n > len(b.free) {
		b.chunk = min(max(2*b.chunk, firstChunk), maxChunk)
		b.free = make([]byte, max(n, b.chunk))
	}
	raw := b.free[:n]
	b.free = b.free[n:]
	at := codec.NetlinkHead
	for _, d := range data {
		copy(raw[at:], d)
		at += codec.Align(len(d))
	}
	return raw
}

// stale is the entries to remove from affinity maps, by map.
type stale map[*rules.Set][]rules.Element

// typicalMessages is the number of messages for the change of one endpoint, in most cases.
const typicalMessages = 8

// newBatch turns a Plan into messages.
func newBatch(p *Plan, entries stale) *batch {
	b := &batch{messages: make([]conn.Message, 0, typicalMessages), purposes: make([]purpose, 0, typicalMessages)}
	for _, c := range ir.Present(p.families) {
		if !c.empty() {
			b.change(c, entries)
		}
	}
	return b
}

// change adds the messages of a change. See [change] for their order.
func (b *batch) change(c *change, entries stale) {
	b.table(c)
	b.declare(c)
	b.removeElements(c, entries)
	b.rules(c)
	for _, e := range c.sets.elements {
		if e.flush {
			e.added = e.all
		}
		b.elements(c, unix.NFT_MSG_NEWSETELEM, e.set, e.added, false)
	}
	if c.sets.load != nil {
		b.load(c)
	}
	b.remove(c)
}

func (b *batch) table(c *change) {
	if c.table.drop {
		b.add(c, unix.NFT_MSG_DELTABLE, codec.EncodeTable(rules.Table), purpose{object: "table"})
	}
	if c.table.create || c.table.drop {
		b.create(c, unix.NFT_MSG_NEWTABLE, codec.EncodeTableWith(rules.Table, c.table.flags), purpose{object: "table"})
	}
	if c.table.adopt {
		b.add(c, unix.NFT_MSG_NEWTABLE, codec.EncodeTableWith(rules.Table, c.table.flags), purpose{object: "table"})
	}
}

func (b *batch) declare(c *change) {
	for _, s := range c.sets.create {
		b.lastSet++
		b.create(c, unix.NFT_MSG_NEWSET, codec.EncodeSet(s, c.family, b.lastSet), purpose{object: "set " + s.Name, set: s})
		if s.Size > rules.MaxClients {
			b.resize(c, s)
		}
	}
	for _, r := range c.sets.resize {
		b.resize(c, r.set)
	}
	for _, ch := range c.chains.create {
		b.create(c, unix.NFT_MSG_NEWCHAIN, codec.EncodeChain(ch), purpose{object: "chain " + ch.Name, chain: ch})
	}
	for _, ch := range c.chains.policy {
		b.add(c, unix.NFT_MSG_NEWCHAIN, codec.EncodeChain(ch), purpose{object: "chain " + ch.Name, chain: ch})
	}
}

func (b *batch) removeElements(c *change, entries stale) {
	for _, e := range c.sets.elements {
		if e.flush {
			b.add(c, unix.NFT_MSG_DELSETELEM, codec.ElementsIn(e.set.Name), purpose{object: "set " + e.set.Name, set: e.set})
			continue
		}
		b.elements(c, unix.NFT_MSG_DELSETELEM, e.set, e.removed, false)
	}
	for s, gone := range entries {
		if c.owns(s) {
			b.elements(c, unix.NFT_MSG_DELSETELEM, s, gone, true)
		}
	}
}

func (b *batch) rules(c *change) {
	for _, chains := range [...][]*rules.Chain{c.chains.flush, c.chains.removed} {
		for _, ch := range chains {
			if len(ch.Rules) > 0 {
				b.add(c, unix.NFT_MSG_DELRULE, codec.RulesOf(ch.Name), purpose{object: "rules of chain " + ch.Name, chain: ch})
			}
		}
	}
	for _, ch := range c.chains.fill {
		for i := range ch.Rules {
			b.create(c, unix.NFT_MSG_NEWRULE, codec.EncodeRule(ch.Name, &ch.Rules[i], c.family),
				purpose{object: "chain " + ch.Name + ": " + ch.Rules[i].Text(c.family), chain: ch})
			b.messages[len(b.messages)-1].Append = true
		}
	}
}

// remove removes sets before chains and objects, since elements refer to these.
func (b *batch) remove(c *change) {
	for _, s := range c.sets.removed {
		b.add(c, unix.NFT_MSG_DELSET, codec.SetNamed(s.Name), purpose{object: "set " + s.Name, set: s, removal: true})
	}
	for _, ch := range c.chains.removed {
		b.add(c, unix.NFT_MSG_DELCHAIN, codec.ChainNamed(ch.Name), purpose{object: "chain " + ch.Name, chain: ch, removal: true})
	}
	for _, o := range c.table.removed {
		typ := uint16(unix.NFT_MSG_DELOBJ)
		if o.Kind == rules.Flowtable {
			typ = unix.NFT_MSG_DELFLOWTABLE
		}
		b.add(c, typ, codec.EncodeObject(o), purpose{object: o.Kind.String() + " " + o.Name, removal: true})
	}
	if c.table.kubeProxy {
		b.add(c, unix.NFT_MSG_DELTABLE, codec.EncodeTable(kubeProxyTable), purpose{object: "table " + kubeProxyTable})
	}
}

// resize sets the size of an existing set. It is not part of the declaration of a new one, since
// the kernel would then allocate memory for all elements. Kernels before 6.5 ignore it.
func (b *batch) resize(c *change, s *rules.Set) {
	b.lastSet++
	b.add(c, unix.NFT_MSG_NEWSET, codec.EncodeSize(s, c.family, b.lastSet), purpose{object: "size of set " + s.Name, set: s})
}

func (c *change) owns(s *rules.Set) bool {
	return slices.ContainsFunc(c.purge, func(p purge) bool { return p.set == s })
}

func (b *batch) add(c *change, typ uint16, attrs []byte, a purpose) {
	a.change = c
	b.messages = append(b.messages, conn.Message{Type: typ, Raw: b.alloc([]byte{codec.Family(c.family), 0, 0, 0}, attrs)})
	b.purposes = append(b.purposes, a)
}

func (b *batch) create(c *change, typ uint16, attrs []byte, a purpose) {
	b.add(c, typ, attrs, a)
	b.messages[len(b.messages)-1].Create = true
}

// elements adds the messages that add or remove elements.
func (b *batch) elements(c *change, typ uint16, s *rules.Set, elements []rules.Element, purge bool) {
	if len(elements) == 0 {
		return
	}
	l := elementWriter{purpose: purpose{change: c, object: "set " + s.Name, set: s, purge: purge}, typ: typ,
		data: make(codec.Builder, 0, min(maxElements+1024, 256+len(elements)*160))}
	for from := range elements {
		if l.add(&elements[from]); l.full() || from == len(elements)-1 {
			l.elements = elements[from+1-l.count : from+1]
			l.end(b)
		}
	}
}

// load adds all elements of the fixed sets for a Program. It holds the elements of one message per
// set only.
func (b *batch) load(c *change) {
	var lists [len(rules.Fragment{}.Elements)]elementWriter
	rules.LowerBare(c.sets.load, func(id rules.SetID, elements []rules.Element) bool {
		l := &lists[id]
		if l.set == nil {
			l.purpose = purpose{change: c, object: "set " + id.String(), set: id.Set()}
			l.typ = unix.NFT_MSG_NEWSETELEM
		}
		for i := range elements {
			if l.add(&elements[i]); l.full() {
				l.end(b)
			}
		}
		return true
	})
	for i := range lists {
		lists[i].end(b)
	}
}

// elementWriter builds messages with elements of one set. It reuses its buffer for the next
// message.
type elementWriter struct {
	purpose
	typ  uint16
	data codec.Builder
	list int // offset of the elements in data
}

func (l *elementWriter) add(e *rules.Element) {
	if l.count == 0 {
		l.data.Text(unix.NFTA_SET_ELEM_LIST_TABLE, rules.Table)
		l.data.Text(unix.NFTA_SET_ELEM_LIST_SET, l.set.Name)
		l.list = l.data.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	l.count++
	codec.AppendElement(&l.data, l.set, l.change.family, e, l.typ == unix.NFT_MSG_DELSETELEM)
}

func (l *elementWriter) full() bool { return len(l.data)-l.list >= maxElements }

// end adds the message to the batch, unless it is empty.
func (l *elementWriter) end(b *batch) {
	if l.count == 0 {
		return
	}
	l.data.Close(l.list)
	b.add(l.change, l.typ, l.data, l.purpose)
	b.messages[len(b.messages)-1].Create = l.typ == unix.NFT_MSG_NEWSETELEM
	l.count, l.data = 0, l.data[:0]
}

// elementCount returns the number of elements that are added and removed.
func (b *batch) elementCount() (n int) {
	for i := range b.purposes {
		n += b.purposes[i].count
	}
	return n
}

// refused is a rejection with the purpose of its message.
type refused struct {
	conn.Refusal
	*conn.Message // nil if the kernel refused the batch itself
	*purpose
}

func (r refused) Error() string {
	if r.Message == nil {
		return r.Refusal.Error()
	}
	return r.object + ": " + r.Err.Error()
}

// refused adds the purposes to the rejections of a batch.
func (b *batch) refused(refusals []conn.Refusal) (all []refused) {
	for _, r := range refusals {
		one := refused{Refusal: r}
		if r.Index != conn.WholeBatch {
			one.Message, one.purpose = &b.messages[r.Index], &b.purposes[r.Index]
		}
		all = append(all, one)
	}
	return all
}

// element returns the rejected element; nil if the kernel rejected another attribute.
func (m refused) element() *rules.Element {
	at := codec.NetlinkHead + codec.NfgenHead
	top, err := codec.Attrs(m.Data()[codec.NfgenHead:])
	if err != nil || len(m.elements) == 0 {
		return nil
	}
	for _, a := range top {
		if a.Type != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			at += codec.Align(codec.AttrHeader + len(a.Data))
			continue
		}
		items, err := codec.Attrs(a.Data)
		if err != nil {
			return nil
		}
		at += codec.AttrHeader
		i := -1
		for _, item := range items {
			if !m.set.Interval || !codec.DecodeEdge(item.Data, m.change.family).End { // otherwise it is the end of the previous one
				i++
			}
			end := at + codec.Align(codec.AttrHeader+len(item.Data))
			if at <= m.Offset && m.Offset < end && i < len(m.elements) {
				return &m.elements[i]
			}
			at = end
		}
	}
	return nil
}

// service returns the Service of the rejected object; zero if it is shared.
func (m *purpose) service(e *rules.Element) ir.Name {
	switch {
	case e != nil:
		return m.change.serviceOf(m.set, e)
	case m.chain != nil:
		return m.chain.Port.Service
	case m.set != nil:
		return m.set.Port.Service
	}
	return ir.Name{}
}
