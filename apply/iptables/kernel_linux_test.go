package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	rules "github.com/proxyc/proxyc/render/iptables"
)

var variants = []Variant{NFT, Legacy}

// inNamespace runs f for each variant, in a new network namespace with its own lock file.
func inNamespace(t *testing.T, f func(t *testing.T, v Variant)) {
	applytest.RequireRoot(t)
	for _, v := range variants {
		t.Run(string(v), func(t *testing.T) {
			t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
			applytest.InNamespace(t, func() { f(t, v) })
		})
	}
}

func open(t *testing.T, o apply.Options, mostRules int) *Dataplane {
	t.Helper()
	target, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(target.families) != 2 {
		t.Fatalf("families: got %v, want both", target.families)
	}
	if mostRules > 0 {
		target.maxNFT = mostRules
	}
	return target
}

// put applies a state, and reads it back.
func put(t *testing.T, target *Dataplane, want rules.Rulesets) *Plan {
	t.Helper()
	have, err := target.Rulesets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plan := target.Difference(have, want)
	result, err := target.Commit(t.Context(), plan)
	if err := errors.Join(err, result.Error()); err != nil {
		t.Fatal(err)
	}
	holds(t, target, want)
	return plan
}

// once commits the difference between the current state and the desired one.
func once(ctx context.Context, target *Dataplane, want rules.Rulesets) (apply.Result, error) {
	have, err := target.Rulesets(ctx)
	if err != nil {
		return apply.Result{}, err
	}
	return target.Commit(ctx, target.Difference(have, want))
}

func shell(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// foreign is rules of other programs, which must not change.
const foreign = `*filter
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A INPUT -s 198.51.100.66/32 -j DROP
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
COMMIT
`

func TestKernelHoldsHistories(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		shell(t, foreign, tool(ir.IPv4, v, "restore"))
		reader, err := goiptables.New(goiptables.Path("iptables-" + string(v)))
		if err != nil {
			t.Fatal(err)
		}
		target := open(t, apply.Options{IPTables: string(v)}, 200)
		random := rand.New(rand.NewPCG(7, 7))
		all := programs(300)
		for range 6 {
			some := thinned(all, random)
			want := lower(some)
			put(t, target, want)
			if again := put(t, target, want); !again.Empty() {
				t.Errorf("the second time there is something to do: %v", opsOf(again))
			}
			for _, rule := range [...][]string{
				{"filter", "FORWARD", "-j", "DOCKER-USER"},
				{"filter", "INPUT", "-s", "198.51.100.66/32", "-j", "DROP"},
				{"nat", "PREROUTING", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "DOCKER"},
			} {
				if exists, err := reader.Exists(rule[0], rule[1], rule[2:]...); err != nil || !exists {
					t.Errorf("%q is gone: %v", rule, err)
				}
			}
		}
		plan := put(t, target, lower(thinned(all, nil)))
		if len(plan.RemovedFrontends()) == 0 {
			t.Error("all Services went, but no frontend is gone")
		}
	})
}

func TestTakeover(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		for _, f := range []ir.Family{ir.IPv4, ir.IPv6} {
			shell(t, recorded(t, f), tool(f, v, "restore"))
		}
		target := open(t, apply.Options{IPTables: string(v)}, 0)
		want := lower(programs(20))
		plan := put(t, target, want)
		for _, op := range opsOf(plan) {
			if op.Verb == apply.Remove && strings.Contains(op.Object, "KUBE-SEP-") && op.Service.Namespace != "default" {
				t.Errorf("%s: of Service %q", op.Object, op.Service)
			}
		}
		saved := shell(t, "", tool(ir.IPv4, v, "save"))
		endpoints := 0
		for line := range strings.Lines(recorded(t, ir.IPv4)) {
			if chain, _, _ := strings.Cut(line, " "); strings.HasPrefix(chain, ":KUBE-SEP-") {
				endpoints++
				if strings.Contains(saved, chain) {
					t.Errorf("%s is still there", chain)
				}
			}
		}
		if endpoints == 0 {
			t.Error("the record has no KUBE-SEP- chain")
		}
	})
}

func TestFailedCommitLeavesTheOldState(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		for _, most := range []int{0, 100} {
			target := open(t, apply.Options{IPTables: string(v)}, most)
			old := lower(programs(100))
			put(t, target, old)
			bad := lower(programs(200))
			fixed := &bad.IPv6.Nat.Chains[0] // without a Service, so that none can be omitted
			fixed.Rules = append(fixed.Rules, rules.Rule{Raw: "-p tcp -j DNAT --to-destination nowhere"})
			result, err := once(t.Context(), target, bad)
			if err == nil || !strings.Contains(err.Error(), "nowhere") {
				t.Errorf("at most %d rules: want an error with the tool's words and the line, got %v", most, err)
			}
			if diff := cmp.Diff([]ir.Family{ir.IPv6}, result.Failed); diff != "" {
				t.Errorf("at most %d rules: families that failed (-want +got):\n%s", most, diff)
			}
			have, err := target.Rulesets(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if rest := target.Difference(have, old); !rest.Empty() {
				t.Errorf("at most %d rules: not as before: %v", most, opsOf(rest))
			}
		}
	})
}

