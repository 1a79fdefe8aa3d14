package fleet

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// TestFleet runs a few nodes. Each has one connection, and all of them and the real daemon get
// all changes.
func TestFleet(t *testing.T) {
	applytest.Long(t)
	applytest.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // the tools may have to be built
	defer cancel()
	file := filepath.Join(t.TempDir(), "report.json")
	err := scenario.Start("fleet", t.Output(), t.Output(), func(r *scenario.Run) error {
		return Run(ctx, r, strings.Fields("-nodes 5 -services 40 -endpoints 3 -rate 20 -changes 60 -rest 0 -min-sync-period 10ms -json "+file))
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.Start.Connections != 5 || r.Changes.Connections != 0 {
		t.Errorf("%d connections at the start, want one for each node; %d later", r.Start.Connections, r.Changes.Connections)
	}
	if r.Made != 60 || r.LastNode.P50 <= 0 || r.LastNode.P50 < r.EachNode.P50 {
		t.Errorf("%d changes, on each node after %v, on the last one after %v", r.Made, r.EachNode, r.LastNode)
	}
	if r.Start.BytesFromServer < 40*300*5 || r.Start.ServerCPU < 0 {
		t.Errorf("%d bytes cannot be all Services for all nodes", r.Start.BytesFromServer)
	}
	if r.Real.Changes != 60 || r.Real.P99 <= 0 || r.Real.NotSynced != "" {
		t.Errorf("the real daemon: %+v, want 60 changes", r.Real)
	}
}
