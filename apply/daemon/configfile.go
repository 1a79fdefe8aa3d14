package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// configFile watches the file of the configuration.
type configFile struct {
	options *Options
	config  *config.Config // as read, with the mode that the file has
	file    *status.File   // when the configuration was read; nil without a file
	again   chan struct{}  // receives a token to read the file again
	log     *slog.Logger
	faults  *faults

	unreadable int // consecutive failures to read it
}

func newConfigFile(o *Options, cfg *config.Config, log *slog.Logger, faults *faults) *configFile {
	c := &configFile{options: o, config: cfg, again: make(chan struct{}, 1), log: log, faults: faults}
	if o.ConfigFile != "" {
		c.file = statFile(o.Files, o.ConfigFile)
	}
	return c
}

// watch returns a *Restart when the file contains another configuration. It reports an invalid
// configuration, and keeps the current one.
func (c *configFile) watch(ctx context.Context) error {
	path := c.options.ConfigFile
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch.Poll(ctx, []string{path}, c.options.Poll, c.again, func() (retry time.Duration) {
		changed, retry := c.next(ctx)
		if changed != nil && ctx.Err() == nil {
			c.log.Info("the configuration changed: restarting with it")
			cancel(&Restart{config: changed.File})
		}
		return retry
	})
	if restart, ok := errors.AsType[*Restart](context.Cause(ctx)); ok {
		return restart
	}
	return nil
}

// next reads the file. It returns another valid configuration that it contains, and otherwise when to
// read the file again, even if it does not change; 0 for never.
func (c *configFile) next(ctx context.Context) (changed *config.Resolved, retry time.Duration) {
	path := c.options.ConfigFile
	now, diags := c.read()
	if diags.HasErrors() {
		for _, f := range diags {
			logDiagnostic(c.log, f)
		}
		c.log.Error("the configuration file is invalid: the current configuration is kept")
		unreadable := slices.ContainsFunc(diags, func(d diag.Diagnostic) bool { return d.Code == diag.FileUnreadable })
		if _, err := c.options.Files.Stat(path); !unreadable || errors.Is(err, fs.ErrNotExist) {
			c.faults.setInvalid(path, firstError(diags), false)
			return nil, 0
		}
		c.faults.setInvalid(path, firstError(diags), true)
		c.unreadable++
		return nil, apply.Backoff(c.unreadable, apply.FirstRetry, watch.LongestRetry)
	}
	c.unreadable = 0
	if !reflect.DeepEqual(now.Config, c.config) {
		if why := c.loses(ctx, now.Config); why != "" {
			if c.faults.setInvalid(path, why, true) != why {
				c.log.Error("the new configuration waits: the current configuration is kept", "err", why)
			}
			return nil, firstRetry
		}
		return now, 0
	}
	if c.faults.setInvalid(path, "", false) != "" {
		c.log.Info("the configuration file is valid again and contains the current configuration")
	}
	return nil, 0
}

// loses returns what a restart would lose: objects that this process keeps of an invalid snapshot, or
// rules that lead to it; "" for nothing.
func (c *configFile) loses(ctx context.Context, next *config.Config) string {
	for _, r := range c.faults.invalid() {
		if r.Path != c.options.ConfigFile {
			return r.Path + " is rejected, and its objects would be lost: " + r.Reason
		}
	}
	if c.config.ProxyMode().ByProcess() {
		if err := tryOpen(ctx, c.options, next); err != nil {
			return err.Error()
		}
	}
	return ""
}

// read reads the file, and returns its findings.
func (c *configFile) read() (*config.Resolved, diag.List) {
	path := c.options.ConfigFile
	info, err := c.options.Files.Stat(path) // Resolve reports a missing file
	if err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		// Opening it would block until another process writes to it, and status would not show an
		// error.
		return nil, diag.List{{Severity: diag.Error, Code: diag.FileUnreadable, File: path, Msg: "must be a file, is " + files.KindOf(info.Mode())}}
	}
	return c.options.Resolve()
}

// report adds the file to a Status.
func (c *configFile) report(st *status.Status) { st.Config = c.file }

// firstError returns the first error of a list, or "".
func firstError(list diag.List) string {
	list.Sort()
	for _, d := range list {
		if d.Severity == diag.Error {
			return d.String()
		}
	}
	return ""
}
