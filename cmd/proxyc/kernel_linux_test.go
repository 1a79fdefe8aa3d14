package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
)

// TestKernelHolds brings a kernel from one golden or random cluster to the
// next. Each time what is read back must be what was wanted, and nothing more
// may be left to do.
func TestKernelHolds(t *testing.T) {
	t.Parallel()
	applytest.RequireRoot(t)
	start := applytest.Seed(t)
	for _, plane := range []struct {
		mode    ir.Mode
		variant string
	}{{ir.ModeNFTables, "auto"}, {ir.ModeIPTables, "nft"}, {ir.ModeIPTables, "legacy"}} {
		t.Run(fmt.Sprintf("%s %s", plane.mode, plane.variant), func(t *testing.T) {
			t.Parallel()
			applytest.InNamespace(t, func() {
				hold := func(what string, programs ir.Programs) {
					if err := converge(t, programs, plane.variant); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
				for _, path := range goldenFiles(t) {
					if plane.variant == "legacy" && !applytest.All {
						continue // the same rules as variant nft, by other tools: the random clusters suffice
					}
					g := readGolden(t, path)
					snap, _ := reviewtest.Decode(g.nodes, g.objects)
					programs, _ := reviewtest.Compile(t, reviewtest.ParseConfig(t, plane.mode, g.config), snap, compiler.Facts{NodeName: g.node})
					hold(path, programs)
				}
				for n := range uint64(applytest.Of(8, 30)) {
					hold(fmt.Sprintf("-seed=%d, world %d", start, n), reviewtest.New(start, n).World(plane.mode).Compile(t))
				}
			})
		})
	}
}

// converge applies programs in the calling thread's network namespace. The
// dataplane itself reads back what it committed.
func converge(t *testing.T, programs ir.Programs, variant string) error {
	t.Helper()
	d, err := host.Open(t.Context(), programs.IPv4.Node.Mode, apply.Options{IPTables: variant})
	if err != nil {
		return err
	}
	defer d.Close()
	_, result, err := apply.Once(t.Context(), d, programs, func(apply.Plan) bool { return true })
	if err := errors.Join(err, result.Error()); err != nil {
		return err
	}
	plan, _, err := apply.Once(t.Context(), d, programs, func(apply.Plan) bool { return false })
	if err == nil && !plan.Empty() {
		_, total := apply.Summary(plan)
		err = fmt.Errorf("after the commit there is still to do: %s", total)
	}
	return err
}
