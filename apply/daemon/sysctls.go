package daemon

import (
	"errors"
	"log/slog"
	"runtime"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
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

// reportSettings adds settings that this configuration does not contain to a Status.
func reportSettings(st *status.Status) {
	if value, _ := host.Root.Read("proc/sys/net/ipv4/ip_forward"); value == "0" { // it does not exist without IPv4
		st.Settings = append(st.Settings, "net.ipv4.ip_forward is 0: the node forwards no packet to or from a pod")
	}
	if st.Mode.Capabilities().Has(ir.ProxiesLocalhost) && sysctl.RoutesLocalnet(host.Root) {
		st.Settings = append(st.Settings, "net.ipv4.conf.all.route_localnet is 1, which mode "+string(st.Mode)+" does not need: proxyc doctor has the risk and the fix")
	}
}
