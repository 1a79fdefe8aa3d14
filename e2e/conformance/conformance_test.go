package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

var (
	proxycFlag  = flag.String("proxyc", "", "binary to use; built from the module above when empty")
	caseFlag    = flag.String("case", "", "play only cases whose names match")
	serversFlag = flag.Int("servers", 3, "number of API servers, and so of concurrent cases")
	waysFlag    = flag.String("ways", "", "play only ways whose names match")
	recordFlag  = flag.String("record", "", "file with records of kube-proxy, to which missing ones are added; requires -peer and one way")
	peerFlag    = flag.Bool("peer", false, "play kube-proxy instead of proxyc, to check this package: the results must equal its records")
)

// A way is how a proxy writes to the kernel.
type way struct {
	name, mode string
	args       []string // of proxyc
	only       string   // the cases to play, a regular expression
	short      string   // the family without -tags all
}

// shortCases are the cases without -tags all. In them objects change while the proxy runs, or the
// responses of its API server matter otherwise. cmd/proxyc plays the others without an API
// server.
const shortCases = "^(affinity-endpoint-loss|dual-stack|endpoint-updates|established-tcp-survives|healthcheck-nodeport|hints-zone|nodeport|" +
	"service-before-after-slice|service-delete|target-port-update|type-change|udp-endpoint-replaced)$"

var ways = []way{
	{name: "nftables", mode: "nftables", short: applytest.IPv4},
	{name: "ipvs", mode: "ipvs", short: applytest.IPv4},
	{name: "iptables-nft", mode: "iptables", args: []string{"--iptables-variant", "nft"}, short: applytest.IPv6},
	// Other variants differ in how rules are read, written and matched, not in what is compiled.
	{name: "iptables-legacy", mode: "iptables", args: []string{"--iptables-variant", "legacy"}, short: applytest.IPv4,
		only: "^(affinity|clusterip|dual|endpoint|established|hairpin|health|lb-source|nodeport|no-endpoints|service-delete|type-change|udp)"},
}

// TestConformance plays the recorded cases and prints a table of the results.
func TestConformance(t *testing.T) {
	applytest.RequireRoot(t)
	chosen, err := regexp.Compile(*caseFlag)
	if err != nil {
		t.Fatal(err)
	}
	waysChosen, err := regexp.Compile(*waysFlag)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), applytest.ScaledTimeout(15*time.Minute)) // the tools may have to be built
	defer cancel()
	program, err := program(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var records *applytest.Records
	if *recordFlag != "" {
		if records, err = applytest.LoadRecords(os.DirFS("."), *recordFlag); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := records.Write(*recordFlag); err != nil {
				t.Error(err)
			}
		}()
	}
	servers := *serversFlag
	if !applytest.All {
		servers = min(servers, 2) // a start takes longer than some cases
	}
	pool := startServers(ctx, t, servers)
	table := &strings.Builder{}
	w := tabwriter.NewWriter(table, 0, 0, 3, ' ', 0)
	fmt.Fprintf(w, "%s\tfamily\tcases\tflows\tdifferences\tseconds\n", program.name)
	for _, way := range ways {
		if !program.plays(way) {
			continue
		}
		if !waysChosen.MatchString(way.name) || way.mode == "ipvs" && !applytest.HaveIPVS(t) {
			continue
		}
		only := regexp.MustCompile(way.only)
		if !applytest.All {
			only = regexp.MustCompile(shortCases)
		}
		for _, family := range []string{applytest.IPv4, applytest.IPv6} {
			t.Run(way.name+"/"+family, func(t *testing.T) {
				if family != way.short {
					applytest.Long(t)
				}
				suite := &applytest.Suite{
					Runner: &applytest.Runner{Mode: way.mode, Daemon: daemon(pool, program, way)},
					Family: family,
					Dir:    os.DirFS("../../testdata/conformance"),
					Only: func(name string) bool {
						return chosen.MatchString(name) && only.MatchString(name)
					},
					Jobs:   servers,
					Record: records,
				}
				score := suite.Play(t)
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.0f\n", way.name, family, score.Cases, score.Flows, score.Differences, score.Took.Seconds())
			})
		}
	}
	w.Flush()
	fmt.Print(table)
}

// servers are idle control planes. Each plays one case at a time, since all cases use the same
// addresses.
type servers chan *kube.Cluster

func startServers(ctx context.Context, t *testing.T, n int) servers {
	rbac, err := kube.Manifests("../../docs/deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pool := make(servers, n)
	var all sync.WaitGroup
	for range n {
		dir := t.TempDir()
		all.Go(func() {
			c, err := kube.Start(ctx, dir)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { c.Close() })
			if err := c.Apply(ctx, rbac...); err != nil {
				t.Error(err)
			}
			pool <- c
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return pool
}
