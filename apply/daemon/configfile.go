package daemon

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"reflect"

	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// loaded is a configuration with its file.
type loaded struct {
	*config.Resolved
	file *status.File // nil without a file

	text []byte      // content of the file; nil if unknown
	info fs.FileInfo // state of the file with this content; nil if unknown
}

// refusedConfig is a valid configuration that could not be applied.
type refusedConfig struct {
	config *config.Config
	err    error
}

func (p *process) loaded(resolved *config.Resolved) *loaded {
	l := &loaded{Resolved: resolved}
	if p.ConfigFile != "" {
		l.file = statFile(p.Files, p.ConfigFile)
	}
	return l
}

// load reads the configuration again, and returns its findings.
func (p *process) load() (*loaded, diag.List) {
	info, err := p.Files.Stat(p.ConfigFile) // Resolve reports a missing file
	if err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		// Opening it would block until another process writes to it, and status would not show an
		// error.
		return nil, diag.List{{Severity: diag.Error, Code: diag.FileUnreadable, File: p.ConfigFile, Msg: "must be a file, is " + files.KindOf(info.Mode())}}
	}
	resolved, text, diags := p.Resolve()
	now := p.loaded(resolved)
	now.text, now.info = text, info
	return now, diags
}

// errTruncated is the error for a configuration that may be incomplete.
var errTruncated = errors.New("seems truncated: it contains only the beginning of the current configuration (if that is intended, append a comment line)")

// truncated reports whether a file may have been truncated, compared with its content before. It was
// if only the beginning is left, and either the last line is incomplete or the file was modified in
// place. A file that replaced the other one, by rename or by the link of a ConfigMap, and ends with
// a complete line is complete. A last line without a line break may be complete, too.
func (l *loaded) truncated(before *loaded) bool {
	rest, ok := bytes.CutPrefix(before.text, l.text)
	if before.text == nil || !ok || len(bytes.TrimSpace(rest)) == 0 {
		return false
	}
	inLine := !bytes.HasSuffix(l.text, []byte("\n")) && !bytes.HasPrefix(bytes.TrimPrefix(rest, []byte("\r")), []byte("\n"))
	return inLine || before.info != nil && l.info != nil && os.SameFile(before.info, l.info)
}

// configChanged is the cause that ends a session for another configuration.
type configChanged struct{ to *loaded }

func (*configChanged) Error() string { return "the configuration changed" }

// configFile watches the file of the current configuration.
type configFile struct {
	process *process
	of      *loaded        // current configuration
	refused *refusedConfig // a configuration that could not be applied; optional
	again   chan struct{}  // receives a token to read the file again
	log     *slog.Logger
	faults  *faults
}

// watch returns *configChanged when the file contains another configuration. It reports an invalid
// configuration, and keeps the current one.
func (c *configFile) watch(ctx context.Context) error {
	path := c.process.ConfigFile
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	polled := func(why error) {
		c.log.Warn("the configuration file has no change notifications: polling it", "err", why)
	}
	applied := c.of // the file's current version: comments may differ
	err := watch.Paths(ctx, []string{path}, c.again, polled, func() {
		now, changed := c.read(applied)
		switch {
		case now == nil:
		case changed:
			c.log.Info("the configuration changed: restarting with it")
			cancel(&configChanged{now})
		default:
			applied = now
		}
	})
	if changed, ok := errors.AsType[*configChanged](context.Cause(ctx)); ok {
		return changed
	}
	if err != nil { // everything else works without a watch
		c.log.Error("the configuration file is not watched: changes have no effect until a restart", "err", err)
	}
	return nil
}

// read reads the file, and reports whether its configuration differs from the current one. It
// returns nil if the file is rejected.
func (c *configFile) read(applied *loaded) (now *loaded, changed bool) {
	path := c.process.ConfigFile
	now, diags := c.process.load()
	if diags.HasErrors() {
		for _, f := range diags {
			logDiagnostic(c.log, f)
		}
		c.log.Error("the configuration file is rejected: the current configuration is kept")
		c.faults.setRejected(path, firstError(diags))
		return nil, false
	}
	if r := c.refused; r != nil && reflect.DeepEqual(now.Config, r.config) {
		c.faults.setRejected(path, r.err.Error())
		return nil, false
	}
	changed = !reflect.DeepEqual(now.Config, c.of.Config)
	if changed && now.truncated(applied) {
		c.log.Error("the configuration file is rejected: the current configuration is kept", "file", path, "err", errTruncated)
		c.faults.setRejected(path, errTruncated.Error())
		return nil, false
	}
	if rejected := c.faults.setRejected(path, ""); rejected && !changed {
		c.log.Info("the configuration file is valid again and contains the current configuration")
	}
	return now, changed
}

// report adds the file to a Status.
func (c *configFile) report(st *status.Status) { st.Config = c.of.file }

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
