package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// fallbacks are the orders in which kube-proxy fell back until 1.25 if the node lacked support for
// a mode, on Linux and on Windows (CFG-21; the documentation of 1.14 and 1.16: "will fall back").
var fallbacks = [][]ir.Mode{
	{ir.ModeIPVS, ir.ModeIPTables, ir.ModeUserspace},
	{ir.ModeKernelspace, ir.ModeUserspace},
}

// fallback selects a mode that the node supports. The selection for a mode is permanent, even if
// the kernel gains features: rules do not change their kind while a daemon runs.
type fallback struct {
	possible func(*config.Config) error // nil if the node supports the configured mode
	chosen   map[ir.Mode]choice
}

// choice is the selected mode, with the reason.
type choice struct {
	mode   ir.Mode
	reason error // nil if it is the configured mode
}

// newFallback returns a fallback that checks support by opening read-only dataplanes.
func newFallback(ctx context.Context, o *Options) *fallback {
	return &fallback{chosen: map[ir.Mode]choice{}, possible: func(cfg *config.Config) error {
		mode := cfg.ProxyMode()
		options := host.Options(cfg, o.IPVS)
		options.IPTables, options.LockTimeout, options.ReadOnly = o.IPTables, o.LockTimeout, true
		return thrice(ctx, func() error {
			dataplane, err := host.Open(ctx, mode, options)
			if err != nil {
				return err
			}
			return dataplane.Close()
		})
	}}
}

// thrice calls open up to three times, a second apart, until it succeeds: it may fail for a temporary
// reason, and a selection is permanent.
func thrice(ctx context.Context, open func() error) error {
	for attempt := 1; ; attempt++ {
		err := open()
		if err == nil || attempt == 3 {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(apply.FirstRetry):
		}
	}
}

// settle replaces the mode of a configuration by the selected one. If the node supports none, the
// mode is kept.
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

// insteadOf returns the configured mode that another one replaced, and why; "" if mode is the
// configured one.
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

// resolve wraps a Resolve function: its configurations have a mode that the node supports.
func (f *fallback) resolve(from func() (*config.Resolved, []byte, diag.List)) func() (*config.Resolved, []byte, diag.List) {
	return func() (*config.Resolved, []byte, diag.List) {
		r, text, diags := from()
		if r != nil && !diags.HasErrors() {
			r = f.settle(r)
		}
		return r, text, diags
	}
}
