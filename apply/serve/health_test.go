package serve

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
)

const timeout = time.Minute

func TestProbes(t *testing.T) {
	c := newClock()
	zero := "0001-01-01T00:00:00Z"
	// status returns the expected body; times are relative to the start.
	status := func(last, current, rest string) string {
		return `{"lastUpdated":"` + last + `","currentTime":"` + current + `",` + rest + `}`
	}
	family := func(name, last, healthy string) string {
		return `"` + name + `":{"lastUpdated":"` + last + `","healthy":` + healthy + `}`
	}
	at := func(d time.Duration) string { return stamp(c, d) }
	tests := []struct {
		name    string
		happen  func(h *Health, c *clock)
		healthz answer
		livez   answer
	}{
		{
			name:    "nothing happened",
			happen:  func(h *Health, c *clock) {},
			healthz: answer{200, "application/json", status(at(0), at(0), `"nodeEligible":true,"healthy":true`)},
			livez:   answer{200, "application/json", status(at(0), at(0), `"healthy":true`)},
		},
		{
			name: "starting takes long",
			happen: func(h *Health, c *clock) {
				h.Queued(ir.IPv4)
				c.advance(10 * timeout)
			},
			healthz: answer{200, "application/json", status(at(10*timeout), at(10*timeout), `"nodeEligible":true,"healthy":true`)},
			livez:   answer{200, "application/json", status(at(10*timeout), at(10*timeout), `"healthy":true`)},
		},
		{
			name: "both in force",
			happen: func(h *Health, c *clock) {
				h.Updated(ir.IPv6)
				c.advance(time.Second)
				h.Updated(ir.IPv4)
				c.advance(time.Hour)
			},
			healthz: answer{200, "application/json", status(at(time.Hour+time.Second), at(time.Hour+time.Second),
				`"nodeEligible":true,"healthy":true,"status":{`+family("IPv4", at(time.Second), "true")+`,`+family("IPv6", at(0), "true")+`}`)},
			livez: answer{200, "application/json", status(at(time.Hour+time.Second), at(time.Hour+time.Second),
				`"healthy":true,"status":{`+family("IPv4", at(time.Second), "true")+`,`+family("IPv6", at(0), "true")+`}`)},
		},
		{
			name: "a change waits, but not for too long",
			happen: func(h *Health, c *clock) {
				h.Updated(ir.IPv4)
				h.Queued(ir.IPv4)
				c.advance(timeout - 1)
			},
			healthz: answer{200, "application/json", status(at(timeout-1), at(timeout-1), `"nodeEligible":true,"healthy":true,"status":{`+family("IPv4", at(0), "true")+`}`)},
			livez:   answer{200, "application/json", status(at(timeout-1), at(timeout-1), `"healthy":true,"status":{`+family("IPv4", at(0), "true")+`}`)},
		},
		{
			name: "the oldest change counts, in one of the families",
			happen: func(h *Health, c *clock) {
				h.Updated(ir.IPv4)
				h.Updated(ir.IPv6)
				h.Queued(ir.IPv6)
				c.advance(timeout / 2)
				h.Queued(ir.IPv6)
				h.Updated(ir.IPv4)
				c.advance(timeout / 2)
			},
			healthz: answer{503, "application/json", status(at(timeout/2), at(timeout),
				`"nodeEligible":true,"healthy":false,"status":{`+family("IPv4", at(timeout/2), "true")+`,`+family("IPv6", at(0), "false")+`}`)},
			livez: answer{503, "application/json", status(at(timeout/2), at(timeout),
				`"healthy":false,"status":{`+family("IPv4", at(timeout/2), "true")+`,`+family("IPv6", at(0), "false")+`}`)},
		},
		{
			name: "the other family does not make up for it",
			happen: func(h *Health, c *clock) {
				h.Updated(ir.IPv4)
				h.Queued(ir.IPv4)
				c.advance(timeout)
				h.Updated(ir.IPv6)
			},
			healthz: answer{503, "application/json", status(at(timeout), at(timeout),
				`"nodeEligible":true,"healthy":false,"status":{`+family("IPv4", at(0), "false")+`,`+family("IPv6", at(timeout), "true")+`}`)},
			livez: answer{503, "application/json", status(at(timeout), at(timeout),
				`"healthy":false,"status":{`+family("IPv4", at(0), "false")+`,`+family("IPv6", at(timeout), "true")+`}`)},
		},
		{
			name: "late, but in force at last",
			happen: func(h *Health, c *clock) {
				h.Updated(ir.IPv4)
				h.Queued(ir.IPv4)
				c.advance(2 * timeout)
				h.Updated(ir.IPv4)
			},
			healthz: answer{200, "application/json", status(at(2*timeout), at(2*timeout), `"nodeEligible":true,"healthy":true,"status":{`+family("IPv4", at(2*timeout), "true")+`}`)},
			livez:   answer{200, "application/json", status(at(2*timeout), at(2*timeout), `"healthy":true,"status":{`+family("IPv4", at(2*timeout), "true")+`}`)},
		},
		{
			name:    "node leaves: healthz tells, livez does not",
			happen:  func(h *Health, c *clock) { h.SetNode(&Node{Terminating: true}) },
			healthz: answer{503, "application/json", status(zero, at(0), `"nodeEligible":false,"healthy":true`)},
			livez:   answer{200, "application/json", status(at(0), at(0), `"healthy":true`)},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newClock()
			h := NewHealth(timeout, c.now)
			h.SetNode(&Node{})
			tt.happen(h, c)
			handler := h.Handler(NewMetrics(ir.ModeNFTables, "test", false))
			if d := cmp.Diff(tt.healthz, ask(handler, "GET", "/healthz", nil)); d != "" {
				t.Errorf("/healthz (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.livez, ask(handler, "GET", "/livez", nil)); d != "" {
				t.Errorf("/livez (-want +got):\n%s", d)
			}
		})
	}
}

