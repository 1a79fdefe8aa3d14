package daemon

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// servesLocalhost reports whether the daemon may have to proxy node ports on localhost (KEP-6032).
func servesLocalhost(cfg *config.Config) bool {
	return cfg.Enabled(config.GateLocalhost) && cfg.ProxyMode().Capabilities().Has(ir.ProxiesLocalhost)
}

// unserved returns the node ports on localhost that the Programs require and no process serves.
func unserved(programs ir.Programs) []string {
	var all []string
	for _, l := range userspace.Unserved(programs) {
		all = append(all, l.Listen.String()+"/tcp of "+l.Port.String()+": proxyc watch serves node ports at localhost, by a process")
	}
	return apply.Lines(all)
}
