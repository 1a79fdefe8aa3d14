package oneshot

import (
	"github.com/proxyc/proxyc/compiler/config"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// An unsupported mode is rejected before settings are read, so that no error suggests loading a
// module for it.
func TestTurnRefusesModesFirst(t *testing.T) {
	const mode = ir.ModeKernelspace
	programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: ir.Node{Mode: mode}}, &ir.Program{Family: ir.IPv6, Node: ir.Node{Mode: mode}})
	for dryRun, want := range map[bool]string{
		true:  "mode: this system supports modes iptables, ipvs, nftables and userspace, got",
		false: "mode: this system supports modes iptables, ipvs and nftables, got", // userspace requires a process
	} {
		once := &Apply{Config: config.Default(), Programs: programs, DryRun: dryRun}
		if _, err := once.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("dry run %t: %v, want %q", dryRun, err, want)
		}
	}
}
