package daemon

import (
	"context"
	"errors"
	"slices"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// fallbacks are the modes in the orders in which kube-proxy fell back until 1.25,
// where the node lacked what a mode needs (CFG-21; the documents of 1.14 and 1.16:
// "will fall back"), on Linux and on Windows.
var fallbacks = [][]ir.Mode{
	{ir.ModeIPVS, ir.ModeIPTables, ir.ModeUserspace},
	{ir.ModeKernelspace, ir.ModeUserspace},
}

// fallback chooses a mode that the node can run. What it chose once for a mode
// stays, whatever the kernel learns meanwhile: rules do not change their kind
// under a running daemon.
type fallback struct {
	possible func(*config.Config) error // nil: the node can run the mode of the configuration
	chosen   map[ir.Mode]choice
}

// choice is the mode that is taken for another one, and why.
type choice struct {
	mode   ir.Mode
	reason error // nil: it is the one that was wanted
}

// newFallback asks the kernel by opening dataplanes, of which none writes.
func newFallback(ctx context.Context, o *Options) *fallback {
	return &fallback{chosen: map[ir.Mode]choice{}, possible: func(cfg *config.Config) error {
		mode := cfg.ProxyMode()
		options := dataplaneOptions(cfg, o.IPVS)
		options.IPTables, options.LockTimeout, options.ReadOnly = o.IPTables, o.LockTimeout, true
		dataplane, err := Open(ctx, mode, options)
		if err != nil {
			return err
		}
		return dataplane.Close()
	}}
}

// settle gives a configuration the mode that is taken for its own. Where the node
// can run none, it stays as it is.
func (f *fallback) settle(r *config.Resolved) *config.Resolved {
	wanted := r.Config.ProxyMode()
	c, known := f.chosen[wanted]
	if !known {
		c = f.choose(r.Config)
		f.chosen[wanted] = c
	}
	return inMode(r, c.mode)
}

func inMode(r *config.Resolved, mode ir.Mode) *config.Resolved {
	if r.Config.ProxyMode() == mode {
		return r
	}
	resolved, cfg := *r, *r.Config
	cfg.Mode = string(mode)
	resolved.Config = &cfg
	return &resolved
}

func (f *fallback) choose(cfg *config.Config) choice {
	wanted := cfg.ProxyMode()
	for _, order := range fallbacks {
		first := slices.Index(order, wanted)
		if first < 0 || first == len(order)-1 {
			continue
		}
		var errs []error
		for _, mode := range order[first:] {
			one := *cfg
			one.Mode = string(mode)
			err := f.possible(&one)
			if err == nil {
				return choice{mode, errors.Join(errs...)}
			}
			errs = append(errs, err)
		}
	}
	return choice{mode: wanted}
}

// insteadOf returns the mode for which one was taken, and why; "" if it is the
// one that was wanted.
func (f *fallback) insteadOf(mode ir.Mode) (wanted ir.Mode, reason string) {
	if f == nil {
		return "", ""
	}
	for wanted, c := range f.chosen {
		if c.mode == mode && c.reason != nil {
			return wanted, c.reason.Error()
		}
	}
	return "", ""
}

// resolve is a Resolve whose configurations have a mode that the node can run.
func (f *fallback) resolve(from func() (*config.Resolved, []byte, diag.List)) func() (*config.Resolved, []byte, diag.List) {
	return func() (*config.Resolved, []byte, diag.List) {
		r, text, diags := from()
		if r != nil && !diags.HasErrors() {
			r = f.settle(r)
		}
		return r, text, diags
	}
}
