package serve

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

func newDebug() *Debug {
	started := time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)
	return &Debug{
		Name:         "kube-proxy",
		Version:      "v1.2.3",
		Mode:         ir.ModeNFTables,
		Metrics:      NewMetrics(ir.ModeNFTables, "v1.2.3", false),
		Config:       func() any { return config.Default() },
		Flags:        func() map[string]string { return map[string]string{"v": "2", "config": "/etc/x"} },
		Started:      started,
		Now:          func() time.Time { return started.Add(26*time.Hour + 3*time.Minute + 9*time.Second) },
		Profiling:    true,
		SetVerbosity: func(uint32) error { return nil },
	}
}

func TestDebugPages(t *testing.T) {
	h := newDebug().Handler()
	for path, want := range map[string]answer{
		"/healthz":         {200, textPlain, "ok"},
		"/healthz?verbose": {200, textPlain, "[+]ping ok\nhealthz check passed\n"},
		"/healthz/ping":    {200, textPlain, "ok"},
		"/proxyMode":       {200, textPlain, "nftables"},
		"/livez":           {404, textPlain, "404 page not found\n"},
		"/":                {404, textPlain, "404 page not found\n"},
	} {
		if d := cmp.Diff(want, ask(h, "GET", path, nil)); d != "" {
			t.Errorf("%s (-want +got):\n%s", path, d)
		}
	}
}

func TestConfigz(t *testing.T) {
	d := newDebug()
	cfg := config.Default()
	d.Config = func() any { return cfg }
	h := d.Handler()
	for _, mode := range []string{"nftables", "iptables"} { // the current configuration, which may change
		cfg.Mode = mode
		got := ask(h, "GET", "/configz", nil)
		if got.Code != 200 || got.Type != "application/json" {
			t.Errorf("got %d %s", got.Code, got.Type)
		}
		var body map[string]map[string]any
		if err := json.Unmarshal([]byte(got.Body), &body); err != nil {
			t.Fatal(err)
		}
		c := body["kubeproxy.config.k8s.io"]
		want := map[string]any{
			"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
			"kind":             "KubeProxyConfiguration",
			"mode":             mode,
			"configSyncPeriod": "15m0s",
			"enableProfiling":  false,
		}
		part := map[string]any{}
		for key := range want {
			part[key] = c[key]
		}
		if diff := cmp.Diff(want, part); diff != "" || len(body) != 1 {
			t.Errorf("%d objects, part of the first (-want +got):\n%s", len(body), diff)
		}
	}
}

func TestProfiling(t *testing.T) {
	paths := map[string]int{
		"/debug/pprof/":             200,
		"/debug/pprof":              302,
		"/debug/pprof/goroutine":    200,
		"/debug/pprof/symbol":       200,
		"/debug/pprof/cmdline":      404, // kube-proxy does not serve it either
		"/debug/proxyc/ir":          200,
		"/debug/flags/v":            406,
		"/debug/flags/vmodule":      404,
		"/debug/proxyc/nothingness": 404,
	}
	for _, on := range []bool{true, false} {
		d := newDebug()
		d.Profiling = on
		d.Pages = map[string]http.Handler{"/debug/proxyc/ir": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		h := d.Handler()
		for path, want := range paths {
			if !on {
				want = 404
			}
			if got := ask(h, "GET", path, nil).Code; got != want {
				t.Errorf("profiling %v, %s: got %d, want %d", on, path, got, want)
			}
		}
	}
}

func TestSetVerbosity(t *testing.T) {
	tests := []struct {
		name, method, body string
		fails              bool
		want               answer
		level              uint32
	}{
		{"set", "PUT", "4", false, answer{200, "text/plain", "successfully set klog.logging.verbosity to 4\n"}, 4},
		{"no number", "PUT", "four", false, answer{400, "text/plain", "the verbosity must be a whole number, got \"four\"\n"}, 99},
		{"negative", "PUT", "-1", false, answer{400, "text/plain", "the verbosity must be a whole number, got \"-1\"\n"}, 99},
		{"empty", "PUT", "", false, answer{400, "text/plain", "the verbosity must be a whole number, got \"\"\n"}, 99},
		{"too long", "PUT", strings.Repeat("0", 100), false, answer{400, "text/plain", "http: request body too large\n"}, 99},
		{"refused", "PUT", "4", true, answer{400, "text/plain", "no\n"}, 4},
		{"other method", "POST", "4", false, answer{406, "text/plain", "unsupported http method\n"}, 99},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, level := newDebug(), uint32(99)
			d.SetVerbosity = func(v uint32) error {
				level = v
				if tt.fails {
					return errors.New("no")
				}
				return nil
			}
			if diff := cmp.Diff(tt.want, ask(d.Handler(), tt.method, "/debug/flags/v", strings.NewReader(tt.body))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if level != tt.level {
				t.Errorf("level: got %d, want %d", level, tt.level)
			}
		})
	}
}

