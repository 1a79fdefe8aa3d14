package daemon

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
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

// loaded is a configuration with its file.
type loaded struct {
	*config.Resolved
	file *status.File // nil without a file

	text []byte      // content of the file; nil if unknown
	info fs.FileInfo // state of the file with this content; nil if unknown
}

// refusedConfig is a valid configuration that could not be applied. The cause may be temporary, so it
// is retried.
type refusedConfig struct {
	config   *config.Config
	err      error
	failures int // consecutive
}

// First and longest wait before a refused configuration is retried. They are longer than for other
// work, since each attempt starts two sessions, which read all rules.
const (
	firstRetry   = 10 * time.Second
	longestRetry = time.Hour
)

// again returns the refusal after another failure; r is the refusal before, or nil.
func (r *refusedConfig) again(cfg *config.Config, err error) *refusedConfig {
	now := &refusedConfig{config: cfg, err: err, failures: 1}
	if r != nil && reflect.DeepEqual(r.config, cfg) {
		now.failures += r.failures
	}
	return now
}

// wait returns the wait before the next attempt.
func (r *refusedConfig) wait() time.Duration {
	return apply.Backoff(r.failures, firstRetry, longestRetry)
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
	of      *loaded       // current configuration
	again   chan struct{} // receives a token to read the file again
	log     *slog.Logger
	faults  *faults

	refused    *refusedConfig // the file's content, if it could not be applied
	version    *loaded        // last valid version of the current configuration: comments may differ
	read       bool           // the file was read in this session
	unreadable int            // consecutive failures to read it
}

// newConfigFile returns the file of the current configuration. refused is another one that could
// not be applied; optional.
func newConfigFile(p *process, of *loaded, refused *refusedConfig, log *slog.Logger, faults *faults) *configFile {
	c := &configFile{process: p, of: of, refused: refused, version: of, again: make(chan struct{}, 1), log: log, faults: faults}
	if refused != nil {
		c.reject(refused.err.Error(), true) // before the first sync can be the last one
	}
	return c
}

// reject records why the newest version is rejected.
func (c *configFile) reject(why string, retried bool) {
	c.faults.setRejected(c.process.ConfigFile, why, retried)
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
	watch.Poll(ctx, []string{path}, c.process.Poll, c.again, func() (retry time.Duration) {
		next, retry := c.next()
		if next != nil {
			c.log.Info("the configuration changed: restarting with it")
			cancel(&configChanged{next})
		}
		return retry
	})
	if changed, ok := errors.AsType[*configChanged](context.Cause(ctx)); ok {
		return changed
	}
	return nil
}

// next reads the file. It returns the configuration if that is to be applied instead of the current
// one, and otherwise when to read the file again, even if it does not change; 0 for never. A
// configuration that could not be applied is retried after its wait, or earlier if something
// requests that the file be read.
func (c *configFile) next() (next *loaded, retry time.Duration) {
	now, diags := c.process.load()
	if diags.HasErrors() {
		for _, f := range diags {
			logDiagnostic(c.log, f)
		}
		c.log.Error("the configuration file is rejected: the current configuration is kept")
		unreadable := slices.ContainsFunc(diags, func(d diag.Diagnostic) bool { return d.Code == diag.FileUnreadable })
		if _, err := c.process.Files.Stat(c.process.ConfigFile); !unreadable || errors.Is(err, fs.ErrNotExist) {
			c.reject(firstError(diags), false)
			return nil, 0
		}
		c.reject(firstError(diags), true)
		c.unreadable++
		return nil, apply.Backoff(c.unreadable, apply.FirstRetry, watch.LongestRetry)
	}
	first := !c.read
	c.read, c.unreadable = true, 0
	switch {
	case reflect.DeepEqual(now.Config, c.of.Config):
		c.version = now
		if c.faults.setRejected(c.process.ConfigFile, "", false) {
			c.log.Info("the configuration file is valid again and contains the current configuration")
		}
		return nil, 0
	case first && c.refused != nil && reflect.DeepEqual(now.Config, c.refused.config):
		return nil, c.refused.wait()
	case now.truncated(c.version):
		c.log.Error("the configuration file is rejected: the current configuration is kept", "file", c.process.ConfigFile, "err", errTruncated)
		c.reject(errTruncated.Error(), false)
		return nil, 0
	}
	return now, 0
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
