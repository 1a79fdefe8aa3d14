package watch

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// page answers each request alike.
func page(contentType, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		io.WriteString(w, body)
	}
}

// half answers with a list that is cut off, and a watch that is.
func half(w http.ResponseWriter, _ *http.Request) {
	body := string(must(json.Marshal(map[string]any{"kind": "ServiceList", "apiVersion": "v1", "metadata": map[string]string{"resourceVersion": "5"}, "items": []any{}})))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "100000")
	io.WriteString(w, body[:len(body)/2])
}

// What is answered with code 200 and is no API server's is no contact, neither at the
// start nor later.
func TestContactForeign(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request)
		cause  string
	}{
		{"HTML", page("text/html; charset=utf-8", "<html>maintenance</html>"), "200 OK with text/html; charset=utf-8, is no API server's"},
		{"garbage", page("application/json", "\x00\xffgarbage"), "invalid character"},
		{"other JSON", page("application/json", `{"status":"maintenance"}`), ""},
		{"half a body", half, "unexpected EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			said := &lockedBuffer{}
			f := newFakeAPI(t)
			f.objects["services"] = []any{service("a", "10.0.0.1")}
			f.Instead(tc.answer)
			g := followUnstarted(t, f.config(), io.MultiWriter(said, t.Output()))
			g.after = func(time.Duration) <-chan time.Time { return time.After(10 * time.Millisecond) }
			g.start()
			if s := g.outage(true); !strings.Contains(s.Cause, tc.cause) || s.Cause == "" {
				t.Errorf("cause %q, want %q in it", s.Cause, tc.cause)
			}
			timesSaid(t, said, lostSaid)
			select {
			case <-g.synced:
				t.Error("synced by what no server says")
			default:
			}
			f.Instead(nil)
			g.waitSynced()
			g.until(has("a"))
			g.outage(false)

			f.Instead(tc.answer)
			g.eventually("all resources are lost", func() bool {
				return !slices.ContainsFunc(g.Contact.Resources(), func(h Heard) bool { return h.Lost.IsZero() })
			})
			before, asked := g.Contact.Resources(), f.asked()
			g.eventually("the server is asked again", func() bool { return f.asked() >= asked+4 })
			for i, h := range g.Contact.Resources() {
				if h.Last.After(before[i].Last) {
					t.Errorf("%s: heard by what no server says", h.Resource)
				}
			}
			g.Store.View(func(s *snapshot.Snapshot) {
				if !has("a")(s) {
					t.Error("the Service is gone")
				}
			})
			f.Instead(nil)
			g.outage(false)
			g.eventually("its return is told, too", func() bool { return strings.Count(said.String(), backSaid) >= 2 })
			if lost, back := strings.Count(said.String(), lostSaid), strings.Count(said.String(), backSaid); lost != 2 || back != 2 {
				t.Errorf("told %d times that contact is lost, and %d times that it is back, want twice", lost, back)
			}
		})
	}
}

// A resource that the server does not let be read at the start is asked for again.
func TestNotGiven(t *testing.T) {
	said := &lockedBuffer{}
	f := newFakeAPI(t)
	f.Refuse("servicecidrs", metav1.StatusReasonForbidden)
	waits := make(chan time.Duration, 100)
	again := make(chan time.Time)
	g := followUnstarted(t, f.config(), io.MultiWriter(said, t.Output()))
	g.after = func(d time.Duration) <-chan time.Time { waits <- d; return again }
	g.start()
	g.waitSynced()
	for _, want := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second} {
		if got := <-waits; got != want {
			t.Errorf("waits %s, want %s", got, want)
		}
		var is Heard
		for _, h := range g.Contact.Resources() {
			if h.Resource == "servicecidrs" {
				is = h
			}
		}
		if is.NotGiven == "" || !is.Lost.IsZero() {
			t.Errorf("what is known of ServiceCIDRs: %+v, want why they are not given", is)
		}
		if want == 20*time.Second {
			f.Refuse("", "")
		}
		again <- time.Time{}
	}
	timesSaid(t, said, "the API server gives servicecidrs now")
	if n := strings.Count(said.String(), "going on without"); n != 1 {
		t.Errorf("told %d times that there are none", n)
	}
	g.eventually("ServiceCIDRs are followed", func() bool { return f.Watches("servicecidrs") > 0 })
}
