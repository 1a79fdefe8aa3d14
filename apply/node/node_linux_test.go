package node

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler"
)

func TestReadInNamespace(t *testing.T) {
	applytest.RequireRoot(t)
	ns, err := applytest.NewNamespace("node")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	for _, args := range []string{
		"link add eth0 type bridge", "addr add 192.0.2.11/24 dev eth0", "addr add 192.0.2.12/24 dev eth0", "addr add 2001:db8::11/64 dev eth0 nodad",
		"link add tun0 type bridge", "addr add 198.51.100.1 peer 198.51.100.2/32 dev tun0",
		"link add kube-ipvs0 type bridge", "addr add 10.96.0.1/32 dev kube-ipvs0",
	} {
		if out, err := ns.Run(ns.Command(context.Background(), "ip", strings.Fields(args)...)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	var got compiler.Facts
	if err := ns.Do(func() (err error) {
		got, err = Read("Node1")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// Some kernels put tunnel interfaces into every new namespace.
	got.Interfaces = slices.DeleteFunc(got.Interfaces, func(i compiler.Interface) bool { return i.Addrs == nil })
	want := compiler.Facts{NodeName: "node1", Interfaces: []compiler.Interface{
		{Name: "eth0", Addrs: prefixes("192.0.2.11/24", "192.0.2.12/24", "2001:db8::11/64")},
		{Name: "lo", Addrs: prefixes("127.0.0.1/8", "::1/128")},
		{Name: "tun0", Addrs: prefixes("198.51.100.1/32")},
	}}
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
