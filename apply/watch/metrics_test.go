package watch

import (
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/ir"
)

var measured = serve.NewMetrics(ir.ModeNFTables, "test", false)

// TestMain registers the metrics before there is a client, as the daemon does: client-go reads its
// variables without a lock.
func TestMain(m *testing.M) {
	measured.MeasureClient()
	os.Exit(m.Run())
}

func TestMeasure(t *testing.T) {
	f := newFakeAPI(t)
	g := follow(t, f)
	g.waitSynced()
	w := httptest.NewRecorder()
	measured.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"rest_client_requests_total{code=\"200\"", "rest_client_request_duration_seconds_count{",
		"rest_client_transport_create_calls_total{result=", "rest_client_exec_plugin_ttl_seconds +Inf\n"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}
