package daemon

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// servesLocalhost reports whether node ports may have to be served at localhost by
// the daemon itself (KEP-6032).
func servesLocalhost(cfg *config.Config) bool {
	return cfg.Enabled(config.GateLocalhost) && cfg.ProxyMode().Capabilities().Has(ir.ProxiesLocalhost)
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
