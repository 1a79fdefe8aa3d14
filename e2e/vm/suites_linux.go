package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A suite is a test binary with its arguments.
type suite struct {
	name    string
	pkg     string // its directory
	args    string // $PROXYC is the program
	modules string // that an administrator would load
	env     string // in addition to that of all suites
	more    string // what its tests must not skip, in addition to that of all suites
	usual   bool
}

// ipvs are the modules of mode ipvs, with all schedulers.
const ipvs = "ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_wlc ip_vs_lblc ip_vs_lblcr ip_vs_dh ip_vs_sh ip_vs_sed ip_vs_nq ip_vs_fo ip_vs_ovf ip_vs_mh"

// suites are in the order in which they run.
var suites = []suite{
	{name: "ipvs", pkg: "apply/ipvs", modules: ipvs, usual: true},
	{name: "chosen-ipvs", pkg: "apply/applytest", modules: ipvs, usual: true, args: "-test.run=TestConformance$ -modes=ipvs -proxyc=$PROXYC " +
		"-case=^(affinity-clientip|clusterip-udp|endpoint-updates|etp-local|hairpin|lb-source-ranges-allow|no-endpoints|nodeport)$"},
	{name: "conformance-ipvs", pkg: "apply/applytest", args: "-test.run=TestConformance$ -modes=ipvs -proxyc=$PROXYC", modules: ipvs},
	{name: "conformance-nftables", pkg: "apply/applytest", args: "-test.run=TestConformance -modes=nftables -proxyc=$PROXYC"},
	{name: "conformance-iptables-nft", pkg: "apply/applytest", args: "-test.run=TestConformance$ -modes=iptables -variant=nft -proxyc=$PROXYC"},
	{name: "conformance-iptables-legacy", pkg: "apply/applytest", args: "-test.run=TestConformance$ -modes=iptables -variant=legacy -proxyc=$PROXYC"},
	{name: "node", pkg: "e2e/packets", modules: ipvs, args: "-test.skip=^Test(Kill|UpdatesLeaveNoGap|Takeover|ModeChange)$ -proxyc=$PROXYC"},
	{name: "kill", pkg: "e2e/packets", args: "-test.run=^TestKill$ -proxyc=$PROXYC", modules: ipvs},
	{name: "no-gap", pkg: "e2e/packets", args: "-test.run=^TestUpdatesLeaveNoGap$ -proxyc=$PROXYC", modules: ipvs},
	{name: "takeover", pkg: "e2e/packets", args: "-test.run=^Test(Takeover|ModeChange)$ -proxyc=$PROXYC", modules: ipvs},
	{name: "leaving-ipvs", pkg: "docs", args: "-test.run=TestLeavingIPVS", modules: ipvs, usual: true},
	{name: "watch-ipvs", pkg: "e2e/daemon", modules: ipvs,
		args: "-test.run=^TestWatch(Follows|Restart|RepairsDrift|Metrics|LeavesIPVS)$/^ipvs$ -proxyc=$PROXYC"},
	{name: "trace-ipvs", pkg: "cmd/proxyc/review/trace", modules: ipvs, args: "-test.run=^TestPlantedFaults$/^ipvs -proxyc=$PROXYC", usual: true},
	{name: "prove-ipvs", pkg: "cmd/proxyc/review/proof", modules: ipvs, args: "-test.run=^TestProveKernel$/^ipvs -proxyc=$PROXYC", usual: true},
	{name: "privilege-ipvs", pkg: "e2e/daemon", modules: ipvs, args: "-test.run=^Test(LeastPrivilege|SeccompProfile)$/^(ipvs|recorded|in_force)$/^(ipvs)?$ -proxyc=$PROXYC"},
	{name: "clock", pkg: "e2e/daemon", args: "-test.run=TestWatchClockIsSet -proxyc=$PROXYC", env: "PROXYC_SETS_CLOCK=1", usual: true},
	{name: "flowtable", modules: "br_netfilter", pkg: "apply/applytest", args: "-test.run=^TestFastpath$ -proxyc=$PROXYC", more: ",flowtable", usual: true},
	{name: "watch-flowtable", modules: "br_netfilter", pkg: "e2e/daemon", args: "-test.run=^TestWatchFastpath$ -proxyc=$PROXYC", more: ",flowtable", usual: true},
	{name: "bench-flowtable", pkg: "e2e/packets", args: "-test.run=^$ -test.bench=Fastpath -test.benchtime=3000x -test.count=2 -proxyc=$PROXYC"},
	{name: "chosen-flowtable", pkg: "apply/applytest", more: ",flowtable",
		args: "-test.run=TestConformance$ -modes=nftables -through=watch -fastpath -proxyc=$PROXYC " +
			"-case=^(affinity-clientip|clusterip-udp|endpoint-updates|etp-local|hairpin|lb-source-ranges-allow|no-endpoints|nodeport|udp-endpoint-replaced)$"},
	{name: "iptables", pkg: "apply/iptables"},
	{name: "nftables", pkg: "apply/nftables"},
	{name: "bench-nftables", pkg: "apply/nftables", args: "-test.run=^$ -test.bench=OneService/^1000(0)?$|OneEndpoint/^1000$ -test.benchtime=30x"},
	{name: "peer-ipvs", pkg: "e2e/conformance", args: "-peer -ways=^ipvs$ -servers=1", modules: ipvs},
}

