package healthcheck

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"k8s.io/kubernetes/pkg/proxy/tape"
)

// tapeStart is when the server under test was created. All times are relative to it.
var tapeStart time.Time

func tapeAt(t time.Time) float64 { return t.Sub(tapeStart).Seconds() }

func tapeServer(now time.Time, timeout time.Duration) {
	tapeStart = now
	tape.Say("server", map[string]any{"timeout": timeout.Seconds()})
}

func tapeProgress(kind string, now time.Time, family any) {
	tape.Say(kind, map[string]any{"at": tapeAt(now), "family": family})
}

// tapeResponse records a response.
type tapeResponse struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (r *tapeResponse) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

func (r *tapeResponse) Write(b []byte) (int, error) {
	r.body.Write(b)
	return r.ResponseWriter.Write(b)
}

// sayProbe records a response of /healthz or /livez, and the Node at that time.
func (r *tapeResponse) sayProbe(path string, hs *ProxyHealthServer) {
	var h ProxyHealth
	if err := json.Unmarshal(r.body.Bytes(), &h); err != nil {
		panic(err)
	}
	families := map[string]any{}
	for f, s := range h.Status {
		families[string(f)] = map[string]any{"lastUpdated": tapeAt(s.LastUpdated), "healthy": s.Healthy}
	}
	said := map[string]any{"path": path, "at": tapeAt(hs.clock.Now()), "code": r.code, "currentTime": tapeAt(h.CurrentTime),
		"healthy": h.Healthy, "families": families}
	if !h.LastUpdated.IsZero() {
		said["lastUpdated"] = tapeAt(h.LastUpdated)
	}
	if h.NodeEligible != nil {
		said["nodeEligible"] = *h.NodeEligible
	}
	if node := hs.nodeManager.Node(); node != nil {
		taints := []string{}
		for _, t := range node.Spec.Taints {
			taints = append(taints, t.Key)
		}
		said["node"] = map[string]any{"terminating": !node.DeletionTimestamp.IsZero(), "taints": taints}
	}
	tape.Say("probe", said)
}

// sayCheck records a response at the health check port of a Service.
func (r *tapeResponse) sayCheck(h hcHandler) {
	if r.code == 0 {
		return
	}
	var body any
	if err := json.Unmarshal(r.body.Bytes(), &body); err != nil {
		panic(err)
	}
	tape.Say("check", map[string]any{"service": h.name.String(), "code": r.code, "body": body,
		"weight": r.Header().Get("X-Load-Balancing-Endpoint-Weight"), "proxyHealthy": h.hcs.healthzServer.Health().Healthy})
}

// tapeByName records a map of Services.
func tapeByName[T any](kind string, m map[types.NamespacedName]T) {
	out := map[string]T{}
	for name, v := range m {
		out[name.String()] = v
	}
	tape.Say(kind, out)
}
