// Package growth measures how `proxyc watch` grows with the cluster, on a file and on an API
// server: the time from the start of the process until all Services are in the kernel, its
// memory, and the time and CPU of a change. It measures clusters of several sizes, and computes
// with which power of the size the costs grow. Every daemon has its own network namespace, and
// mode nftables. It requires root. With -compare it also measures kube-proxy, in the named mode.
package growth

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/proxyc/proxyc/e2e/measure/sample"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// report is the result of a run.
type report struct {
	Machine sample.Machine `json:"machine"`
	Kind    string         `json:"kind"`
	Plain   bool           `json:"plain"`
	Rows    []*row         `json:"rows"`
	Slopes  *slopes        `json:"slopes,omitempty"`
}

// row is the result for one size. Times are in seconds.
type row struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"` // of each Service
	// Snapshot is the daemon on a file, API the daemon on an API server. Client is client-go
	// alone, which only keeps the API server's objects.
	Snapshot start `json:"snapshot"`
	Client   start `json:"clientGo"`
	API      start `json:"api"`
	// Costs of the daemon on an API server, from an event to the kernel.
	Endpoint change `json:"endpointChanged"`
	Added    change `json:"serviceAdded"`
	Removed  change `json:"serviceRemoved"`
}

// start is a daemon that has put all Services in force. Memory is in bytes.
type start struct {
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpuSeconds"`
	memory
}

// change is one kind of change, made several times.
type change struct {
	Median     float64 `json:"median"`
	P90        float64 `json:"p90"`
	CPUSeconds float64 `json:"cpuSeconds"` // of one
}

// runner measures the sizes one after the other.
type runner struct {
	*scenario.Run
	binary string
	mode   string // "" for nftables
	rounds int
}

// Run is the scenario.
func Run(ctx context.Context, to *scenario.Run, args []string) (err error) {
	to.Measures()
	r := runner{Run: to}
	name := to.Flags.String("kind", kinds[0].name, "kind of cluster: "+kindNames())
	sizes := to.Flags.String("sizes", "", "Services x endpoints of each, separated by commas; by default those of the kind")
	to.Flags.IntVar(&r.rounds, "rounds", 50, "number of changes of each kind")
	plain := to.Flags.Bool("plain", false, "ClusterIP Services with one port only")
	compare := to.Flags.String("compare", "", "measure proxyc and kube-proxy in a mode instead: nftables or ipvs (where the kernel has it)")
	if err := to.Flags.Parse(args); err != nil {
		return err
	}
	if r.binary, err = to.Proxyc(ctx); err != nil {
		return err
	}
	k := slices.IndexFunc(kinds, func(k kind) bool { return k.name == *name })
	if k < 0 {
		return fmt.Errorf("-kind: want one of %s, got %q", kindNames(), *name)
	}
	found := &report{Machine: sample.ThisMachine(), Kind: *name, Plain: *plain}
	for size := range strings.SplitSeq(cmp.Or(*sizes, kinds[k].sizes), ",") {
		c := kinds[k].cluster
		c.Plain = c.Plain || *plain || *compare != ""
		if _, err := fmt.Sscanf(size, "%dx%d", &c.Services, &c.Endpoints); err != nil || c.Services < 1 || c.Endpoints < 1 {
			return fmt.Errorf("-sizes: want 1000x10, got %q", size)
		}
		fmt.Fprintln(r.Log, "measuring", size)
		if *compare != "" {
			err = r.compare(ctx, *compare, c)
		} else {
			err = r.measure(ctx, c, found)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", size, err)
		}
	}
	if *compare != "" {
		return nil
	}
	found.Slopes = fit(found.Rows)
	found.print(to.Out)
	return to.Save(found)
}

const mb = 1e6

// print writes the tables of docs/reference/performance.md.
func (r *report) print(to io.Writer) {
	w := tabwriter.NewWriter(to, 0, 0, 1, ' ', 0)
	fmt.Fprintf(w, "%s, %d CPUs, Linux %s, %s\n\n", r.Kind, r.Machine.CPUs, r.Machine.Kernel, r.Machine.Go)
	fmt.Fprint(w, "| Services x endpoints\t| from\t| all in the kernel\t| CPU\t| resident\t| at most\t| live heap\t|\n|---\t|---\t|---\t|---\t|---\t|---\t|---\t|\n")
	for _, row := range r.Rows {
		for _, s := range []struct {
			from string
			start
		}{{"file", row.Snapshot}, {"API, client-go alone", row.Client}, {"API", row.API}} {
			fmt.Fprintf(w, "| %d x %d\t| %s\t| %.2f s\t| %.2f s\t| %.0f MB\t| %.0f MB\t| %.0f MB\t|\n", row.Services, row.Endpoints, s.from,
				s.Seconds, s.CPUSeconds, s.Resident/mb, s.Peak/mb, s.Live/mb)
		}
	}
	fmt.Fprint(w, "\n| Services x endpoints\t| one endpoint\t| p90\t| CPU\t| Service added\t| p90\t| CPU\t| removed\t| p90\t| CPU\t|\n|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(w, "| %d x %d\t", row.Services, row.Endpoints)
		for _, c := range []change{row.Endpoint, row.Added, row.Removed} {
			for _, s := range []float64{c.Median, c.P90, c.CPUSeconds} {
				fmt.Fprintf(w, "| %.2f ms\t", 1e3*s)
			}
		}
		fmt.Fprintln(w, "|")
	}
	r.printPowers(w)
	if s := r.Slopes; s != nil {
		fmt.Fprint(w, "\n| memory, from a file\t| at rest\t| for each Service\t| for each endpoint\t|\n|---\t|---\t|---\t|---\t|\n")
		for _, p := range []struct {
			name string
			plane
		}{{"resident", s.Resident}, {"at most", s.Peak}, {"live heap", s.Live}} {
			fmt.Fprintf(w, "| %s\t| %.0f MB\t| %.0f B\t| %.0f B\t|\n", p.name, p.Rest/mb, p.Service, p.Endpoint)
		}
	}
	w.Flush()
}

// stepTimeout is the timeout of each step.
const stepTimeout = 5 * time.Minute
