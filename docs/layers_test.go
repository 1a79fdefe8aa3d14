package docs

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/proxyc/proxyc/"

// layers are the packages from below: each imports from layers below its own
// alone. The sides, which are written "a | b", never import each other.
var layers = []string{
	"ir",
	"ir/sim ir/irtest",
	"ir/prove",
	"ir/flow",
	"compiler/diag compiler/inet | render",
	"compiler/config compiler/snapshot | render/iptables render/nftables render/hns render/rendertest render/nftables/nftest render/iptables/iptest",
	"compiler/snapshot/manifest | render/ipvs render/userspace render/nftables/eval render/iptables/eval render/iptables/parse render/hns/eval",
	"compiler/assume",
	"compiler compiler/lint | render/nftables/parse render/ipvs/eval render/ipvs/parse render/userspace/eval render/xtables",
	"compiler/redact",
	"apply apply/build apply/run",
	"apply/socket",
	"apply/nftables/codec",
	"apply/nftables/conn",
	"apply/conntrack apply/files apply/monitor apply/serve apply/sysctl",
	"apply/nftables/flowtable apply/node",
	"apply/iptables apply/nftables apply/hns apply/watch",
	"apply/ipvs apply/userspace",
	"apply/daemon/logging apply/daemon/reconcile apply/daemon/status apply/hns/hnstest apply/winuserspace",
	"apply/daemon/host",
	"apply/daemon/oneshot apply/daemon/takeover",
	"apply/daemon",
	"apply/doctor",
	"cmd/proxyc/disk cmd/proxyc/help cmd/proxyc/page cmd/proxyc/terminal",
	"cmd/proxyc/review",
	"cmd/proxyc/review/diff cmd/proxyc/review/top cmd/proxyc/review/trace",
	"cmd/proxyc/demo cmd/proxyc/review/contract cmd/proxyc/review/explain cmd/proxyc/review/flows cmd/proxyc/review/rules",
	"cmd/proxyc/review/proof cmd/proxyc/review/report",
	"cmd/proxyc/review/migrate cmd/proxyc/review/replay",
	"cmd/proxyc",
}

// tools are for tests.
var tools = []string{"apply/applytest", "cmd/proxyc/review/reviewtest", "docs"}

// No package imports upwards.
func TestLayers(t *testing.T) {
	rank, side := map[string]int{}, map[string]string{}
	for i, layer := range layers {
		sides := strings.Split(layer, "|")
		for j, packages := range sides {
			for _, p := range strings.Fields(packages) {
				rank[p] = i
				if len(sides) > 1 {
					side[p] = []string{"compiler", "render"}[j]
				}
			}
		}
	}
	for _, goos := range []string{"linux", "windows", "darwin"} {
		cmd := exec.Command("go", "list", "-f", `{{$p := .ImportPath}}{{$p}}{{range .Imports}} {{.}}{{end}}`, "./...")
		cmd.Dir = ".."
		cmd.Env = append(cmd.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			words := strings.Fields(line)
			from := strings.TrimPrefix(words[0], module)
			if slices.ContainsFunc(tools, func(tool string) bool { return strings.HasPrefix(from, tool) }) {
				continue
			}
			at, known := rank[from]
			if !known {
				t.Errorf("%s: is in no layer", from)
			}
			for _, path := range words[1:] {
				to, ours := strings.CutPrefix(path, module)
				if !ours {
					continue
				}
				if below, known := rank[to]; !known || below >= at || side[from] != "" && side[to] != "" && side[from] != side[to] {
					t.Errorf("%s, %s: imports %s, which is not below it", goos, from, to)
				}
			}
		}
	}
}
