package daemon

import (
	"errors"
	"io/fs"
	"log/slog"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// pipeFiles are files that are all named pipes.
type pipeFiles struct{ Files }

func (pipeFiles) Stat(string) (fs.FileInfo, error) { return pipeInfo{}, nil }

type pipeInfo struct{ fs.FileInfo }

func (pipeInfo) Mode() fs.FileMode { return fs.ModeNamedPipe }

// A configuration that became a named pipe is rejected without opening it, which would block.
func TestConfigPipe(t *testing.T) {
	c := &configFile{options: &Options{Files: pipeFiles{}, SourceOptions: SourceOptions{ConfigFile: "config.yaml", Resolve: func() (*config.Resolved, diag.List) {
		t.Error("the pipe is opened")
		return nil, nil
	}}}}
	if _, found := c.read(); firstError(found) != "config.yaml: must be a file, is a named pipe" {
		t.Errorf("got %v", found)
	}
}

// missingFiles are files of which none exists.
type missingFiles struct{ Files }

func (missingFiles) Stat(string) (fs.FileInfo, error) { return nil, fs.ErrNotExist }

// Only another valid configuration restarts the daemon. An invalid one is reported until the file is
// valid again.
func TestConfigFile(t *testing.T) {
	current, other := &config.Config{Mode: "nftables"}, &config.Config{Mode: "iptables"}
	var resolved *config.Config
	var found diag.List
	o := &Options{Files: missingFiles{}, SourceOptions: SourceOptions{ConfigFile: "config.yaml", Resolve: func() (*config.Resolved, diag.List) {
		return &config.Resolved{Config: resolved}, found
	}}}
	log := slog.New(slog.DiscardHandler)
	c := newConfigFile(o, current, log, &faults{log: log, now: time.Now})
	for i, step := range []struct {
		config            *config.Config
		err               error
		changed, rejected bool
	}{
		{&config.Config{Mode: "nftables"}, nil, false, false},
		{other, errors.New("mode: unknown"), false, true},
		{current, nil, false, false},
		{other, errors.New("mode: unknown"), false, true},
		{other, nil, true, true},
	} {
		resolved, found = step.config, nil
		if step.err != nil {
			found = diag.List{{Severity: diag.Error, Msg: step.err.Error()}}
		}
		changed, retry := c.next(t.Context())
		var st status.Status
		c.faults.report(&st)
		if (changed != nil) != step.changed || retry != 0 || len(st.InvalidFiles) > 0 != step.rejected {
			t.Errorf("step %d: changed %v, retried after %s, rejected %+v", i, changed, retry, st.InvalidFiles)
		}
	}
	// Another program would not have the objects that this one keeps of an invalid snapshot.
	c.faults.setInvalid("cluster.yaml", "is empty", false)
	if changed, retry := c.next(t.Context()); changed != nil || retry == 0 {
		t.Errorf("beside an invalid snapshot: changed %v, retried after %s", changed, retry)
	}
	c.faults.setInvalid("cluster.yaml", "", false)
	if changed, _ := c.next(t.Context()); changed == nil {
		t.Error("not changed after the snapshot was accepted")
	}
}
