package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// fallbacks are the orders in which kube-proxy fell back until 1.25 if the node lacked support for
// a mode, on Linux and on Windows (CFG-21; the documentation of 1.14 and 1.16: "will fall back").
var fallbacks = [][]ir.Mode{
	{ir.ModeIPVS, ir.ModeIPTables, ir.ModeUserspace},
	{ir.ModeKernelspace, ir.ModeUserspace},
}

// supported returns the mode of a configuration, or the one that replaces it because the node does not
// support it, and then the reason. If the node supports none, it is the mode of the configuration.
func supported(cfg *config.Config, open func(*config.Config) error) (mode ir.Mode, reason error) {
	wanted := cfg.ProxyMode()
	for _, order := range fallbacks {
		first := slices.Index(order, wanted)
		if first < 0 || first == len(order)-1 {
			continue
		}
		var errs []error
		for _, mode := range order[first:] {
			err := open(inMode(cfg, mode))
			if err == nil {
				return mode, errors.Join(errs...)
			}
			errs = append(errs, err)
		}
	}
	return wanted, nil
}

// inMode returns a configuration with another mode.
func inMode(cfg *config.Config, mode ir.Mode) *config.Config {
	other := *cfg
	other.Mode = string(mode)
	return &other
}

// tryOpen returns why a read-only dataplane of a configuration cannot be opened.
func tryOpen(ctx context.Context, o *Options, cfg *config.Config) error {
	options := host.Options(cfg, o.IPVS)
	options.IPTables, options.LockTimeout, options.ReadOnly = o.IPTables, o.LockTimeout, true
	return thrice(ctx, func() error {
		dataplane, err := host.Open(ctx, cfg.ProxyMode(), options)
		if err != nil {
			return err
		}
		return dataplane.Close()
	})
}

// thrice calls open up to three times, a second apart, until it succeeds: it may fail for a temporary
// reason, and the mode stays until the process ends.
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
