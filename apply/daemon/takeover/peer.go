package takeover

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

const (
	// checkInterval is how often the daemon looks for kube-proxy.
	checkInterval = 2 * time.Second
	// minTimeout is how long after the last heartbeat kube-proxy's rules count as left over. The
	// timeout doubles each time the rules return after a removal, up to maxTimeout. A kube-proxy in
	// another PID namespace that has nothing to change gives no other heartbeat.
	minTimeout = 20 * time.Second
	maxTimeout = 5 * time.Minute
	// returnPeriod is how long after a removal rules count as returned. A kubelet restarts a container
	// within five minutes.
	returnPeriod = 10 * time.Minute
)

// peer tracks the rules of a kube-proxy on the same node. Two programs that remove each other's rules
// are worse than two that serve the same Services. Therefore rules that a running kube-proxy maintains
// are kept, and other ones are removed:
//
//	          rules appear                no heartbeat
//	absent ------------------> maintained ---------------> left over
//	   ^  ^                      |    ^                      |   |
//	   |  +----------------------+    +----------------------+   |
//	   |         rules disappear        a process appears        |
//	   +---------------------------------------------------------+
//	                    removed by the daemon
//
// Rules that exist before the first sync are left over, since a start takes the node over. Heartbeats
// are a process, a change of the rules, and their return after a removal. While such rules exist, the
// daemon is not ready, since packets may match them.
type peer struct {
	probes
	remove func(context.Context) error
	now    func() time.Time
	log    *slog.Logger
	send   func(watch.Event)

	state     status.KubeProxy // State is "" if absent
	heartbeat heartbeat
	asked     time.Time // of the last request to remove
	removed   time.Time // zero if never

	published atomic.Pointer[status.KubeProxy] // nil if absent
}

// probes are the observable effects of a kube-proxy.
type probes struct {
	objects  func() ([]string, error)   // that only kube-proxy creates: "table ip kube-proxy"
	process  func() string              // a visible kube-proxy: "process 4711"; "" if there is none
	digest   func() uint64              // changes when kube-proxy changes its rules
	repaired func(since time.Time) bool // reports whether the daemon repaired rules that both write
}

// heartbeat is the last observed activity of kube-proxy.
type heartbeat struct {
	at      time.Time
	timeout time.Duration // after which the rules count as left over
	digest  *uint64       // since the last process ended; nil if it was not read yet
}

// newPeer returns the peer of a mode. remove removes kube-proxy's rules.
func newPeer(mode ir.Mode, repaired func(time.Time) bool, easing *easing, log *slog.Logger, send func(watch.Event), remove func(context.Context) error) *peer {
	own := host.ModeOf(mode).Separate
	p := &peer{remove: remove, now: time.Now, log: log, send: send}
	p.probes = probes{
		process:  monitor.KubeProxyProcess,
		digest:   func() uint64 { return monitor.KubeProxyDigest(own) },
		repaired: func(since time.Time) bool { return !own && repaired(since) },
		objects: func() ([]string, error) {
			found, err := monitor.KubeProxy()
			switch {
			case mode.Capabilities().Has(ir.CarriesVIPs): // both create the same device, and kube-proxy creates nothing else
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

// begin looks for rules before the first sync, which takes them over.
func (p *peer) begin() {
	p.heartbeat.timeout, p.asked = minTimeout, p.now()
	if found, _ := p.objects(); len(found) > 0 {
		p.enter(status.LeftOver, found)
	}
}

// watch checks until ctx ends.
func (p *peer) watch(ctx context.Context) {
	p.step(ctx)
	apply.Every(ctx, checkInterval, func() { p.step(ctx) })
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
	switch p.state.State {
	case status.Maintained:
		if !p.alive(process) && now.Sub(p.heartbeat.at) >= p.heartbeat.timeout {
			p.enter(status.LeftOver, found)
			p.clean(ctx)
		}
	case status.LeftOver:
		switch {
		case process != "":
			p.appear(found, process)
		case now.Sub(p.asked) >= minTimeout: // the removal failed, or the first sync did it
			p.clean(ctx)
		}
	default:
		p.appear(found, process)
	}
}

// appear records new rules, or a process that maintains existing ones.
func (p *peer) appear(found []string, process string) {
	p.heartbeat.timeout = min(2*p.heartbeat.timeout, maxTimeout)
	if p.removed.IsZero() || p.now().Sub(p.removed) >= returnPeriod || process != "" {
		p.heartbeat.timeout = minTimeout
	}
	p.heartbeat.at, p.heartbeat.digest, p.state.Process = p.now(), nil, process
	p.enter(status.Maintained, found)
}

// alive checks for heartbeats, and reports whether there is one now.
func (p *peer) alive(process string) bool {
	if process != p.state.Process {
		p.state.Process = process
		p.publish()
	}
	if process != "" {
		p.heartbeat.at, p.heartbeat.digest, p.heartbeat.timeout = p.now(), nil, minTimeout
		return true
	}
	if p.heartbeat.digest != nil && p.now().Sub(p.heartbeat.at) < p.heartbeat.timeout {
		return false // large tables are not read in each check
	}
	is, first := p.digest(), p.heartbeat.digest == nil
	changed := !first && (is != *p.heartbeat.digest || p.repaired(p.heartbeat.at))
	if p.heartbeat.digest = &is; first || changed {
		p.heartbeat.at = p.now()
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

// gone records that kube-proxy has no rules.
func (p *peer) gone() {
	switch p.state.State {
	case status.Maintained:
		p.log.Info("kube-proxy's rules were removed")
		p.state = status.KubeProxy{}
		p.published.Store(nil)
	case status.LeftOver:
		p.removed = p.now()
		p.enter(status.Removed, p.state.Objects)
	}
}

// enter enters a state.
func (p *peer) enter(s status.KubeProxyState, objects []string) {
	p.state.State, p.state.Since, p.state.Objects = s, p.now(), objects
	if s != status.Maintained {
		p.state.Process = ""
	}
	what := p.state.Text()
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

// publish publishes the state for the status.
func (p *peer) publish() {
	is := p.state
	p.published.Store(&is)
}

// maintained reports whether a kube-proxy is running.
func (p *peer) maintained() bool {
	is := p.published.Load()
	return is != nil && is.State == status.Maintained
}
