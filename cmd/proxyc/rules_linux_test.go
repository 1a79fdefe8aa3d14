package main

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/ipvs"
	"github.com/proxyc/proxyc/render/userspace"
)

// ruleModes are the modes that use iptables rules in addition to another mechanism.
var ruleModes = map[ir.Mode]func(*ir.Program) *rules.Ruleset{
	ir.ModeIPVS:      func(p *ir.Program) *rules.Ruleset { return ipvs.Lower(p).Rules },
	ir.ModeUserspace: func(p *ir.Program) *rules.Ruleset { return userspace.Lower(p).Rules },
}

// The iptables rules of each golden in these modes are loaded as a user would
// load them, and read back from the kernel by the planner of mode iptables,
// which finds nothing to do. Then it puts rules without Services in force, and
// those of the golden again. Kernels without xt_ipvs leave out the rules that
// ask for the balancer.
func TestRulesAreReadBack(t *testing.T) {
	applytest.RequireRoot(t)
	for _, variant := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		balances := hasBalancedMatch(t, variant)
		for i, path := range goldenFiles(t) {
			g := readGolden(t, path)
			for _, mode := range slices.Sorted(maps.Keys(ruleModes)) {
				if !slices.Contains(g.modes, mode) {
					continue
				}
				name := string(variant) + "/" + strings.TrimSuffix(filepath.Base(path), ".txtar") + "/" + string(mode)
				t.Run(name, func(t *testing.T) {
					if i%4 > 0 {
						applytest.Long(t)
					}
					snap, _ := reviewtest.Decode(g.nodes, g.objects)
					programs, _ := reviewtest.Compile(t, reviewtest.ParseConfig(t, mode, g.config), snap, compiler.Facts{NodeName: g.node})
					readBack(t, variant, mode, programs, balances)
				})
			}
		}
	}
}

func readBack(t *testing.T, variant iptables.Variant, mode ir.Mode, programs ir.Programs, balances bool) {
	var want, idle rules.Rulesets
	for f, p := range ir.Present(programs) {
		without := *p
		without.Services = nil
		*want.At(f), *idle.At(f) = ruleModes[mode](p), ruleModes[mode](&without)
		if !balances {
			withoutBalanced(*want.At(f))
		}
	}
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	applytest.InNamespace(t, func() {
		loadRules(t, variant, mode, programs, want)
		target, err := iptables.Open(t.Context(), apply.Options{IPTables: string(variant)})
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			name  string
			state rules.Rulesets
		}{{"loaded", want}, {"without Services", idle}, {"with Services", want}} {
			have, err := target.Rulesets(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if plan := target.Difference(have, step.state); !plan.Empty() {
				if step.name == "loaded" {
					t.Errorf("the kernel has other rules:\n%s", operationsOf(plan))
				}
				if result, err := target.Commit(t.Context(), plan); err != nil || len(result.Refused) > 0 {
					t.Fatal(errors.Join(err, result.Error()))
				}
			}
			if have, err = target.Rulesets(t.Context()); err != nil {
				t.Fatal(err)
			}
			if plan := target.Difference(have, step.state); !plan.Empty() {
				t.Errorf("%s: after the commit there is still to do:\n%s", step.name, operationsOf(plan))
			}
			for _, r := range ir.Present(have.PerFamily) {
				if raw := rawRules(r); len(raw) > 0 {
					t.Errorf("%s: %s: not understood: %q", step.name, r.Family, raw)
				}
			}
		}
	})
}

// loadRules gives the tools the texts, the ipsets first.
func loadRules(t *testing.T, variant iptables.Variant, mode ir.Mode, programs ir.Programs, want rules.Rulesets) {
	t.Helper()
	for _, o := range review.Modes[mode].Lower(programs).Outputs() {
		if o.Format == "ipset" {
			feedTool(t, outputText(t, o), "ipset", "-exist", "restore")
		}
	}
	for _, r := range ir.Present(want.PerFamily) {
		var text bytes.Buffer
		if err := r.Write(&text); err != nil {
			t.Fatal(err)
		}
		feedTool(t, text.String(), rules.Tool(r.Family)+"-"+string(variant)+"-restore", "--noflush")
	}
}

func feedTool(t *testing.T, text, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// hasBalancedMatch reports whether the kernel supports the match on packets of ipvs.
func hasBalancedMatch(t *testing.T, v iptables.Variant) bool {
	t.Helper()
	known := false
	applytest.InNamespace(t, func() {
		cmd := exec.Command("iptables-"+string(v)+"-restore", "--noflush")
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "lock"))
		cmd.Stdin = strings.NewReader("*filter\n-A OUTPUT -m ipvs --vaddr 192.0.2.1 --vproto tcp --vport 80 -j DROP\nCOMMIT\n")
		known = cmd.Run() == nil
	})
	return known
}

func withoutBalanced(r *rules.Ruleset) {
	for i := range r.Filter.Chains {
		c := &r.Filter.Chains[i]
		c.Rules = slices.DeleteFunc(c.Rules, func(r rules.Rule) bool { _, ok := r.Rare.(rules.Balanced); return ok })
	}
}

func operationsOf(p apply.Plan) string {
	var b strings.Builder
	p.Operations(func(op apply.Operation) bool {
		b.WriteString(op.Object + "\n")
		return true
	})
	return b.String()
}

// rawRules returns those that were read and are none of the kinds that we write.
func rawRules(r *rules.Ruleset) (raw []string) {
	for _, t := range r.Tables() {
		for _, c := range t.Chains {
			for _, rule := range c.Rules {
				if rule.Raw != "" {
					raw = append(raw, rule.Raw)
				}
			}
		}
	}
	return raw
}
