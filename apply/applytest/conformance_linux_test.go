package applytest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"text/tabwriter"
)

var (
	casesFlag    = flag.String("cases", "../../testdata/conformance", "directory with cases/ and expected/")
	caseFlag     = flag.String("case", "", "play only cases whose names match")
	modesFlag    = flag.String("modes", "nftables,iptables,userspace", "modes to play")
	variantFlag  = flag.String("variant", "", "variant of iptables: nft or legacy; chosen by proxyc when empty")
	familiesFlag = flag.String("families", "ipv4,ipv6", "families to play")
	throughFlag  = flag.String("through", "apply", "how rules reach the node: apply (proxyc apply), watch (the daemon), compile (the text, loaded by the distribution's tools)")
	proxycFlag   = flag.String("proxyc", "", "binary to use; built from this module when empty")
	fastpathFlag = flag.Bool("fastpath", false, "with -through watch and mode nftables: use the fast path for connections from their first reply")
	jobsFlag     = flag.Int("jobs", 2*runtime.NumCPU(), "number of concurrent cases")
)

// chosen returns a filter of the cases: those of the choice whose names match -case.
func chosen(t *testing.T) func(mode, family string) func(name string) bool {
	t.Helper()
	match, err := regexp.Compile(*caseFlag)
	if err != nil {
		t.Fatal(err)
	}
	choice := Cases(t, *casesFlag)
	return func(mode, family string) func(string) bool {
		return func(name string) bool { return match.MatchString(name) && choice(mode, family, name) }
	}
}

// TestConformance runs the recorded cases against proxyc, and prints a table by mode.
func TestConformance(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	only := chosen(t)
	apply, daemon := throughProxyc(t)
	table := &strings.Builder{}
	w := tabwriter.NewWriter(table, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "mode\tfamily\tcases\tflows\tdifferences\tleft out (daemon)\tseconds")
	for mode := range strings.SplitSeq(*modesFlag, ",") {
		for family := range strings.SplitSeq(*familiesFlag, ",") {
			runner := &Runner{Mode: mode, Apply: apply, Daemon: daemon}
			if mode == "userspace" { // its rules do not work without the daemon
				runner.Apply = nil
			}
			suite := &Suite{Runner: runner, Family: family,
				Dir: os.DirFS(*casesFlag), Only: only(mode, family), Jobs: *jobsFlag}
			var score Score
			t.Run(mode+"/"+family, func(t *testing.T) { score = suite.Play(t) })
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%.0f\n", mode, family,
				score.Cases, score.Flows, score.Differences, score.LeftOut, score.Took.Seconds())
		}
	}
	w.Flush()
	fmt.Print(table)
}

// TestConformanceStable runs the cases of mode nftables with a Maglev table for each Service.
// Packets are handled as without it.
func TestConformanceStable(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	only := chosen(t)
	apply, daemon := throughProxyc(t)
	for family := range strings.SplitSeq(*familiesFlag, ",") {
		suite := &Suite{Runner: &Runner{Mode: "nftables", Apply: apply, Daemon: daemon}, Family: family,
			Dir: os.DirFS(*casesFlag), Only: only("nftables", family), Jobs: *jobsFlag,
			Change: func(c *Case) { c.Annotate("proxyc.dev/balance", "maglev") }}
		t.Run(family, func(t *testing.T) {
			flows := suite.Play(t).Flows
			if flows == 0 {
				t.Error("no flow was compared")
			}
		})
	}
}

// throughProxyc returns the apply function selected by -through, and the daemon for cases that
// require one.
func throughProxyc(t *testing.T) (ApplyFunc, DaemonFunc) {
	t.Helper()
	binary := *proxycFlag
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "proxyc")
		out, err := exec.Command("go", "run", "-exec", "cp", "github.com/proxyc/proxyc/cmd/proxyc", binary).CombinedOutput()
		if err != nil {
			t.Fatalf("build proxyc: %v\n%s", err, out)
		}
	}
	var args []string
	if *variantFlag != "" {
		args = []string{"--iptables-variant", *variantFlag}
	}
	if *fastpathFlag {
		ns, err := NewNamespace("flowtable")
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		RequireFlowtable(t, ns)
		args = append(args, "--nftables-fastpath=*", "--nftables-fastpath-packets=0")
	}
	switch *throughFlag {
	case "apply":
		return proved(ProxycApply(binary, args...), binary, args...), ProxycWatch(binary, args...)
	case "watch":
		return nil, ProxycWatch(binary, args...)
	case "compile":
		return loadText(binary), nil
	}
	t.Fatalf("-through must be apply, watch or compile, got %q", *throughFlag)
	return nil, nil
}

// proved also proves after each apply that the kernel matches the case, for every first packet
// rather than only for the case's flows. It supports modes nftables and iptables.
func proved(apply ApplyFunc, binary string, args ...string) ApplyFunc {
	return func(ctx context.Context, node *Namespace, configFile, snapshotFile, mode string) error {
		if err := apply(ctx, node, configFile, snapshotFile, mode); err != nil || mode != "nftables" && mode != "iptables" {
			return err
		}
		cmd := append([]string{"prove", "-c", configFile, "-s", snapshotFile, "--hostname-override", "node1", "--mode", mode, "--live"}, args...)
		if out, err := node.Run(node.Command(ctx, binary, append(cmd, "ir", "kernel")...)); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}
}

// loadText compiles to text and loads that, like a user without proxyc on the node. It replaces all
// existing rules. Affinity is lost, and old conntrack entries stay.
func loadText(binary string) ApplyFunc {
	loaders := map[string][][2]string{ // by mode: output format and the tool that reads it
		"nftables": {{"nftables", "nft -f /dev/stdin"}},
		"iptables": {{"iptables", "iptables-restore"}, {"ip6tables", "ip6tables-restore"}},
	}
	return func(ctx context.Context, node *Namespace, configFile, snapshotFile, mode string) error {
		for _, l := range loaders[mode] {
			text, err := node.Run(node.Command(ctx, binary, "compile", "-c", configFile, "-s", snapshotFile,
				"--hostname-override", "node1", "--mode", mode, "-o", l[0]))
			if err != nil {
				return err
			}
			tool := strings.Fields(l[1])
			cmd := node.Command(ctx, tool[0], tool[1:]...)
			cmd.Stdin = strings.NewReader(string(text))
			if _, err := node.Run(cmd); err != nil {
				return err
			}
		}
		if mode == "iptables" {
			return node.Sysctl("ipv4/conf/all/route_localnet=1")
		}
		return nil
	}
}
