package monitor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// Of work that is done apart the kernel tells nothing; another's transaction meanwhile is told as one
// of which nobody knows what it changed, and those after it as ever.
func TestApart(t *testing.T) {
	ns := applytest.RequireNamespace(t)
	told := make(chan bool, 100)
	var m *NFT
	if err := ns.Do(func() (err error) {
		m, err = OpenNFT(NFTables, func(missed bool) { told <- missed })
		return err
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); m.Run(t.Context()) }()
	t.Cleanup(func() { m.Close(); <-done })
	nft := func(script string) {
		t.Helper()
		cmd := ns.Command(context.WithoutCancel(t.Context()), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := ns.Run(cmd); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	wait := func(what string, want bool) {
		t.Helper()
		select {
		case missed := <-told:
			if missed != want {
				t.Fatalf("%s is told with missed %t, want %t", what, missed, want)
			}
		case <-time.After(applytest.Patience(20 * time.Second)):
			t.Fatalf("%s is not told", what)
		}
	}
	m.Begin()
	nft("table ip proxyc { set s { type ipv4_addr; }; }")
	m.End()
	wait("a transaction of another program", false)
	m.Touched()

	work := func(others int) func() uint32 {
		return func() uint32 {
			for i := range 2 + others { // two are taken for ours
				nft(fmt.Sprintf("add element ip proxyc s { 10.0.0.%d }", i))
			}
			return 2
		}
	}
	m.Begin()
	m.Apart(work(0))
	m.End()
	if touched := m.Touched(); touched.Any() || len(told) > 0 {
		t.Fatalf("of our own work %d tokens are told, and %+v", len(told), touched)
	}
	nft("add element ip proxyc s { 10.0.1.1 }")
	wait("a transaction after the work", false)
	if touched := m.Touched(); len(touched.Elements) != 1 {
		t.Errorf("touched is %+v, want the one element", touched)
	}

	m.Begin()
	m.Apart(work(1))
	m.End()
	wait("another's transaction beside the work", true)
	if touched := m.Touched(); !touched.More {
		t.Errorf("touched is %+v, want that nobody knows", touched)
	}
	nft("add element ip proxyc s { 10.0.1.2 }")
	wait("a transaction after that", false)
}