// require returns what its tests must not skip.
func (s suite) require() string {
	if s.modules == "" {
		return "netns" + s.more
	}
	return "netns,ipvs" + s.more
}

// proxyc is the package of the program.
const proxyc = "github.com/proxyc/proxyc/cmd/proxyc"

// A workshop is a directory in which suites are built.
type workshop struct{ root, dir string }

// build builds the suites.
func build(ctx context.Context, dir string, chosen []suite) (commands []command, err error) {
	w := workshop{dir: dir}
	if w.root, err = goTool(ctx, ".", "list", "-m", "-f", "{{.Dir}}", "github.com/proxyc/proxyc"); err != nil {
		return nil, err
	}
	if _, err := goTool(ctx, w.root, "build", "-o", w.tool(proxyc), proxyc); err != nil {
		return nil, err
	}
	for _, s := range chosen {
		binary, err := w.binary(ctx, s.pkg)
		if err != nil {
			return nil, err
		}
		args := strings.Fields(strings.ReplaceAll(s.args, "$PROXYC", w.tool(proxyc)))
		commands = append(commands, command{Name: s.name, Dir: filepath.Join(w.root, s.pkg), Modules: strings.Fields(s.modules),
			Env:  append(strings.Fields(s.env), "PROXYC_REQUIRE="+s.require(), "PROXYC_TOOLS="+w.tool("")),
			Args: append([]string{binary, "-test.v", "-test.timeout=4h"}, args...)})
	}
	return commands, nil
}

// tool returns the path of a program, by its package.
func (w workshop) tool(pkg string) string { return filepath.Join(w.dir, "tools", pkg) }

// binary builds the tests of a directory, and the real programs that those of e2e run.
func (w workshop) binary(ctx context.Context, pkg string) (string, error) {
	binary := filepath.Join(w.dir, strings.ReplaceAll(pkg, "/", "-")+".test")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	fmt.Println("vm: building", pkg)
	module := w.root
	if below, ok := strings.CutPrefix(pkg, "e2e/"); ok {
		module, pkg = filepath.Join(w.root, "e2e"), below
		if err := w.linkTools(ctx, module); err != nil {
			return "", err
		}
	}
	_, err := goTool(ctx, module, "test", "-tags", "all", "-c", "-o", binary, "./"+pkg)
	return binary, err
}

// linkTools builds the tools of a module.
func (w workshop) linkTools(ctx context.Context, module string) error {
	list, err := goTool(ctx, module, "list", "tool")
	if err != nil {
		return err
	}
	for pkg := range strings.FieldsSeq(list) {
		built, err := goTool(ctx, module, "tool", "-n", pkg)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(w.tool(pkg)), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(built, w.tool(pkg)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}

// goTool runs the Go tool in a directory and returns its output. The binaries that it builds are
// static, except for the module's tools, which other tests have already built.
func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if args[0] != "tool" {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
