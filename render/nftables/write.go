package nftables

import (
	"bufio"
	"io"
	"strconv"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Write writes the script for nft -f that replaces the content of the tables in
// one transaction. It resets session affinity.
func Write(w io.Writer, tables Tables) error {
	out := output{bufio.NewWriterSize(w, 1<<16)}
	out.add("#!/usr/sbin/nft -f\n")
	for _, r := range ir.Present(tables.PerFamily) {
		out.table(r)
	}
	return out.Flush()
}

// output writes text. Flush returns the first error.
type output struct{ *bufio.Writer }

func (o *output) add(parts ...string) {
	for _, p := range parts {
		_, _ = o.WriteString(p)
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
	if s.Counter {
		o.add("\t\tcounter\n")
	}
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
			line := s.appendElement(append(o.AvailableBuffer(), "\n\t\t\t"...), &s.Elements[i])
			_, _ = o.Write(append(line, ','))
		}
		o.add("\n\t\t}\n")
	}
	o.add("\t}\n")
}

func (o *output) chain(c *Chain, f ir.Family) {
	o.add("\tchain ", c.Name, " {\n")
	if b := c.Base; b != nil {
		o.add("\t\ttype ", b.Type(), " hook ", b.Hook.String(), " priority ", strconv.Itoa(b.Priority), "; policy accept;\n")
	}
	for i := range c.Rules {
		line := c.Rules[i].appendText(append(o.AvailableBuffer(), "\t\t"...), f)
		_, _ = o.Write(append(line, '\n'))
	}
	o.add("\t}\n")
}

// Type returns the type of a base chain, as in nft and in the kernel.
func (b *Base) Type() string {
	if b.NAT {
		return "nat"
	}
	return "filter"
}
