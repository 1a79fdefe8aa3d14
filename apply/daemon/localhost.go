package daemon

import (
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// servesLocalhost reports whether the daemon may have to proxy node ports on localhost (KEP-6032).
func servesLocalhost(cfg *config.Config) bool {
	return cfg.Enabled(config.GateLocalhost) && cfg.ProxyMode().Capabilities().Has(ir.ProxiesLocalhost)
}
