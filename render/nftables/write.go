package nftables

import (
	"io"
	"strconv"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Write writes the script for nft -f that replaces the content of the tables in
// one transaction. It resets session affinity.
func Write(w io.Writer, tables Tables) error {
	out := output{w: w, buf: make([]byte, 0, 2*flushAt)}
	out.buf = append(out.buf, "#!/usr/sbin/nft -f\n"...)
	for _, r := range ir.Present(tables.PerFamily) {
		out.table(r)
	}
	out.flush()
	return out.err
}

const flushAt = 64 << 10

// output is a buffered writer to which text is appended.
type output struct {
	w   io.Writer
	buf []byte
	err error
}

func (o *output) flush() {
	if o.err == nil {
		_, o.err = o.w.Write(o.buf)
	}
	o.buf = o.buf[:0]
}

func (o *output) add(parts ...string) {
	for _, p := range parts {
		o.buf = append(o.buf, p...)
	}
	if len(o.buf) >= flushAt {
		o.flush()
	}
}

func (o *output) table(r *Ruleset) {
	table := "table " + r.Family.NFT() + " " + Table
	// Adding the table first allows deleting it if it does not exist yet.
	o.add("\n", table, "\ndelete ", table, "\n", table, " {\n")
	for i := range r.Sets {
		o.set(&r.Sets[i], r.Family)
	}
	for i := range r.Chains {
		o.chain(&r.Chains[i], r.Family)
	}
	o.add("}\n")
	for i := range r.Sets {
		o.size(&r.Sets[i], r.Family)
	}
}

// size sets the size of an existing map. For a map that is declared with its
// size, the kernel allocates memory for all elements immediately, 2 MB for 65535.
func (o *output) size(s *Set, f ir.Family) {
	if s.Size > MaxClients {
		o.add("add map ", f.NFT(), " ", Table, " ", s.Name, " { ", s.typeText(f), "; size ", strconv.FormatUint(uint64(s.Size), 10),
			"; flags dynamic,timeout; timeout ", strconv.FormatInt(int64(s.Timeout/time.Second), 10), "s; }\n")
	}
}

func (o *output) set(s *Set, f ir.Family) {
	kind := "set "
	if s.Data != NoData {
		kind = "map "
	}
	o.add("\t", kind, s.Name, " {\n\t\t", s.typeText(f), "\n")
	switch {
	case s.Interval:
		o.add("\t\tflags interval\n")
	case s.Timeout > 0:
		// No size: the kernel sets it to MaxClients when a rule updates the map,
		// see size.
		o.add("\t\tflags dynamic,timeout\n\t\ttimeout ",
			strconv.FormatInt(int64(s.Timeout/time.Second), 10), "s\n")
	}
	if len(s.Elements) > 0 {
		o.add("\t\telements = {")
		for i := range s.Elements {
			o.buf = append(o.buf, "\n\t\t\t"...)
			o.buf = s.appendElement(o.buf, &s.Elements[i])
			o.add(",")
		}
		o.add("\n\t\t}\n")
	}
	o.add("\t}\n")
}

func (o *output) chain(c *Chain, f ir.Family) {
	o.add("\tchain ", c.Name, " {\n")
	if b := c.Base; b != nil {
		o.add("\t\ttype ", b.typeName(), " hook ", b.Hook.String(), " priority ", strconv.Itoa(b.Priority), "; policy accept;\n")
	}
	for i := range c.Rules {
		o.buf = append(o.buf, "\t\t"...)
		o.buf = c.Rules[i].appendText(o.buf, f)
		o.add("\n")
	}
	o.add("\t}\n")
}

func (b *Base) typeName() string {
	if b.NAT {
		return "nat"
	}
	return "filter"
}
