package daemon

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

func TestFallback(t *testing.T) {
	tests := []struct {
		name     string
		wanted   ir.Mode
		lacks    map[ir.Mode]bool
		mode     ir.Mode
		reported bool
	}{
		{"what is wanted", ir.ModeIPVS, nil, ir.ModeIPVS, false},
		{"no ip_vs", ir.ModeIPVS, map[ir.Mode]bool{ir.ModeIPVS: true}, ir.ModeIPTables, true},
		{"neither", ir.ModeIPVS, map[ir.Mode]bool{ir.ModeIPVS: true, ir.ModeIPTables: true}, ir.ModeUserspace, true},
		{"iptables", ir.ModeIPTables, map[ir.Mode]bool{ir.ModeIPTables: true}, ir.ModeUserspace, true},
		{"nothing works", ir.ModeIPVS, map[ir.Mode]bool{ir.ModeIPVS: true, ir.ModeIPTables: true, ir.ModeUserspace: true}, ir.ModeIPVS, false},
		{"no HNS", ir.ModeKernelspace, map[ir.Mode]bool{ir.ModeKernelspace: true}, ir.ModeUserspace, true},
		{"userspace itself", ir.ModeUserspace, map[ir.Mode]bool{ir.ModeUserspace: true}, ir.ModeUserspace, false},
		{"no document has one for nftables", ir.ModeNFTables, map[ir.Mode]bool{ir.ModeNFTables: true}, ir.ModeNFTables, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := &config.Config{Mode: string(tt.wanted)}
			mode, reason := supported(cfg, func(cfg *config.Config) error {
				if tt.lacks[cfg.ProxyMode()] {
					return errors.New("the kernel has none")
				}
				return nil
			})
			if mode != tt.mode || (reason != nil) != tt.reported {
				t.Errorf("got %s because of %v, want %s", mode, reason, tt.mode)
			}
			if cfg.ProxyMode() != tt.wanted {
				t.Error("the configuration itself was changed")
			}
		})
	}
}

// A mode that cannot be opened for a temporary reason is tried again, a mode that is not supported
// at most twice.
func TestFallbackTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct{ fails, want int }{{0, 1}, {2, 3}, {9, 3}} {
			n := 0
			err := thrice(t.Context(), func() error {
				if n++; n <= tc.fails {
					return errors.New("no buffer space available")
				}
				return nil
			})
			if n != tc.want || (err == nil) != (tc.fails < 3) {
				t.Errorf("%d failures: %d attempts, %v", tc.fails, n, err)
			}
		}
	})
}