func TestEligible(t *testing.T) {
	tests := []struct {
		name string
		node *Node
		want bool
	}{
		{"unknown or gone", nil, false},
		{"plain", &Node{}, true},
		{"other taints", &Node{Taints: []string{"node.kubernetes.io/unschedulable", "DeletionCandidateOfClusterAutoscaler"}}, true},
		{"deletionTimestamp", &Node{Terminating: true}, false},
		{"to be deleted by the autoscaler", &Node{Taints: []string{"x", "ToBeDeletedByClusterAutoscaler"}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := NewHealth(timeout, newClock().now)
			h.SetNode(tt.node)
			if got := h.Eligible(); got != tt.want {
				t.Errorf("eligible: got %v, want %v", got, tt.want)
			}
		})
	}
	if NewHealth(timeout, newClock().now).Eligible() {
		t.Error("eligible before the Node is known: got true")
	}
}

func TestReadyz(t *testing.T) {
	h := NewHealth(timeout, newClock().now)
	pending, outage, followUp, otherProxy := 0, "", "", ""
	h.Pending, h.Outage, h.FollowUp = func() int { return pending }, func() string { return outage }, func() string { return followUp }
	h.OtherProxy = func() string { return otherProxy }
	handler := h.Handler(NewMetrics(ir.ModeNFTables, "test", false))
	for _, step := range []struct {
		name string
		do   func()
		want answer
	}{
		{"at start", func() {}, answer{503, "application/json", `{"ready":false,"reason":"starting"}`}},
		{"in force", func() { h.SetNotReady("") }, answer{200, "application/json", `{"ready":true}`}},
		{"behind", func() { h.SetNotReady("3 Services are refused") }, answer{503, "application/json", `{"ready":false,"reason":"3 Services are refused"}`}},
		{"changes wait", func() { h.SetNotReady(""); pending = 1 }, answer{503, "application/json", `{"ready":false,"reason":"a change is pending"}`}},
		{"cut off", func() { pending, outage = 0, "no contact" }, answer{503, "application/json", `{"ready":false,"reason":"no contact"}`}},
		{"something follows", func() { outage, followUp = "", "flows" }, answer{503, "application/json", `{"ready":false,"reason":"flows"}`}},
		{"all is done", func() { followUp = "" }, answer{200, "application/json", `{"ready":true}`}},
		{"another proxy", func() { otherProxy = "kube-proxy"; h.SetNotReady("") }, answer{503, "application/json", `{"ready":false,"reason":"kube-proxy"}`}},
		{"heard again", func() { otherProxy = "" }, answer{200, "application/json", `{"ready":true}`}},
	} {
		step.do()
		if code := ask(handler, "GET", "/livez", nil).Code; code != 200 {
			t.Errorf("%s: /livez: %d", step.name, code)
		}
		if d := cmp.Diff(step.want, ask(handler, "GET", "/readyz", nil)); d != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, d)
		}
	}
}

// Setting the node's clock by hours makes the proxy neither unhealthy nor resets the age of a
// change. Times are reported by the clock as it is now.
func TestHealthClockSet(t *testing.T) {
	for _, by := range []time.Duration{-5 * time.Hour, 5 * time.Hour} {
		start := time.Now()
		now := start
		h := NewHealth(timeout, func() time.Time { return now })
		h.Updated(ir.IPv4)
		h.Queued(ir.IPv4)
		now = applytest.ClockSet(start.Add(timeout/2), by)
		s := h.Status()
		if !s.Healthy || s.CurrentTime.Round(0).Sub(s.LastUpdated.Round(0)) != timeout/2 {
			t.Errorf("%s: healthy: %t, updated at %s, now %s", by, s.Healthy, s.LastUpdated, s.CurrentTime)
		}
		now = applytest.ClockSet(start.Add(timeout), by)
		if h.Status().Healthy {
			t.Errorf("%s: healthy, although a change waits for too long", by)
		}
	}
}

func TestProbeHeadersAndPaths(t *testing.T) {
	h := NewHealth(timeout, newClock().now)
	handler := h.Handler(NewMetrics(ir.ModeNFTables, "test", false))
	for path, want := range map[string]int{
		"/healthz": 503, "/livez": 200, "/readyz": 503, // no Node is known
		"/": 404, "/healthz/": 404, "/healthz/ping": 404, "/metrics": 404, "/livezz": 404,
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
		if w.Code != want {
			t.Errorf("%s: got code %d, want %d", path, w.Code, want)
		}
		if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s: got X-Content-Type-Options %q, want nosniff", path, got)
		}
	}
}

func TestProbesAreCounted(t *testing.T) {
	h := NewHealth(timeout, newClock().now)
	m := NewMetrics(ir.ModeIPVS, "test", false)
	handler := h.Handler(m)
	ask(handler, "GET", "/healthz", nil)
	h.SetNode(&Node{})
	ask(handler, "GET", "/healthz", nil)
	ask(handler, "GET", "/healthz", nil)
	ask(handler, "GET", "/livez", nil)
	ask(handler, "GET", "/readyz", nil)
	var got []string
	for line := range strings.Lines(ask(m.Handler(), "GET", "/metrics", nil).Body) {
		if strings.HasPrefix(line, "kubeproxy_proxy_") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		`kubeproxy_proxy_healthz_total{code="200"} 2`,
		`kubeproxy_proxy_healthz_total{code="503"} 1`,
		`kubeproxy_proxy_livez_total{code="200"} 1`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
