package daemon

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// servesLocalhost reports whether node ports may have to be served at localhost by
// the daemon itself (KEP-6032).
func servesLocalhost(cfg *config.Config) bool {
	return cfg.Enabled(config.GateLocalhost) && cfg.ProxyMode().Capabilities().Has(ir.ProxiesLocalhost)
}

// serveLocalhost follows what a sync changed.
func (d *daemon) serveLocalhost(s *reconcile.Sync) {
	if s.Kind == reconcile.Full {
		d.localhost.Replace(s.Work.Programs)
	} else {
		d.localhost.Change(s.Work.Changes)
	}
	d.countLocalhost()
}

// localhostTold notes that a node port is not served at localhost, or is again.
func (d *daemon) localhostTold(f ir.Family, l *rules.Listener, err error) {
	d.faults.setDown("node port of "+l.Port.String()+" at localhost", l.Listen.String(), err)
	if err != nil {
		d.metrics.LocalhostFailures.Of(f).Inc()
	}
	d.countLocalhost()
}

func (d *daemon) countLocalhost() {
	if !servesLocalhost(d.cfg) {
		return
	}
	for _, c := range d.localhost.Counts() {
		d.metrics.LocalhostListeners.Of(c.Family).Set(float64(c.Listeners))
	}
}

// unserved names the node ports that nobody serves at localhost, though the
// Programs want it.
func unserved(programs ir.Programs) []string {
	var all []string
	for _, l := range userspace.Unserved(programs) {
		all = append(all, l.Listen.String()+"/tcp of "+l.Port.String()+": proxyc watch serves node ports at localhost, by a process")
	}
	return apply.Lines(all)
}
