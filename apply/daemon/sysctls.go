package daemon

import (
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"

	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler/config"
)

// sysctls are the kernel's settings that a configuration wants on a node.
type sysctls struct {
	cfg  *config.Config
	node string
	log  *slog.Logger

	written atomic.Pointer[[]sysctl.Setting] // what write changed; nil: it was not called
}

// write brings the kernel's settings to what configuration and mode want,
// and says which were changed.
func (s *sysctls) write() error {
	differ, err := Settings(s.cfg, s.node)
	s.written.Store(&differ)
	if err := errors.Join(err, sysctl.Write(kernelRoot, differ)); err != nil {
		return err
	}
	for _, d := range differ {
		s.log.Info("set", "setting", d.String(), "why", d.Why.String())
	}
	return nil
}

// restore brings the kernel's settings back to what they were before write. Otherwise
// they stay, as they do with kube-proxy: others may have come to rely on them. This is for a
// configuration that was never in force.
func (s *sysctls) restore() {
	written := s.written.Load()
	if written == nil {
		return
	}
	undo := sysctl.Undo(kernelRoot, *written)
	if err := sysctl.Write(kernelRoot, undo); err != nil {
		s.log.Warn("settings of the refused configuration stay", "err", err)
	}
	for _, d := range undo {
		s.log.Info("set back", "setting", d.String(), "why", "the configuration that wanted "+d.Have+" is refused")
	}
}

// writeOOMScore asks the kernel to spare the process.
func (s *sysctls) writeOOMScore() {
	if runtime.GOOS != "linux" {
		return
	}
	differ, err := sysctl.Diff(kernelRoot, sysctl.OOMScore(s.cfg))
	if err := errors.Join(err, sysctl.Write(kernelRoot, differ)); err != nil {
		s.log.Warn("oomScoreAdj", "err", err)
	}
}
