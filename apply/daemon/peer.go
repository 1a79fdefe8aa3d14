package daemon

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/watch"
)

const (
	// peerEvery is how often kube-proxy's rules are looked for.
	peerEvery = 2 * time.Second
	// peerAgain is how soon its rules come back where it runs: it looks after
	// them every syncPeriod, 30 s by default, and a container that ends is
	// started again within five minutes.
	peerAgain = 10 * time.Minute
)

// peer looks whether kube-proxy comes back beside the daemon. What it left is
// removed, as at a start. If it is there again soon after, kube-proxy runs: its
// rules stay then, since two programs that remove each other's rules are worse
// than two that serve the same Services.
type peer struct {
	look   func() ([]string, error)
	remove func(context.Context) error // what failed is tried again by itself
	now    func() time.Time
	log    *slog.Logger
	tell   func(*KubeProxy)
	send   func(watch.Event)

	removed time.Time   // last; zero: there was nothing to remove
	going   bool        // they are being removed: they have not come back
	there   atomic.Bool // it runs: its rules stay
}

// newPeer looks once: what is there before the daemon's first sync is taken
// over by that.
func newPeer(d *daemon, remove func(context.Context) error) *peer {
	p := &peer{look: monitor.KubeProxy, remove: remove, now: time.Now, log: d.log.Logger, tell: d.state.setKubeProxy, send: d.events.Send}
	if found, _ := p.look(); len(found) > 0 {
		p.removed = p.now()
	}
	return p
}

// watch looks until ctx ends.
func (p *peer) watch(ctx context.Context) {
	ticker := time.NewTicker(peerEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.step(ctx)
		}
	}
}

func (p *peer) step(ctx context.Context) {
	found, err := p.look()
	if err != nil {
		p.log.Debug("kube-proxy's rules", "err", err)
	}
	switch {
	case len(found) == 0 && p.there.Load() && err == nil:
		p.there.Store(false)
		p.tell(nil)
		p.log.Info("kube-proxy's rules are gone")
		return
	case len(found) == 0:
		if p.going && err == nil {
			p.going, p.removed = false, p.now()
		}
		return
	case p.there.Load() || p.going:
		return
	}
	seen := &KubeProxy{Since: p.now(), Objects: found, Stays: !p.removed.IsZero() && p.now().Sub(p.removed) < peerAgain}
	why := "kube-proxy's rules are there: they are removed"
	if seen.Stays {
		why = "kube-proxy seems to run beside proxyc, as its rules came back: they stay; stop one of them"
	}
	p.log.Warn(why, "objects", strings.Join(found, ", "))
	p.send(watch.Event{Warning: true, Reason: "KubeProxyBeside", Action: "StartKubeProxy", Note: why + ": " + strings.Join(found, ", ")})
	p.tell(seen)
	p.there.Store(seen.Stays)
	if !seen.Stays {
		p.going = p.remove(ctx) != nil
		p.removed = p.now()
	}
}
