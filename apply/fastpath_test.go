package apply

import (
	"slices"
	"testing"
)

func TestFastpathInterfaces(t *testing.T) {
	f := Fastpath{Interfaces: []string{"eth0", "veth*"}}
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
	var got []string
	for _, name := range []string{"lo", "eth0", "eth01", "et", "veth", "vethab", "xveth"} {
		if f.Match(name) {
			got = append(got, name)
		}
	}
	if want := []string{"eth0", "veth", "vethab"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if all := (Fastpath{Interfaces: []string{"*"}}); all.Match("lo") || !all.Match("eth0") || all.Validate() != nil {
		t.Error("a star means all but the loopback interface")
	}
	for _, bad := range []string{"", "e*h", "**", "eth?", "a/b", "a b", "sixteencharacter"} {
		if (&Fastpath{Interfaces: []string{bad}}).Validate() == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
