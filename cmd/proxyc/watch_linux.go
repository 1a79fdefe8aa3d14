package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/apply/loop"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/ir"
	iptablesrules "github.com/proxyc/proxyc/render/iptables"
	nftablesrules "github.com/proxyc/proxyc/render/nftables"
)

// kernel is the dataplane of a mode as the daemon uses it.
type kernel struct {
	loop.Kernel
	mode ir.Mode
	// leftovers are what proxies of other modes left.
	leftovers func(ctx context.Context) ([]apply.Leftover, error)
	// suspect gives a token when somebody else may have changed the rules.
	suspect  <-chan struct{}
	close    func() error
	counters packetCounters // nil: packets are not counted
}

// monitored is a Kernel whose changes a monitor knows to be ours.
type monitored struct {
	loop.Kernel
	monitor monitorer
}

// monitorer is what tells of the changes of others.
type monitorer interface {
	Begin()
	End()
	Run(ctx context.Context)
	Close() error
}

func (m monitored) Replace(ctx context.Context, programs ir.Programs) (loop.Done, error) {
	m.monitor.Begin()
	defer m.monitor.End()
	return m.Kernel.Replace(ctx, programs)
}

func (m monitored) Repair(ctx context.Context, c *loop.Comparison) (loop.Done, error) {
	m.monitor.Begin()
	defer m.monitor.End()
	return m.Kernel.Repair(ctx, c)
}

func (m monitored) Change(ctx context.Context, changes ir.Changes) (loop.Done, error) {
	m.monitor.Begin()
	defer m.monitor.End()
	return m.Kernel.Change(ctx, changes)
}

// listen makes the kernel tell of changes of others. Without it they are found
// by the hourly comparison.
func (k *kernel) listen(ctx context.Context, log *slog.Logger, open func(suspect func()) (monitorer, error)) *kernel {
	tokens := make(chan struct{}, 1)
	m, err := open(func() {
		select {
		case tokens <- struct{}{}:
		default:
		}
	})
	if err != nil {
		log.Error("changes of the rules by others will be seen late", "err", err)
		return k
	}
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	closeTarget := k.close
	k.Kernel, k.suspect = monitored{k.Kernel, m}, tokens
	k.close = func() error {
		err := m.Close()
		<-done
		return errors.Join(err, closeTarget())
	}
	return k
}

func listenNFT(concern monitor.Concern) func(func()) (monitorer, error) {
	return func(suspect func()) (monitorer, error) { return monitor.OpenNFT(concern, suspect) }
}

func listenLegacy(suspect func()) (monitorer, error) { return monitor.OpenLegacy(suspect), nil }

func openKernel(ctx context.Context, mode ir.Mode, variant string, wait time.Duration, log *slog.Logger) (*kernel, error) {
	switch mode {
	case ir.ModeNFTables:
		t, err := nftables.Open()
		if err != nil {
			return nil, err
		}
		t.Log = log
		k := &kernel{
			mode:      mode,
			Kernel:    &loop.Plane[nftablesrules.Tables]{Target: t, Memory: &nftables.Memory{}},
			leftovers: func(ctx context.Context) ([]apply.Leftover, error) { return leftoversBut(ctx, mode, nil) },
			close:     t.Close,
		}
		return k.listen(ctx, log, listenNFT(monitor.NFTables)), nil
	case ir.ModeIPTables:
		o := iptables.Options{Wait: wait}
		if variant != "auto" {
			o.Variant = iptables.Variant(variant)
		}
		t, err := iptables.Open(ctx, o)
		if err != nil {
			return nil, err
		}
		log.Info("using iptables", "variant", t.Variant)
		k := &kernel{
			mode:      mode,
			Kernel:    &loop.Plane[iptablesrules.Rulesets]{Target: t, Memory: iptables.NewMemory(t)},
			leftovers: func(ctx context.Context) ([]apply.Leftover, error) { return leftoversBut(ctx, mode, t) },
			close:     func() error { return nil },
			counters:  t,
		}
		if t.Variant == iptables.Legacy {
			return k.listen(ctx, log, listenLegacy), nil
		}
		return k.listen(ctx, log, listenNFT(monitor.IPTables)), nil
	}
	return nil, fmt.Errorf("mode: watch writes modes iptables and nftables, got %q", mode)
}
