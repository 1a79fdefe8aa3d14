package daemon

import (
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler/config"
)

// sysctls are the kernel settings that a configuration requires on a node.
type sysctls struct {
	cfg  *config.Config
	node string
	log  *slog.Logger

	written atomic.Pointer[[]sysctl.Setting] // changed by write; nil if it was not called
}

// write sets the kernel settings that configuration and mode require, and logs the changes.
func (s *sysctls) write() error {
	differ, err := host.Settings(s.cfg, s.node)
	s.written.Store(&differ)
	if err := errors.Join(err, sysctl.Write(host.Root, differ)); err != nil {
		return err
	}
	for _, d := range differ {
		s.log.Info("set", "setting", d.String(), "why", d.Why.String())
	}
	return nil
}

// restore restores the kernel settings from before write. It is for a configuration that was never
// applied. Otherwise settings stay, as with kube-proxy, since other programs may depend on them.
func (s *sysctls) restore() {
	written := s.written.Load()
	if written == nil {
		return
	}
	undo := sysctl.Undo(host.Root, *written)
	if err := sysctl.Write(host.Root, undo); err != nil {
		s.log.Warn("settings of the rejected configuration could not be restored", "err", err)
	}
	for _, d := range undo {
		s.log.Info("set back", "setting", d.String(), "why", "the configuration that wanted "+d.Have+" is refused")
	}
}

// writeOOMScore makes the kernel spare the process when memory is exhausted.
func (s *sysctls) writeOOMScore() {
	if runtime.GOOS != "linux" {
		return
	}
	differ, err := sysctl.Diff(host.Root, sysctl.OOMScore(s.cfg))
	if err := errors.Join(err, sysctl.Write(host.Root, differ)); err != nil {
		s.log.Warn("oomScoreAdj", "err", err)
	}
}
