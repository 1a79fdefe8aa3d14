package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Variant selects the kernel interface of the tools. Each variant shows only its own rules, but
// packets pass the rules of both.
type Variant string

const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
	auto   Variant = "auto" // the one that the node uses, as is the zero value
)

// maxRulesNFT is the maximum number of rules per run of iptables-nft-restore, whose time grows
// superlinearly.
const maxRulesNFT = 4000

// toolDeadline is the maximum duration of a run of a tool. A tool that hangs is killed, so that the
// rules are not outdated for longer.
const toolDeadline = 5 * time.Minute

// runner runs a tool, like [run.To].
type runner func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error

// withDeadline returns a runner that kills a tool after deadline.
func withDeadline(r runner, deadline time.Duration) runner {
	return func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
		ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("%s was killed: it took more than %s", name, deadline))
		defer cancel()
		err := r(ctx, stdin, stdout, name, args...)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	}
}

// tools runs the tools of a variant.
type tools struct {
	Variant  Variant
	version  version
	families []ir.Family // supported by the kernel
	wait     time.Duration
	run      runner
}

// unsupported reports whether a tool's error means that the tool does not exist, or that the kernel
// lacks a feature. The exit status alone is no evidence: it is 1 for a lack of memory, too. A family
// that counted as unsupported for a temporary reason would get no rules.
func unsupported(err error) bool {
	return failedWith(err, 3, lacking) || errors.Is(err, exec.ErrNotFound)
}

// failedWith reports whether a tool ended with a status from 1 to most, and an error that matches.
func failedWith(err error, most int, text *regexp.Regexp) bool {
	exit, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err)
	return ok && 1 <= exit.ExitCode() && exit.ExitCode() <= most && text.MatchString(err.Error())
}

var (
	// lacking matches what the tools print if the kernel lacks a feature: "Address family not supported
	// by protocol", "Table does not exist (do you need to insmod?)", and the texts of other C libraries.
	lacking = regexp.MustCompile(`(?i)not supported|not implemented|do you need to insmod`)
	// absent matches what versions of iptables-nft print for a chain that does not exist. 1.8.9 prints
	// "chain `X' in table `nat' is incompatible, use 'nft' tool", and the same for an existing chain with
	// rules that only nft supports.
	absent = regexp.MustCompile(`(?i)no chain/target/match by that name|no such file or directory|incompatible`)
)

// Families returns the families that the kernel supports. Plans contain only these.
func (t *tools) Families() []ir.Family { return slices.Clone(t.families) }

// detect determines the variant that the node uses, the version, and the families that the kernel
// supports. It returns why it lacks one.
func (t *tools) detect(ctx context.Context) (missing []error, err error) {
	if t.Variant == "" || t.Variant == auto {
		v, err := t.detectVariant(ctx)
		if err != nil {
			return nil, err
		}
		t.Variant = v
	}
	out, err := t.output(ctx, tool(ir.IPv4, t.Variant, "restore"), "--version")
	if err != nil {
		return nil, err
	}
	t.version = parseVersion(out)
	for _, f := range ir.Families() {
		if _, err := t.exists(ctx, f, "nat", "POSTROUTING"); unsupported(err) {
			missing = append(missing, err)
			continue
		} else if err != nil {
			return nil, err
		}
		t.families = append(t.families, f)
	}
	if len(t.families) == 0 {
		return nil, missing[0] // the errors of all families are alike
	}
	return missing, nil
}

// tool returns the name of a tool: iptables-nft-restore.
func tool(f ir.Family, v Variant, verb string) string {
	return rules.Tool(f) + "-" + string(v) + "-" + verb
}

// detectVariant returns the variant that the node uses. It is, in this order: the one with the
// kubelet's hint chain (KEP-3178, iptables ownership), the one with rules of kube-proxy or proxyc,
// the one with more rules, nft. The legacy tools are run only if legacy tables exist. They would
// create tables that every packet then has to pass.
func (t *tools) detectVariant(ctx context.Context) (Variant, error) {
	type sign struct{ table, chain string }
	var signs []sign
	for _, chain := range rules.KubeletChains() {
		signs = append(signs, sign{"mangle", chain})
	}
	signs = append(signs, sign{"nat", rules.ChainServices})
	candidates := []*tools{{Variant: NFT, wait: t.wait, run: t.run}}
	if has, err := hasLegacyTables(); has || err != nil {
		candidates = append(candidates, &tools{Variant: Legacy, wait: t.wait, run: t.run})
	}
	for _, sign := range signs {
		for _, of := range candidates {
			for _, f := range ir.Families() {
				if found, err := of.exists(ctx, f, sign.table, sign.chain); err != nil && !unsupported(err) {
					return "", err
				} else if found {
					return of.Variant, nil
				}
			}
		}
	}
	return t.variantWithMoreRules(ctx)
}

