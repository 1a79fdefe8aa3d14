package growth

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// TestMain is also the program that is measured in addition to the daemon.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ClientName {
		RunClient(context.Background(), nil, os.Args[2:])
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestGrowth runs the scenario for each kind of cluster, at sizes too small for useful results.
func TestGrowth(t *testing.T) {
	applytest.RequireRoot(t)
	sizes := map[string]string{"mixed": "40x2", "contested": "2x1,4x1", "shared": "4x2", "ranges": "2x1"}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel() // most of the time memory settles
			testGrowth(t, k.name, sizes[k.name])
		})
	}
}

// run makes two changes of each kind.
func run(t *testing.T, out io.Writer, args ...string) {
	t.Helper()
	err := scenario.Start("growth", out, t.Output(), func(r *scenario.Run) error {
		return Run(t.Context(), r, append(args, "-rounds", "2"))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func testGrowth(t *testing.T, kind, sizes string) {
	file := filepath.Join(t.TempDir(), "growth.json")
	var table strings.Builder
	run(t, &table, "-kind", kind, "-sizes", sizes, "-json", file)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if want := 1 + strings.Count(sizes, ","); len(got.Rows) != want || got.Slopes != nil {
		t.Fatalf("%d rows and slopes %v, want %d and none: sizes with equally many endpoints have no slopes", len(got.Rows), got.Slopes, want)
	}
	for _, row := range got.Rows {
		for _, s := range []start{row.Snapshot, row.Client, row.API} {
			if s.Seconds <= 0 || s.CPUSeconds <= 0 || s.Live <= 0 || s.Resident <= s.Live || s.Peak < s.Resident {
				t.Errorf("start: %+v", s)
			}
		}
		for _, c := range []change{row.Endpoint, row.Added, row.Removed} {
			if c.Median <= 0 || c.P90 < c.Median || c.CPUSeconds <= 0 {
				t.Errorf("change: %+v", c)
			}
		}
		if size := fmt.Sprintf("\n| %d x %d ", row.Services, row.Endpoints); !strings.Contains(table.String(), size) {
			t.Errorf("the table has no row%s:\n%s", size, &table)
		}
	}
	if want := len(got.Rows) > 1; strings.Contains(table.String(), "\n| 2 to 4 ") != want {
		t.Errorf("the table has a row of powers: want %v\n%s", want, &table)
	}
}

// TestCompare checks that both programs are measured.
func TestCompare(t *testing.T) {
	applytest.Long(t)
	applytest.RequireRoot(t)
	var out strings.Builder
	run(t, &out, "-compare", "nftables", "-sizes", "40x2")
	for _, name := range []string{"proxyc", "kube-proxy"} {
		if !regexp.MustCompile(`(?m)^` + name + ` nftables 40x2: all in force after \d+\.\d\d s, an endpoint after \d\.\d{4} s \(median of 2, `).MatchString(out.String()) {
			t.Errorf("nothing of %s:\n%s", name, &out)
		}
	}
}

func TestFit(t *testing.T) {
	var rows []*row
	for _, size := range [][2]int{{1000, 10}, {50_000, 10}, {20_000, 1}, {5000, 50}} {
		n := float64(size[0])
		rows = append(rows, &row{Services: size[0], Endpoints: size[1],
			Snapshot: start{memory: memory{Live: 4e6 + 3000*n + 500*n*float64(size[1])}}})
	}
	got := fit(rows).Live
	for _, p := range [][2]float64{{got.Rest, 4e6}, {got.Service, 3000}, {got.Endpoint, 500}} {
		if math.Abs(p[0]/p[1]-1) > 1e-6 {
			t.Errorf("%+v, want 4e6, 3000 and 500", got)
		}
	}
	if s := fit(rows[:2]); s != nil {
		t.Errorf("slopes %+v of sizes with the same number of endpoints", s)
	}
}
