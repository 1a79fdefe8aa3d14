package codec

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// ofLibrary makes google/nftables' type of an expression. It keeps this list to itself.
var ofLibrary = map[string]func() expr.Any{
	"bitwise": func() expr.Any { return &expr.Bitwise{} }, "counter": func() expr.Any { return &expr.Counter{} }, "cmp": func() expr.Any { return &expr.Cmp{} }, "ct": func() expr.Any { return &expr.Ct{} },
	"dynset": func() expr.Any { return &expr.Dynset{} }, "fib": func() expr.Any { return &expr.Fib{} },
	"hash": func() expr.Any { return &expr.Hash{} }, "immediate": func() expr.Any { return &expr.Immediate{} },
	"lookup": func() expr.Any { return &expr.Lookup{} }, "masq": func() expr.Any { return &expr.Masq{} }, "meta": func() expr.Any { return &expr.Meta{} },
	"nat": func() expr.Any { return &expr.NAT{} }, "numgen": func() expr.Any { return &expr.Numgen{} }, "payload": func() expr.Any { return &expr.Payload{} },
	"reject": func() expr.Any { return &expr.Reject{} },
}

// google/nftables' expressions do not hold what rules have, and what is no rule
// of ours would be taken for one: what it does not know it leaves out without a
// word. If this fails because it keeps more, it may carry expressions.
func TestLibraryLosesOfExpressions(t *testing.T) {
	lost := map[string]bool{}
	look := func(c Instruction, data []byte) {
		made := ofLibrary[c.Name]
		if made == nil {
			t.Fatalf("no type for %s", c.Name)
		}
		e := made()
		if c.Name == "immediate" && c.Uint32(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
			e = &expr.Verdict{}
		}
		if err := expr.Unmarshal(unix.NFPROTO_IPV4, data, e); err != nil {
			lost[c.Name+": "+err.Error()] = true
			return
		}
		again, err := expr.MarshalExprData(unix.NFPROTO_IPV4, e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(again)
		if err != nil {
			t.Fatal(err)
		}
		for typ, v := range c.Fields {
			if !bytes.Equal(v, got[typ]) && !(zero(v) && zero(got[typ])) {
				lost[c.Name] = true
			}
		}
	}
	all := func(list []byte) {
		items, err := Attrs(list)
		if err != nil {
			t.Fatal(err)
		}
		code, err := Instructions(list)
		if err != nil || len(code) != len(items) {
			t.Fatalf("%d of %d: %v", len(code), len(items), err)
		}
		for i, item := range items {
			data, err := First(item.Data, unix.NFTA_EXPR_DATA)
			if err != nil {
				t.Fatal(err)
			}
			look(code[i], data)
		}
	}
	for _, f := range ir.Families() {
		for _, c := range rules.Lower(nftest.Program(f)).Chains {
			for _, r := range c.Rules {
				var b Builder
				appendExpressions(&b, r.Stmts, f)
				all(b)
			}
		}
	}
	// A shift of bits is another thing than a mask.
	var b Builder
	p := program{bytecode{&b}, ir.IPv4}
	const shift = 1 // NFT_BITWISE_LSHIFT
	p.expr("bitwise", func(b *Builder) {
		b.Uint32(unix.NFTA_BITWISE_SREG, register(0))
		b.Uint32(unix.NFTA_BITWISE_DREG, register(0))
		b.Uint32(unix.NFTA_BITWISE_LEN, 4)
		b.Uint32(nftaBitwiseOp, shift)
	})
	all(b)
	var names []string
	for name := range lost {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"bitwise", "ct: netlink: attribute 3 is not a uint32; length: 1", "nat"}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("what it loses (-want +got):\n%s", d)
	}
}
