package flow

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

func TestRanges(t *testing.T) {
	of := func(text string) ranges {
		var all []netip.Prefix
		for _, p := range strings.Fields(text) {
			all = append(all, netip.MustParsePrefix(p))
		}
		return rangesOf(ir.IPv4, all...)
	}
	for _, tt := range []struct{ a, b, without, within string }{
		{"10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/16 10.2.0.0/15 10.4.0.0/14 10.8.0.0/13 10.16.0.0/12 10.32.0.0/11 10.64.0.0/10 10.128.0.0/9", "10.1.0.0/16"},
		{"0.0.0.0/0", "128.0.0.0/1", "0.0.0.0/1", "128.0.0.0/1"},
		{"10.0.0.0/32 10.0.0.2/32", "10.0.0.1/32", "10.0.0.0/32 10.0.0.2/32", ""},
		{"10.0.0.0/31 10.0.0.2/31", "10.0.0.1/32 10.0.0.2/32", "10.0.0.0/32 10.0.0.3/32", "10.0.0.1/32 10.0.0.2/32"},
		{"255.255.255.255/32", "255.255.255.254/31", "", "255.255.255.255/32"},
		{"10.0.0.0/8", "", "10.0.0.0/8", ""},
	} {
		text := func(r ranges) string {
			var words []string
			for _, p := range r.prefixes() {
				words = append(words, p.String())
			}
			return strings.Join(words, " ")
		}
		if got := text(of(tt.a).without(of(tt.b))); got != tt.without {
			t.Errorf("%s without %s: got %s, want %s", tt.a, tt.b, got, tt.without)
		}
		if got := text(of(tt.a).within(of(tt.b))); got != tt.within {
			t.Errorf("%s within %s: got %s, want %s", tt.a, tt.b, got, tt.within)
		}
	}
}
