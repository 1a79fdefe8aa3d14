package takeover

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

const (
	// peerEvery is how often the daemon looks for kube-proxy.
	peerEvery = 2 * time.Second
	// peerQuiet is how long kube-proxy's rules are without a sign of life until they
	// count as left over. It doubles each time they return after a removal, up to
	// mostQuiet: a kube-proxy that the daemon cannot see, and that has nothing to
	// change, gives no other sign.
	peerQuiet = 20 * time.Second
	mostQuiet = 5 * time.Minute
	// peerReturns is how long after a removal rules count as returned. A kubelet
	// restarts a container within five minutes.
	peerReturns = 10 * time.Minute
)

// peer follows the rules of a kube-proxy beside the daemon. Two programs that remove each
// other's rules are worse than two that serve the same Services. So rules that a
// kube-proxy maintains stay, and rules that none maintains are removed:
//
//	          rules appear                no sign of life
//	absent ------------------> maintained ---------------> left over
//	   ^  ^                      |    ^                      |   |
//	   |  +----------------------+    +----------------------+   |
//	   |         rules disappear        a process appears        |
//	   +---------------------------------------------------------+
//	                    removed by the daemon
//
// Rules that are there before the first sync are left over: a start takes the node over.
// Signs of life are a process, a change of the rules, and their return after a removal.
// While rules are there the daemon is not ready: some packets follow them.
type peer struct {
	signs
	remove func(context.Context) error
	now    func() time.Time
	log    *slog.Logger
	send   func(watch.Event)

	is      status.KubeProxy // State "": absent
	pulse   pulse
	asked   time.Time // of the last request to remove
	removed time.Time // zero: never

	shown atomic.Pointer[status.KubeProxy] // nil: absent
}

// signs is what the daemon can see of a kube-proxy.
type signs struct {
	objects  func() ([]string, error)   // made by kube-proxy alone: "table ip kube-proxy"
	process  func() string              // a visible kube-proxy: "process 4711"; "": none
	digest   func() uint64              // differs once kube-proxy has changed its rules
	repaired func(since time.Time) bool // whether the daemon repaired rules that both write
}

// pulse is when kube-proxy gave its last sign of life.
type pulse struct {
	alive time.Time     // of the last sign
	quiet time.Duration // how long without one until the rules count as left over
	last  *uint64       // digest since the last process ended; nil: not read yet
}

// newPeer makes the peer of a daemon of a mode. remove removes kube-proxy's rules.
func newPeer(mode ir.Mode, repaired func(time.Time) bool, easing *easing, log *slog.Logger, send func(watch.Event), remove func(context.Context) error) *peer {
	own := host.ModeOf(mode).Separate
	p := &peer{remove: remove, now: time.Now, log: log, send: send}
	p.signs = signs{
		process:  monitor.KubeProxyProcess,
		digest:   func() uint64 { return monitor.KubeProxyDigest(own) },
		repaired: func(since time.Time) bool { return !own && repaired(since) },
		objects: func() ([]string, error) {
			found, err := monitor.KubeProxy()
			switch {
			case mode.Capabilities().Has(ir.CarriesVIPs): // both make the same device, and kube-proxy makes nothing else
				if process := p.process(); process != "" {
					found = append(found, "virtual servers")
				}
			case !easing.active() && monitor.HasDevice(ir.IPVSDevice):
				found = append(found, "device "+ir.IPVSDevice)
			}
			return found, err
		},
	}
	return p
}

// begin looks before the first sync, which takes over what is there.
func (p *peer) begin() {
	p.pulse.quiet, p.asked = peerQuiet, p.now()
	if found, _ := p.objects(); len(found) > 0 {
		p.enter(status.LeftOver, found)
	}
}

// watch looks until ctx ends.
func (p *peer) watch(ctx context.Context) {
	ticker := time.NewTicker(peerEvery)
	defer ticker.Stop()
	for {
		p.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (p *peer) step(ctx context.Context) {
	found, err := p.objects()
	if err != nil {
		p.log.Debug("looking for kube-proxy's rules", "err", err)
	}
	if len(found) == 0 {
		if err == nil {
			p.gone()
		}
		return
	}
	process, now := p.process(), p.now()
	switch p.is.State {
	case status.Maintained:
		switch {
		case p.lives(process):
		case now.Sub(p.pulse.alive) >= p.pulse.quiet:
			p.enter(status.LeftOver, found)
			p.clean(ctx)
		}
	case status.LeftOver:
		switch {
		case process != "":
			p.appear(found, process)
		case now.Sub(p.asked) >= peerQuiet: // it failed, or was the first sync's
			p.clean(ctx)
		}
	default:
		p.appear(found, process)
	}
}

// appear notes rules that were not there, or that a process has come to maintain.
func (p *peer) appear(found []string, process string) {
	p.pulse.quiet = min(2*p.pulse.quiet, mostQuiet)
	if p.removed.IsZero() || p.now().Sub(p.removed) >= peerReturns || process != "" {
		p.pulse.quiet = peerQuiet
	}
	p.pulse.alive, p.pulse.last, p.is.Process = p.now(), nil, process
	p.enter(status.Maintained, found)
}

// lives looks for signs of life, and reports whether there is one now.
func (p *peer) lives(process string) bool {
	if process != p.is.Process {
		p.is.Process = process
		p.publish()
	}
	if process != "" {
		p.pulse.alive, p.pulse.last, p.pulse.quiet = p.now(), nil, peerQuiet
		return true
	}
	if p.pulse.last != nil && p.now().Sub(p.pulse.alive) < p.pulse.quiet {
		return false // large tables are not read at each look
	}
	is, first := p.digest(), p.pulse.last == nil
	changed := !first && (is != *p.pulse.last || p.repaired(p.pulse.alive))
	if p.pulse.last = &is; first || changed {
		p.pulse.alive = p.now()
	}
	return changed
}

// clean removes the rules.
func (p *peer) clean(ctx context.Context) {
	p.asked = p.now()
	if p.remove(ctx) == nil {
		p.gone()
	}
}

// gone notes that no rules of kube-proxy are there.
func (p *peer) gone() {
	switch p.is.State {
	case status.Maintained:
		p.log.Info("kube-proxy's rules are gone")
		p.is = status.KubeProxy{}
		p.shown.Store(nil)
	case status.LeftOver:
		p.removed = p.now()
		p.enter(status.Removed, p.is.Objects)
	}
}

// enter begins a state.
func (p *peer) enter(s status.KubeProxyState, objects []string) {
	p.is.State, p.is.Since, p.is.Objects = s, p.now(), objects
	if s != status.Maintained {
		p.is.Process = ""
	}
	what := p.is.Text()
	say := p.log.Warn
	if s == status.Removed {
		say = p.log.Info
	}
	say(what, "objects", strings.Join(objects, ", "))
	if s == status.Maintained {
		p.send(watch.Event{Warning: true, Reason: "KubeProxyBeside", Action: "StartKubeProxy", Note: what + ": " + strings.Join(objects, ", ")})
	}
	p.publish()
}

// publish shows the state in the status.
func (p *peer) publish() {
	is := p.is
	p.shown.Store(&is)
}

// maintained reports whether a kube-proxy runs beside the daemon.
func (p *peer) maintained() bool {
	is := p.shown.Load()
	return is != nil && is.State == status.Maintained
}
