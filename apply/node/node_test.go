package node

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler"
)

var comparePrefix = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func TestName(t *testing.T) {
	cases := []struct {
		override, host string
		err            error
		want, wantErr  string
	}{
		{"", "Node1.Example\n", nil, "node1.example", ""},
		{" Other ", "node1", nil, "other", ""},
		{"other", "", errors.New("no host name"), "other", ""},
		{"", "", errors.New("no host name"), "", "host name: no host name"},
		{"", " ", nil, "", "host name: must not be empty; set hostnameOverride"},
		{" ", "node1", nil, "", "host name: must not be empty; set hostnameOverride"},
	}
	for _, c := range cases {
		got, err := Name(c.override, func() (string, error) { return c.host, c.err })
		gotErr := ""
		if err != nil {
			gotErr = err.Error()
		}
		if got != c.want || gotErr != c.wantErr {
			t.Errorf("override %q, host name %q: got %q, %q, want %q, %q", c.override, c.host, got, gotErr, c.want, c.wantErr)
		}
	}
}

func TestCanonical(t *testing.T) {
	got := canonical([]compiler.Interface{
		{Name: "lo", Addrs: prefixes("::1/128", "127.0.0.1/8")},
		{Name: "kube-ipvs0", Addrs: prefixes("10.96.0.1/32")},
		{Name: "eth0", Addrs: prefixes("192.0.2.2/24", "192.0.2.1/24", "192.0.2.2/24")},
		{Name: "down"},
		{Name: "pod0", Addrs: prefixes("fe80::1/64")},
		{Name: "wlan0", Addrs: prefixes("fe80::1/64", "2001:db8::1/64")},
	})
	want := []compiler.Interface{
		{Name: "eth0", Addrs: prefixes("192.0.2.1/24", "192.0.2.2/24")},
		{Name: "lo", Addrs: prefixes("127.0.0.1/8", "::1/128")},
		{Name: "wlan0", Addrs: prefixes("2001:db8::1/64")},
	}
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
