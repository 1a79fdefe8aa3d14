package daemon

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// A mode that does not come to a node is refused before a setting is looked at:
// nobody is told to load a module for it.
func TestTurnRefusesModesFirst(t *testing.T) {
	for _, mode := range []ir.Mode{ir.ModeKernelspace} {
		programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: ir.Node{Mode: mode}}, &ir.Program{Family: ir.IPv6, Node: ir.Node{Mode: mode}})
		once := &OneShot{Config: testConfig(mode), Programs: programs, DryRun: true}
		if _, err := once.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "mode: a node takes modes iptables, ipvs, nftables and userspace") {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
}
