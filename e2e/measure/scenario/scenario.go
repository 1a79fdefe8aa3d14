// Package scenario is shared by all scenarios of measure: how they run, where their files are,
// and where their reports go.
package scenario

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"

	"github.com/proxyc/proxyc/e2e/kube"
)

// Run is one run of a scenario.
type Run struct {
	Flags *flag.FlagSet
	Dir   string    // for files; it is removed afterwards
	Out   io.Writer // gets the results
	Log   io.Writer // gets the progress

	proxyc, report string
}

// Start runs a scenario.
func Start(name string, out, log io.Writer, run func(*Run) error) error {
	dir, err := os.MkdirTemp("", "measure-"+name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return run(&Run{Flags: flag.NewFlagSet(name, flag.ContinueOnError), Dir: dir, Out: out, Log: log})
}

// Measures adds the flags of a scenario that measures proxyc and writes a report.
func (r *Run) Measures() {
	r.Flags.StringVar(&r.proxyc, "proxyc", "", "`file` of the program; built when empty")
	r.Flags.StringVar(&r.report, "json", "", "`file` for the report")
}

// Proxyc returns the path of the program. It builds the program unless a flag names one.
func (r *Run) Proxyc(ctx context.Context) (string, error) {
	if r.proxyc != "" {
		return r.proxyc, nil
	}
	return kube.Proxyc(ctx, r.Dir)
}

// Save writes the complete report or nothing, if a flag names a file.
func (r *Run) Save(report any) error {
	if r.report == "" {
		return nil
	}
	data, err := json.MarshalIndent(report, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.report+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(r.report+".new", r.report)
}
