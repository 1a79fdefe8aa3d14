package judge

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/ir"
)

// A probe is a response of /healthz or /livez, with times in seconds since the start.
type probe struct {
	Path         string
	At           float64
	Code         int
	CurrentTime  float64
	LastUpdated  *float64
	Healthy      bool
	NodeEligible *bool
	Families     map[string]familyHealth
	Node         *struct {
		Terminating bool
		Taints      []string
	}
}

type familyHealth struct {
	LastUpdated float64
	Healthy     bool
}

// TestProbes checks that the probes respond with the same code and the same times, while changes
// wait and are applied, and while the node is added and removed.
func TestProbes(t *testing.T) {
	probes := 0
	for _, test := range load(t, "proxy-healthcheck") {
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		now := start
		at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
		var h *serve.Health
		for i, f := range test.Facts {
			if f.Kind == "server" {
				h = serve.NewHealth(at(decode[struct{ Timeout float64 }](t, f.Is).Timeout).Sub(start), func() time.Time { return now })
				continue
			}
			if h == nil {
				break // not a test of these
			}
			switch f.Kind {
			case "queued", "updated":
				e := decode[struct {
					At     float64
					Family string
				}](t, f.Is)
				now = at(e.At)
				if f.Kind == "queued" {
					h.Queued(family(e.Family))
				} else {
					h.Updated(family(e.Family))
				}
			case "probe":
				probes++
				want := decode[probe](t, f.Is)
				now = at(want.At)
				if want.Node == nil {
					h.SetNode(nil)
				} else {
					h.SetNode(&serve.Node{Terminating: want.Node.Terminating, Taints: want.Node.Taints})
				}
				got := answer(t, h, want.Path, start)
				got.At, got.Node = want.At, want.Node
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: fact %d (-kube-proxy +proxyc):\n%s", test.Test, i, diff)
				}
			}
		}
	}
	if probes < 36 {
		t.Errorf("only %d probes", probes)
	}
}

func answer(t *testing.T, h *serve.Health, path string, start time.Time) probe {
	rec := httptest.NewRecorder()
	h.Handler(serve.NewMetrics(ir.ModeNFTables, "test", false)).ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
	var s serve.Status
	if err := json.Unmarshal(rec.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	since := func(t time.Time) float64 { return t.Sub(start).Seconds() }
	p := probe{Path: path, Code: rec.Code, CurrentTime: since(s.CurrentTime), Healthy: s.Healthy, NodeEligible: s.NodeEligible,
		Families: map[string]familyHealth{}}
	if !s.LastUpdated.IsZero() {
		updated := since(s.LastUpdated)
		p.LastUpdated = &updated
	}
	for f, s := range s.Families {
		p.Families[f] = familyHealth{LastUpdated: since(s.LastUpdated), Healthy: s.Healthy}
	}
	return p
}

// An answered check is the response that a load balancer got at a healthCheckNodePort.
type answered struct {
	Service      string
	Code         int
	Weight       string
	Body         any
	ProxyHealthy bool
}

// TestHealthCheckAnswers checks that load balancers get the same responses at the health check
// ports of Services, while ports and endpoints are added and removed.
func TestHealthCheckAnswers(t *testing.T) {
	answers := 0
	for _, test := range load(t, "proxy-healthcheck") {
		healthy := true
		now := time.Unix(0, 0)
		h := serve.NewHealth(time.Second, func() time.Time { return now })
		checks := serve.HealthChecks{Family: ir.IPv4, Health: h, Log: slog.New(slog.DiscardHandler),
			Failed: func(s ir.Name, _ uint16, err error) { t.Errorf("%s: %v", s, err) }}
		want, ports := map[ir.Name]ir.HealthCheck{}, map[string]uint16{}
		theirs := map[string]uint16{}
		for i, f := range test.Facts {
			switch f.Kind {
			case "checks": // new ones count no endpoints until a later fact
				all := decode[map[string]uint16](t, f.Is)
				for service := range want {
					if theirs[service.String()] != all[service.String()] {
						delete(want, service)
					}
				}
				for service, port := range all {
					if theirs[service] != port {
						ports[service] = freePort(t) // the test's own port may be in use on this machine
						want[name(service)] = ir.HealthCheck{Port: ports[service]}
					}
				}
				theirs = all
			case "counts":
				counts := decode[map[string]int](t, f.Is)
				for service, c := range want {
					c.Local = counts[service.String()]
					want[service] = c
				}
			case "check":
				answers++
				kubeProxy := decode[answered](t, f.Is)
				if kubeProxy.ProxyHealthy != healthy {
					healthy = kubeProxy.ProxyHealthy
					h.Updated(ir.IPv4)
					if !healthy {
						h.Queued(ir.IPv4)
						now = now.Add(time.Minute)
					}
				}
				resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", ports[kubeProxy.Service]))
				if err != nil {
					t.Fatal(err)
				}
				proxyc := answered{Service: kubeProxy.Service, ProxyHealthy: healthy, Code: resp.StatusCode,
					Weight: resp.Header.Get("X-Load-Balancing-Endpoint-Weight")}
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if err := json.Unmarshal(body, &proxyc.Body); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(kubeProxy, proxyc); diff != "" {
					t.Errorf("%s: fact %d (-kube-proxy +proxyc):\n%s", test.Test, i, diff)
				}
				continue
			default:
				continue
			}
			checks.Sync([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, want)
			for service, port := range ports {
				conn, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
				if err == nil {
					conn.Close()
				}
				if _, open := want[name(service)]; open != (err == nil) {
					t.Errorf("%s: fact %d: %s answers: %v, wanted: %v", test.Test, i, service, err == nil, open)
				}
			}
		}
		checks.Close()
	}
	if answers < 20 {
		t.Errorf("only %d responses", answers)
	}
}

func freePort(t *testing.T) uint16 {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return mustPort(l.Addr().String()[strings.LastIndex(l.Addr().String(), ":")+1:])
}
