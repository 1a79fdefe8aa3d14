package reviewtest

import (
	"fmt"
	"testing"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// ParseConfig parses and completes a configuration for a test, in one mode.
func ParseConfig(t testing.TB, mode ir.Mode, data []byte) *config.Config {
	t.Helper()
	cfg, diags := config.Parse("config", data, true)
	if diags.HasErrors() {
		t.Fatalf("configuration: %v", diags)
	}
	cfg.Mode = string(mode)
	config.SetDefaults(cfg)
	config.Complete(cfg)
	if diags := config.Validate(cfg); diags.HasErrors() {
		t.Fatalf("configuration: %v", diags)
	}
	return cfg
}

// Decode decodes snapshots for a test.
func Decode(files ...[]byte) (*snapshot.Snapshot, diag.List) {
	snap := snapshot.New()
	var diags diag.List
	for i, data := range files {
		diags.Add(manifest.Decode(snap, fmt.Sprintf("snapshot%d", i), data)...)
	}
	return snap, diags
}

// Compile compiles for a test, and checks that the Programs are valid.
func Compile(t testing.TB, cfg *config.Config, snap *snapshot.Snapshot, facts compiler.Facts) (ir.Programs, diag.List) {
	t.Helper()
	programs, diags := compiler.Compile(cfg, snap, facts)
	for _, p := range ir.Present(programs) {
		for _, err := range p.Validate() {
			t.Errorf("%s program is not valid: %v", p.Family, err)
		}
	}
	return programs, diags
}
