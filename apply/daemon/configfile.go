package daemon

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"reflect"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// loaded is a configuration, and the file that it is from.
type loaded struct {
	*config.Resolved
	file *File // nil: there is none that could change

	text []byte      // of the file; nil: not known
	info fs.FileInfo // of the file when it had this text; nil: not known
}

// refusedConfig is a configuration that is valid, and could not be put in force.
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

// load reads the configuration again, and says what is wrong with it.
func (p *process) load() (*loaded, diag.List) {
	info, err := p.Files.Stat(p.ConfigFile) // Resolve reports a file that does not exist
	if err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		// To open it would block until somebody writes to it, and status would stay as it was.
		return nil, diag.List{{Severity: diag.Error, Code: diag.FileUnreadable, File: p.ConfigFile, Msg: "must be a file, is " + files.KindOf(info.Mode())}}
	}
	resolved, text, diags := p.Resolve()
	now := p.loaded(resolved)
	now.text, now.info = text, info
	return now, diags
}

// errCutOff is why a configuration is not taken that may be half of one.
var errCutOff = errors.New("has the beginning of what is in force and no more, as a file that was cut off has (if that is meant, end it with a line more: a comment)")

// cutOff reports whether a file may have been cut off since it had the text before: it has only its
// beginning, and ends in the middle of a line, or was written to where it is. One that was put in the place
// of the other, by rename or the link of a ConfigMap, and ends with a line was whole before that. A last line
// without a line break is a whole one, too.
func (l *loaded) cutOff(before *loaded) bool {
	rest, ok := bytes.CutPrefix(before.text, l.text)
	if before.text == nil || !ok || len(bytes.TrimSpace(rest)) == 0 {
		return false
	}
	inLine := !bytes.HasSuffix(l.text, []byte("\n")) && !bytes.HasPrefix(bytes.TrimPrefix(rest, []byte("\r")), []byte("\n"))
	return inLine || before.info != nil && l.info != nil && os.SameFile(before.info, l.info)
}

// configChanged ends a life of the daemon for another one.
type configChanged struct{ to *loaded }

func (*configChanged) Error() string { return "the configuration changed" }

// configFile is the file of the configuration that is in force.
type configFile struct {
	process *process
	of      *loaded        // in force
	refused *refusedConfig // one that could not be put in force; nil: there is none
	again   chan struct{}  // has a token when the file is to be read again
	log     *slog.Logger
	faults  *faults
}

// watch ends a session with *configChanged when the file has another configuration. An invalid
// configuration is reported, and the one in force stays.
func (c *configFile) watch(ctx context.Context) error {
	path := c.process.ConfigFile
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	polled := func(why error) {
		c.log.Warn("changes of the configuration are not told, and are looked for every few seconds", "err", why)
	}
	inForce := c.of // as the file has it now: comments may differ
	err := watch.Paths(ctx, []string{path}, c.again, polled, func() {
		now, changed := c.read(inForce)
		switch {
		case now == nil:
		case changed:
			c.log.Info("the configuration changed: starting anew")
			cancel(&configChanged{now})
		default:
			inForce = now
		}
	})
	if changed, ok := errors.AsType[*configChanged](context.Cause(ctx)); ok {
		return changed
	}
	if err != nil { // without a watch all else works
		c.log.Error("changes of the configuration will not be seen", "err", err)
	}
	return nil
}

// read reads the file, and reports whether its configuration is another one than that in force.
// It returns nil where the file is refused.
func (c *configFile) read(inForce *loaded) (now *loaded, changed bool) {
	path := c.process.ConfigFile
	now, diags := c.process.load()
	if diags.HasErrors() {
		for _, f := range diags {
			logDiagnostic(c.log, f)
		}
		c.log.Error("the configuration stays as it is")
		c.faults.setRejected(path, firstError(diags))
		return nil, false
	}
	if r := c.refused; r != nil && reflect.DeepEqual(now.Config, r.config) {
		c.faults.setRejected(path, r.err.Error())
		return nil, false
	}
	changed = !reflect.DeepEqual(now.Config, c.of.Config)
	if changed && now.cutOff(inForce) {
		c.log.Error("the configuration stays as it is", "file", path, "err", errCutOff)
		c.faults.setRejected(path, errCutOff.Error())
		return nil, false
	}
	if rejected := c.faults.setRejected(path, ""); rejected && !changed {
		c.log.Info("the configuration is read again, and is what is in force")
	}
	return now, changed
}

// report adds the file to a Status.
func (c *configFile) report(st *Status) { st.Config = c.of.file }

// firstError returns the first error of a list.
func firstError(list diag.List) string {
	list.Sort()
	for _, d := range list {
		if d.Severity == diag.Error {
			return d.String()
		}
	}
	return ""
}