func TestSLIs(t *testing.T) {
	h := newDebug().Handler()
	slis := func() []string {
		var lines []string
		for line := range strings.Lines(ask(h, "GET", "/metrics/slis", nil).Body) {
			if !strings.HasPrefix(line, "#") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		return lines
	}
	if got := slis(); got != nil {
		t.Errorf("before any check: got %q", got)
	}
	ask(h, "GET", "/healthz", nil)
	ask(h, "GET", "/healthz", nil)
	ask(h, "GET", "/healthz/ping", nil)
	want := []string{
		`kubernetes_healthcheck{name="ping",type="healthz"} 1`,
		`kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2`,
	}
	if d := cmp.Diff(want, slis()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := ask(h, "DELETE", "/metrics/slis", nil); got.Code != 200 || got.Body != "metrics reset\n" {
		t.Errorf("DELETE: got %+v", got)
	}
	if got := slis(); got != nil {
		t.Errorf("after DELETE: got %q", got)
	}
}

func TestZpagesAsText(t *testing.T) {
	h := newDebug().Handler()
	for path, want := range map[string][]string{
		"/statusz": {
			"\nkube-proxy statusz\n",
			"Started: Sun Mar  1 12:00:00 UTC 2026\n",
			"Up: 26 hr 03 min 09 sec\n",
			"Binary version: v1.2.3\n",
			"Paths: /configz /flagz /healthz /metrics /proxyMode\n",
		},
		"/flagz": {"\nkube-proxy flagz\n", "\n\nconfig=/etc/x\nv=2\n"},
	} {
		got := ask(h, "GET", path, nil)
		if got.Code != 200 || got.Type != textPlain {
			t.Errorf("%s: got %d %s", path, got.Code, got.Type)
		}
		for _, part := range want {
			if !strings.Contains(got.Body, part) {
				t.Errorf("%s: %q is missing in\n%s", path, part, got.Body)
			}
		}
	}
}

func TestZpagesAsObjects(t *testing.T) {
	h := newDebug().Handler()
	tests := []struct {
		path, accept string
		want         map[string]any
		warning      bool
	}{
		{"/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", map[string]any{
			"kind": "Statusz", "apiVersion": "config.k8s.io/v1beta1", "metadata": map[string]any{"name": "kube-proxy"},
			"startTime": "2026-03-01T12:00:00Z", "uptimeSeconds": 93789.0, "binaryVersion": "v1.2.3",
			"paths": []any{"/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"},
		}, false},
		{"/flagz", "application/json;v=v1alpha1;g=config.k8s.io;as=Flagz", map[string]any{
			"kind": "Flagz", "apiVersion": "config.k8s.io/v1alpha1", "metadata": map[string]any{"name": "kube-proxy"},
			"flags": map[string]any{"v": "2", "config": "/etc/x"},
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.accept, func(t *testing.T) {
			r := httptest.NewRequest("GET", tt.path, nil)
			r.Header.Set("Accept", tt.accept)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			var got map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			delete(got, "goVersion")
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if warned := w.Header().Get("Warning") != ""; warned != tt.warning {
				t.Errorf("header Warning: got %v, want %v", warned, tt.warning)
			}
		})
	}
}

func TestZpagesByGate(t *testing.T) {
	d := newDebug()
	d.Flags = nil
	if got := ask(d.Handler(), "GET", "/flagz", nil).Code; got != 404 {
		t.Errorf("/flagz turned off: got %d", got)
	}
	if got := ask(d.Handler(), "GET", "/statusz", nil).Body; strings.Contains(got, "flagz") {
		t.Errorf("/statusz lists /flagz:\n%s", got)
	}
	d.Now = nil
	if got := ask(d.Handler(), "GET", "/statusz", nil).Code; got != 404 {
		t.Errorf("/statusz turned off: got %d", got)
	}
}

func TestNegotiate(t *testing.T) {
	const object = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz"
	for accept, want := range map[string]form{
		"":                        formText,
		" ":                       formText,
		"*/*":                     formText,
		"text/plain":              formText,
		"text/html, */*;q=0.8":    formText,
		"text/plain;charset=utf8": formText,
		object:                    formObject,
		object + ",text/plain":    formObject,
		"text/plain," + object:    formText,
		"application/json":        formNone,
		"application/json;v=v1beta1;g=config.k8s.io;as=Statusz": formNone,
		"application/json;v=v2;g=config.k8s.io;as=Flagz":        formNone,
		"application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz":   formNone,
		"text/html": formNone,
		";;":        formNone,
	} {
		if _, got := negotiate(accept, "Flagz"); got != want {
			t.Errorf("%q: got %d, want %d", accept, got, want)
		}
	}
	h := newDebug().Handler()
	if got := ask(h, "GET", "/flagz", nil, "Accept", "text/html"); got.Code != http.StatusNotAcceptable || !strings.Contains(got.Body, object) {
		t.Errorf("nothing acceptable: got %+v", got)
	}
}
