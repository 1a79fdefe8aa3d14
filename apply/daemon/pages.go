package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Known is what a daemon knows of the cluster and the node: another proxyc of the same
// version compiles from it what the daemon does.
type Known struct {
	Config   *config.Config     `json:"config"`
	Facts    compiler.Facts     `json:"facts"`
	Snapshot *snapshot.Document `json:"snapshot"`
	// Findings are all that are errors or warnings, as in a Status.
	Findings []Finding `json:"findings,omitempty"`
}

// serveKnown serves Known. It is newer than the Programs in force where a sync is due.
func (d *daemon) serveKnown(w http.ResponseWriter, _ *http.Request) {
	k := Known{Config: d.cfg}
	k.Findings, _ = d.follower.findings.first(math.MaxInt)
	d.store.View(func(snap *snapshot.Snapshot) { // the follower's facts change while it follows the Store
		k.Facts, k.Snapshot = d.follower.facts, snap.Document()
	})
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(k) // an error is the client's, who went away
}

// serveTrace traces a packet through the Programs in force. Its parameters are
// the flags of proxyc trace: from, to, output.
func (d *daemon) serveTrace(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	contentType := "text/plain; charset=utf-8"
	scene := Scene{Node: d.nodeName, From: r.FormValue("from"), To: r.FormValue("to"), Output: cmp.Or(r.FormValue("output"), "text")}
	if scene.Output == "json" {
		contentType = "application/json"
	}
	if err := d.trace(&body, scene); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Write(body.Bytes()) // an error is the client's, who went away
}

func (d *daemon) trace(w io.Writer, scene Scene) (err error) {
	if scene.Output != "text" && scene.Output != "json" {
		return errors.New("output: must be text or json, got " + scene.Output)
	}
	if scene.Programs = d.progress.programs(); scene.Programs.IPv4 == nil {
		return errors.New("nothing is in force yet")
	}
	if scene.Interfaces, err = d.follower.interfaces(); err != nil {
		return err
	}
	scene.Findings, _ = d.follower.findings.first(math.MaxInt)
	d.store.View(func(snap *snapshot.Snapshot) {
		scene.Snapshot = snap
		err = d.Trace(w, scene)
	})
	return err
}
