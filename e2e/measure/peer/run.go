package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/e2e/measure/sample"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// report is the result of a run.
type report struct {
	Began    time.Time         `json:"began"`
	Versions map[string]string `json:"versions"`
	Options  map[string]any    `json:"options"`
	Load     float64           `json:"loadSeconds"` // until the API server had the cluster
	Wire     []wire            `json:"wire"`
	Results  []*result         `json:"results"`
}

// run measures both programs in each mode on one cluster.
func run(ctx context.Context, to *scenario.Run, o options) (*report, error) {
	peer, own, err := programs(ctx, to)
	if err != nil {
		return nil, err
	}
	r := &report{Began: time.Now().UTC().Truncate(time.Second), Versions: versions(ctx, peer, own), Options: o.describe()}
	c, err := kube.Start(ctx, to.Dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := prepare(ctx, c, o, r, to.Log); err != nil {
		return nil, err
	}
	if r.Wire, err = wires(ctx, c.Client()); err != nil {
		return nil, err
	}
	order := []program{peer, own}
	if o.ownFirst {
		order = []program{own, peer}
	}
	save := func() {
		if err := to.Save(r); err != nil {
			fmt.Fprintln(to.Log, err)
		}
	}
	for _, name := range o.modes {
		for _, p := range order {
			if !slices.Contains(o.programs, p.name) {
				continue
			}
			found := &result{Program: p.name, Mode: name, Samples: map[string][]float64{}}
			r.Results = append(r.Results, found)
			for range o.repeat {
				once := &result{Program: p.name, Mode: name, Values: map[string]float64{}, Samples: map[string][]float64{}}
				s := &subject{setup: setup{p, modes[name], to.Dir, o.minSync}, options: o, api: c.Client(), log: to.Log, found: once}
				if err := measureOn(ctx, c, s); err != nil {
					once.Errors = append(once.Errors, err.Error())
				}
				found.add(once)
				save()
			}
			if ctx.Err() != nil {
				return r, nil // what was found is shown
			}
		}
	}
	return r, nil
}

// add adds a run to a result, whose values are the medians of those that all runs have.
func (r *result) add(run *result) {
	r.Runs = append(r.Runs, run.Values)
	r.Requests, r.Errors = run.Requests, append(r.Errors, run.Errors...)
	for key, samples := range run.Samples {
		r.Samples[key] = append(r.Samples[key], samples...)
	}
	r.Values = map[string]float64{}
	for key := range run.Values {
		var all []float64
		for _, values := range r.Runs {
			if v, ok := values[key]; ok {
				all = append(all, v)
			}
		}
		if slices.Sort(all); len(all) == len(r.Runs) {
			r.Values[key] = sample.Quantile(all, 0.5)
		}
	}
}

// prepare fills the cluster.
func prepare(ctx context.Context, c *kube.Cluster, o options, r *report, log io.Writer) error {
	root, err := kube.Root(ctx)
	if err != nil {
		return err
	}
	rbac, err := kube.Manifests(filepath.Join(root, "docs/deploy/rbac.yaml"))
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, rbac...); err != nil {
		return err
	}
	began := time.Now()
	if err := populate(ctx, c.Client(), o.cluster, o.atOnce); err != nil {
		return err
	}
	r.Load = time.Since(began).Seconds()
	fmt.Fprintf(log, "%d Services of %d endpoints are with the API server after %.0f s\n", o.cluster.Services, o.cluster.Endpoints, r.Load)
	return nil
}

// measureOn measures a program on a node, and counts its requests.
func measureOn(ctx context.Context, c *kube.Cluster, s *subject) (err error) {
	if err := reset(ctx, s.api, s.atOnce); err != nil {
		return err
	}
	if s.lab, err = newLab(c, endpoints); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.lab.Close()) }()
	began := time.Now()
	s.measure(ctx)
	if s.started.IsZero() {
		s.started = time.Now() // all requests so far were for the start
	}
	s.gate.Cut() // ends watches, which are logged at their end
	s.found.Requests, err = requests(c, s.user, began, s.started)
	return err
}

// describe returns the options for a report.
func (o options) describe() map[string]any {
	mix, order := "real", "peer-first"
	if o.cluster.Plain {
		mix = "plain"
	}
	if o.ownFirst {
		order = "proxyc-first"
	}
	return map[string]any{"services": o.cluster.Services, "endpoints": o.cluster.Endpoints, "mix": mix,
		"minSync": o.minSync.String(), "order": order, "repeat": o.repeat, "rounds": o.rounds, "burst": o.atOnce}
}

func readReport(file string) (*report, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}
