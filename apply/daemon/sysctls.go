package daemon

import (
	"errors"
	"log/slog"
	"runtime"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// writeSettings sets the kernel settings that a configuration requires on a node, and logs the changes.
func writeSettings(cfg *config.Config, node string, log *slog.Logger) error {
	differ, err := host.Settings(cfg, node)
	if err := errors.Join(err, sysctl.Write(host.Root, differ)); err != nil {
		return err
	}
	for _, d := range differ {
		log.Info("set", "setting", d.String(), "why", d.Why.String())
	}
	return nil
}

// writeOOMScore makes the kernel spare the process when memory is exhausted.
func writeOOMScore(cfg *config.Config, log *slog.Logger) {
	if runtime.GOOS != "linux" {
		return
	}
	differ, err := sysctl.Diff(host.Root, sysctl.OOMScore(cfg))
	if err := errors.Join(err, sysctl.Write(host.Root, differ)); err != nil {
		log.Warn("oomScoreAdj", "err", err)
	}
}

// servesLocalhost reports whether the daemon may have to proxy node ports on localhost (KEP-6032).
func servesLocalhost(cfg *config.Config) bool {
	return cfg.Enabled(config.GateLocalhost) && cfg.ProxyMode().Capabilities().Has(ir.ProxiesLocalhost)
}
