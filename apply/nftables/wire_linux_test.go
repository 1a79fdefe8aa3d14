package nftables

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// Decoding inverts encoding, without a kernel.
func TestRoundTrip(t *testing.T) {
	for _, f := range []ir.Family{ir.IPv4, ir.IPv6} {
		for name, vary := range nftest.Variants(f) {
			p := nftest.Program(f)
			vary(&p.Node)
			r := rules.Lower(p)
			for i := range r.Sets {
				s := &r.Sets[i]
				got, ok := codec.DecodeSet(parse(t, codec.EncodeSet(s, f, 1)), f)
				if !ok {
					t.Fatal(got)
				}
				b := &batch{}
				b.elements(&change{family: f}, unix.NFT_MSG_NEWSETELEM, s, s.Elements, false)
				for _, m := range b.messages {
					if err := decodeMessage(m.Data()[codec.NfgenHead:], &got, f); err != nil {
						t.Fatal(err)
					}
				}
				if e := compareElements(&got, s); len(e.removed)+len(e.added) > 0 || got.Name != s.Name || !cmp.Equal(got.Key, s.Key) ||
					got.Data != s.Data || got.Unsupported != "" || got.Foreign || got.Interval != s.Interval || got.Timeout != s.Timeout {
					t.Errorf("%s %s: set %s: want %+v, got %+v", f, name, s.Name, s, got)
				}
			}
			for i := range r.Chains {
				c := &r.Chains[i]
				got, ok, err := codec.DecodeChain(parse(t, codec.EncodeChain(c)))
				if err != nil || !ok || got.Name != c.Name || !cmp.Equal(got.Base, c.Base) {
					t.Errorf("%s %s: chain %s: got %+v, %v", f, name, c.Name, got, err)
				}
				for j := range c.Rules {
					chain, rule := codec.DecodeRule(parse(t, codec.EncodeRule(c.Name, &c.Rules[j], f)), f)
					if chain != c.Name || rule.Text(f) != c.Rules[j].Text(f) {
						t.Errorf("%s %s: chain %s: want %s, got %s", f, name, c.Name, c.Rules[j].Text(f), rule.Text(f))
					}
				}
			}
		}
	}
}

func parse(t *testing.T, b []byte) codec.Fields {
	t.Helper()
	a, err := codec.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Prefixes that end within a byte are encoded and decoded correctly.
func TestPrefixes(t *testing.T) {
	for _, p := range []string{"0.0.0.0/0", "10.0.0.0/1", "10.96.0.0/12", "10.96.0.0/16", "192.0.2.128/25", "192.0.2.1/32",
		"::/0", "fd00::/7", "fd00:10::/48", "fd00:10:96::/108", "fd00::1/128"} {
		want := netip.MustParsePrefix(p).Masked()
		f := ir.IPv4
		if want.Addr().Is6() {
			f = ir.IPv6
		}
		for _, not := range []bool{false, true} {
			r := rules.Rule{Stmts: []rules.Stmt{rules.MatchNet{Field: rules.DstAddr, Prefix: want, Not: not}, rules.Verdict{Kind: rules.Drop}}}
			if _, got := codec.DecodeRule(parse(t, codec.EncodeRule("c", &r, f)), f); got.Text(f) != r.Text(f) {
				t.Errorf("want %s, got %s", r.Text(f), got.Text(f))
			}
		}
	}
}

// Decoding never panics.
func FuzzDecode(f *testing.F) {
	r := rules.Lower(nftest.Program(ir.IPv6))
	for i := range r.Chains {
		for j := range r.Chains[i].Rules {
			f.Add(codec.EncodeRule(r.Chains[i].Name, &r.Chains[i].Rules[j], ir.IPv6))
		}
	}
	for i := range r.Sets {
		f.Add(codec.EncodeSet(&r.Sets[i], ir.IPv6, 1))
		b := &batch{}
		b.elements(&change{family: ir.IPv6}, unix.NFT_MSG_NEWSETELEM, &r.Sets[i], r.Sets[i].Elements, false)
		for _, m := range b.messages {
			f.Add(m.Data()[codec.NfgenHead:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, family := range []ir.Family{ir.IPv4, ir.IPv6} {
			if a, err := codec.Parse(b); err == nil {
				codec.DecodeSet(a, family)
				codec.DecodeChain(a)
				codec.DecodeRule(a, family)
			}
			for i := range r.Sets {
				s := r.Sets[i]
				s.Elements = nil
				decodeMessage(b, &s, family)
			}
		}
	})
}

// decodeMessage decodes the elements of a message that contains both edges of each interval.
func decodeMessage(b []byte, s *rules.Set, f ir.Family) error {
	if !s.Interval {
		return codec.DecodeElements(b, s, f, &codec.Comments{})
	}
	edges, err := codec.DecodeEdges(b, f, nil)
	for len(edges) > 0 {
		n := 1
		if len(edges) > 1 && edges[1].End {
			n = 2
		}
		of, strays := codec.Intervals(edges[:n:n])
		s.Elements, s.Foreign = append(s.Elements, of...), s.Foreign || strays
		edges = edges[n:]
	}
	return err
}
