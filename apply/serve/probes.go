package serve

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Handler serves the probes: /healthz for load balancers, /livez for the kubelet, and /readyz,
// which kube-proxy does not have.
func (h *Health) Handler(m *Metrics) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s, eligible := h.Status(), h.Eligible()
		s.NodeEligible = &eligible
		m.Healthz(strconv.Itoa(writeStatus(w, s, s.Healthy && eligible))).Inc()
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		s := h.Status()
		m.Livez(strconv.Itoa(writeStatus(w, s, s.Healthy))).Inc()
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := h.Ready()
		writeJSON(w, probeCode(r.Ready), r)
	})
	return mux
}

// writeStatus returns the status code of the response.
func writeStatus(w http.ResponseWriter, s Status, ok bool) int {
	if ok {
		s.LastUpdated = s.CurrentTime
	}
	code := probeCode(ok)
	writeJSON(w, code, s)
	return code
}

func probeCode(ok bool) int {
	if ok {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// writeJSON writes a response on a single line. The types of this package can always be encoded.
func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeBody(w, code, "application/json", body)
}

func writeBody(w http.ResponseWriter, code int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	w.Write(body) // an error means that the client disconnected
}
