package growth

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/e2e/measure/sample"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
	"github.com/proxyc/proxyc/ir"
)

// randomProduct returns a product of at most a number of bytes, by random weights or by those of
// another one that are modified.
func randomProduct(random *rand.Rand, limit int, near *product) product {
	var weight [sizes]float64
	var p product
	for s := range sizes {
		if near != nil {
			weight[s] = float64(near.size[s]) * math.Exp(random.NormFloat64()/2)
		} else if random.IntN(3) > 0 {
			weight[s] = math.Exp(6 * random.Float64())
		}
	}
	for w := range policies {
		if p.with[w] = random.IntN(2) == 0; near != nil {
			p.with[w] = near.with[w] != (random.IntN(8) == 0)
		}
	}
	number := 1 + random.IntN(6)*random.IntN(2)
	if near != nil {
		number = max(1, near.size[services]+random.IntN(3)-1)
	}
	low, high := 0., 1000.
	for range 16 {
		try := (low + high) / 2
		for s := ports; s < sizes; s++ {
			p.size[s] = int(min(weight[s]*try, 1000))
		}
		p.size[services], p.size[ports] = number, max(1, p.size[ports])
		if len(text(p.objects(0)...)) > limit {
			high = try
		} else {
			low = try
		}
	}
	for s := ports; s < sizes; s++ {
		p.size[s] = int(min(weight[s]*low, 1000))
	}
	p.size[ports] = max(1, p.size[ports])
	return p
}

// worst searches for the product with the most rules and elements in a mode.
func worst(t *testing.T, mode ir.Mode, limit, tries int) (found product) {
	random, most := rand.New(rand.NewPCG(1, uint64(limit))), 0
	for i := range tries {
		var near *product
		if i > tries/3 {
			near = &found
		}
		p := randomProduct(random, limit, near)
		if len(text(p.objects(0)...)) > limit {
			continue // of one port
		}
		if n, _ := p.cost(t, mode); n > most {
			found, most = p, n
		}
	}
	t.Logf("%s, %d bytes: %d rules and elements: %v", mode, limit, most, found)
	return found
}

// A small memory holds four of the worst objects beside usual Services, at a start and at a restart.
func TestWorstObjects(t *testing.T) {
	applytest.Long(t)
	applytest.RequireRoot(t)
	fixed := func(p product) func(*testing.T, ir.Mode) product {
		return func(*testing.T, ir.Mode) product { return p }
	}
	search := func(limit, tries int) func(*testing.T, ir.Mode) product {
		return func(t *testing.T, mode ir.Mode) product { return worst(t, mode, limit, tries) }
	}
	for _, tc := range []struct {
		name string
		peak int64 // MiB
		make func(*testing.T, ir.Mode) product
		// In mode iptables, as under kube-proxy, restoring the rules of the others takes minutes.
		iptables bool
	}{
		{"ports and external IPs", 128, fixed(product{size: [sizes]int{1, 99, 100, 0, 0, 50}}), true},
		{"ports and endpoints with affinity", 256, fixed(product{size: [sizes]int{1, 300, 0, 0, 0, 1000}, with: [policies]bool{nodePorts: true, affinity: true}}), false},
		{"16 KB", 256, search(16<<10, 60), false},
		{"64 KB", 256, search(64<<10, 40), false},
	} {
		for _, mode := range []ir.Mode{ir.ModeNFTables, ir.ModeIPTables} {
			if mode == ir.ModeIPTables && !tc.iptables {
				continue
			}
			t.Run(fmt.Sprintf("%s in mode %s", tc.name, mode), func(t *testing.T) {
				for _, peak := range runProducts(t, mode, tc.make(t, mode), 4) {
					if peak>>20 > tc.peak {
						t.Errorf("the peak is %d MiB, want at most %d", peak>>20, tc.peak)
					}
				}
			})
		}
	}
}

// runProducts runs a daemon on copies of objects beside usual Services, and again on the rules of the
// first run. It returns the peaks of memory.
func runProducts(t *testing.T, mode ir.Mode, p product, copies int) (peaks [2]int64) {
	err := scenario.Start("growth", t.Output(), t.Output(), func(to *scenario.Run) (err error) {
		r := runner{Run: to, mode: string(mode)}
		if r.binary, err = to.Proxyc(t.Context()); err != nil {
			return err
		}
		var list bytes.Buffer
		usual, more := filepath.Join(r.Dir, "usual.json"), filepath.Join(r.Dir, "more.json")
		var objects []any
		for i := range copies {
			objects = append(objects, p.objects(i)...)
		}
		if err := errors.Join(cluster.WriteList(&list, cluster.Cluster{Services: 1000, Endpoints: 10}.Objects()),
			os.WriteFile(usual, list.Bytes(), 0o600), os.WriteFile(more, text(objects...), 0o600)); err != nil {
			return err
		}
		return inNamespace(func(ns *applytest.Namespace) error {
			for i := range peaks {
				d, err := r.start(ns, "--snapshot", usual, "--snapshot", more, "-v", "4")
				if err != nil {
					return err
				}
				err = d.synced(t.Context())
				took := time.Since(d.began)
				if err == nil {
					peaks[i], err = sample.Memory(d.Pid(), sample.Peak)
				}
				d.stop()
				log, readErr := os.ReadFile(d.Log)
				if err := errors.Join(err, readErr, os.Remove(d.Log)); err != nil {
					return fmt.Errorf("%w\n%s", err, log)
				}
				t.Logf("%s: %.1f s, peak %d MiB, %d lines of warnings, %s", [...]string{"start", "restart"}[i], took.Seconds(), peaks[i]>>20,
					len(regexp.MustCompile(`(?m)^[WE]`).FindAll(log, -1)), regexp.MustCompile(`operations=.*took=.*`).Find(log))
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return peaks
}