// variantWithMoreRules returns the variant with more rules, or nft if there are none.
func (t *tools) variantWithMoreRules(ctx context.Context) (best Variant, err error) {
	most := -1
	var missing []error
	for _, v := range [...]Variant{NFT, Legacy} {
		if v == Legacy && best == NFT {
			if has, err := hasLegacyTables(); !has && err == nil {
				break
			}
		}
		for _, f := range ir.Families() {
			out, err := t.output(ctx, tool(f, v, "save"))
			if err != nil && !unsupported(err) {
				return "", err
			}
			if err != nil {
				missing = append(missing, err)
				continue
			}
			if n := strings.Count(out, "\n-A "); n > most {
				best, most = v, n
			}
		}
	}
	if best == "" {
		return "", errors.Join(missing...)
	}
	return best, nil
}

// version is a release of the tools: {1, 8, 9} for 1.8.9. The tools of a variant exist from 1.8.0 on.
type version [3]int

// parseVersion parses "iptables-restore v1.8.9 (nf_tables)". It returns zero if it cannot.
func parseVersion(s string) (v version) {
	_, number, _ := strings.Cut(s, " v")
	fmt.Sscanf(number, "%d.%d.%d", &v[0], &v[1], &v[2])
	return v
}

// locks reports whether this process holds the lock of the legacy tools while it runs them. Tools before
// 1.8.6 accept no other lock file than their own, and lock themselves. Other programs may then change the tables before the monitor reads the
// result, so everything is compared after each run.
func (t *tools) locks() bool {
	return t.Variant == Legacy && slices.Compare(t.version[:], []int{1, 8, 6}) >= 0
}

// waitFlags returns the options that make iptables-restore wait for the lock. The nft variant has
// none.
func (t *tools) waitFlags() []string {
	if t.Variant != Legacy {
		return nil
	}
	seconds := max(1, int(t.wait.Round(time.Second)/time.Second)) // for the tools 0 is infinite
	return []string{"--wait=" + strconv.Itoa(seconds), "--wait-interval=100000"}
}

// save writes a table to out.
func (t *tools) save(ctx context.Context, f ir.Family, table string, out io.Writer) error {
	return t.run(ctx, nil, out, tool(f, t.Variant, "save"), "-t", table)
}

// output runs a tool and returns its output.
func (t *tools) output(ctx context.Context, name string, args ...string) (string, error) {
	var out strings.Builder
	err := t.run(ctx, nil, &out, name, args...)
	return out.String(), err
}

// Saved returns the output of the variant's iptables-save for all tables of a family, with counters.
func (t *tools) Saved(ctx context.Context, f ir.Family) (string, error) {
	return t.output(ctx, tool(f, t.Variant, "save"), "--counters")
}

// tool returns the name of the tool for single rules: iptables-nft.
func (t *tools) tool(f ir.Family) string { return rules.Tool(f) + "-" + string(t.Variant) }

// tablesWith returns the tables that contain a chain.
func (t *tools) tablesWith(ctx context.Context, f ir.Family, chain string) (with []string, err error) {
	for _, table := range sharedTables {
		exists, err := t.exists(ctx, f, table, chain)
		if err != nil {
			return nil, err
		}
		if exists {
			with = append(with, table)
		}
	}
	return with, nil
}

// exists reports whether a table contains a chain. It returns an error if the kernel lacks the
// family, or the machine the tool. In the nft variant it asks for the chain, since saving a large
// table is slow. In the legacy variant it saves the table, which is fast and, unlike asking, needs
// no lock.
func (t *tools) exists(ctx context.Context, f ir.Family, table, chain string) (bool, error) {
	if t.Variant == Legacy {
		declared := finder{text: "\n:" + chain + " "}
		err := t.save(ctx, f, table, &declared)
		return declared.found, err
	}
	_, err := t.output(ctx, t.tool(f), "-t", table, "-S", chain, "1")
	if failedWith(err, 1, absent) { // also if a request of the tool fails
		return hasChain(ctx, f, table, chain)
	}
	return err == nil, err
}