// spoil adds a rule that the kernel rejects to the chains of Services.
func spoil(sets rules.Rulesets, services ...ir.Name) {
	for _, r := range ir.Present(sets.PerFamily) {
		for i := range r.Nat.Chains {
			c := &r.Nat.Chains[i]
			if s, own := c.Service(); own && slices.Contains(services, s) {
				c.Rules = append(slices.Clone(c.Rules), rules.Rule{Raw: "-j REJECT"}) // valid only in table filter
			}
		}
	}
}

// refusals commits a plan with Services that the kernel rejects, and returns their names.
func refusals(t *testing.T, target *Dataplane, plan apply.Plan) (names []string) {
	t.Helper()
	result, err := target.Commit(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range result.Refused {
		names = append(names, r.Service.String())
	}
	slices.Sort(names)
	return names
}

// TestQuarantine has two Services whose rules the kernel rejects. Nothing is committed.
func TestQuarantine(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, apply.Options{IPTables: string(v)}, 0)
		put(t, target, lower(programs(10)))
		ps := programs(40)
		want := lower(ps)
		spoil(want, ir.Name{Namespace: "default", Name: "s12"}, ir.Name{Namespace: "default", Name: "s27"})
		have, err := target.Rulesets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := refusals(t, target, target.Difference(have, want))
		if diff := cmp.Diff([]string{"default/s12", "default/s27"}, got); diff != "" {
			t.Errorf("refused (-want +got):\n%s", diff)
		}
		holds(t, target, lower(programs(10)))
		if saved := shell(t, "", tool(ir.IPv4, v, "save")); strings.Contains(saved, rules.ProbeChain) {
			t.Errorf("%s is left behind", rules.ProbeChain)
		}
	})
}

// TestQuarantineOfExistingService has an existing Service whose one changed chain the kernel
// rejects. Its rules remain.
func TestQuarantineOfExistingService(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, apply.Options{IPTables: string(v)}, 0)
		ps := programs(100)
		put(t, target, lower(ps))
		refused := ir.Name{Namespace: "default", Name: "s5"}
		want := lower(ps)
		spoil(want, refused)
		have, err := target.Rulesets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{refused.String()}, refusals(t, target, target.Difference(have, want))); diff != "" {
			t.Errorf("refused (-want +got):\n%s", diff)
		}
		holds(t, target, lower(ps))
	})
}

func TestVariantInUse(t *testing.T) {
	hint := "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n"
	services := "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"
	other := "*filter\n-A INPUT -j ACCEPT\n-A OUTPUT -j ACCEPT\nCOMMIT\n"
	tests := []struct {
		name        string
		nft, legacy string
		want        Variant
	}{
		{"nothing", "", "", NFT},
		{"hint against rules", services + other, hint, Legacy},
		{"hint", hint, services, NFT},
		{"kube-proxy against more rules", other, services, Legacy},
		{"more rules", "", other, Legacy},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			applytest.InNamespace(t, func() {
				for v, text := range map[Variant]string{NFT: tt.nft, Legacy: tt.legacy} {
					if text != "" {
						shell(t, text, tool(ir.IPv4, v, "restore"), "--noflush")
					}
				}
				if got := open(t, apply.Options{}, 0).Variant; got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				if has, err := hasLegacyTables(); tt.legacy == "" && (has || err != nil) {
					t.Errorf("legacy tables were made: %t, %v", has, err)
				}
			})
		})
	}
}

func TestLockNamesItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	held, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	applytest.InNamespace(t, func() {
		target := open(t, apply.Options{IPTables: string(Legacy), LockTimeout: time.Second}, 0)
		_, err := once(t.Context(), target, lower(programs(1)))
		if want := fmt.Sprintf("held by process %d (", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
		put(t, target, lower(programs(1)))
	})
}

func TestCancelledCommit(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, apply.Options{IPTables: string(v)}, 50)
		old := lower(programs(30))
		put(t, target, old)
		have, err := target.Rulesets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		runs := 0
		target.run = func(c context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
			if runs++; runs == 2 {
				cancel()
			}
			return run.To(c, stdin, stdout, name, args...)
		}
		if _, err := target.Commit(ctx, target.Difference(have, lower(programs(200)))); err == nil {
			t.Fatal("a cancelled commit gives no error")
		}
		holds(t, target, old)
	})
}

// eval checks the conformance of irtest's Program; here the kernel has to accept it.
func TestKernelAcceptsOneOfEach(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		put(t, open(t, apply.Options{IPTables: string(v)}, 0), lower(ir.NewPrograms(irtest.Program(ir.ModeIPTables), &ir.Program{Family: ir.IPv6,
			Node: ir.Node{MasqueradeBit: 14, NodePorts: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: netip.MustParsePrefix("2001:db8::/64"), Assigned: true}}}}})))
	})
}
