package watch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// pausing is a body that waits before each read, unless the request ends.
type pausing struct {
	ctx   context.Context
	pause []time.Duration
}

func (b *pausing) Read(p []byte) (int, error) {
	if len(b.pause) == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(b.pause[0]):
		b.pause = b.pause[1:]
		return copy(p, "x"), nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *pausing) Close() error { return nil }

// Every request has a deadline: for its headers, and for each part of its body.
func TestDeadlines(t *testing.T) {
	const never = 1000 * time.Hour
	for _, tc := range []struct {
		name, query string
		marked      bool // bookmarks arrived
		headers     time.Duration
		body        []time.Duration
		took        time.Duration
		want        string // error; empty if the response is complete
	}{
		{"no headers", "", false, never, nil, responseTimeout, "no answer for 1m10s"},
		{"no headers of a watch", "?watch=true", true, never, nil, responseTimeout, "no answer for 1m10s"},
		{"slow, and whole", "", false, responseTimeout - 1, []time.Duration{responseTimeout - 1, responseTimeout - 1}, 3*responseTimeout - 3, ""},
		{"a list that stops", "", true, time.Second, []time.Duration{time.Second, never}, responseTimeout + 2*time.Second, "the answer stopped for 1m10s"},
		{"a watch without bookmarks", "?watch=true", false, 0, []time.Duration{silentAfter - 1, never}, 2*silentAfter - 1, "no event and no bookmark for 15m0s"},
		{"a watch with bookmarks", "?watch=true", true, 0, []time.Duration{time.Minute, staleAfter - 1, never}, time.Minute + 2*staleAfter - 1, "no event and no bookmark for 3m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := NewContact(slog.New(slog.DiscardHandler), time.Now)
				c.resource("services").expect(false)
				c.resource("services").recordEvent()
				if tc.marked {
					c.resource("services").recordBookmark()
				}
				over := newTransport(roundTrip(func(r *http.Request) (*http.Response, error) {
					select {
					case <-time.After(tc.headers):
						return &http.Response{StatusCode: 200, Header: http.Header{}, Body: &pausing{r.Context(), tc.body}}, nil
					case <-r.Context().Done():
						return nil, r.Context().Err()
					}
				}), c, "server")
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server/api/v1/services"+tc.query, nil)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				resp, err := over.RoundTrip(r)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				if (err == nil) != (tc.want == "") || err != nil && err.Error() != tc.want {
					t.Errorf("error %v, want %q", err, tc.want)
				}
				if took := time.Since(began); took != tc.took {
					t.Errorf("took %s, want %s", took, tc.took)
				}
				if cause := c.Outage().Cause; cause != tc.want {
					t.Errorf("cause %q, want %q", cause, tc.want)
				}
			})
		})
	}
}

// After missing bookmarks, a watch that opens is no contact: bookmarks have to arrive again.
func TestSilenceLasts(t *testing.T) {
	c := NewContact(slog.New(slog.DiscardHandler), time.Now)
	c.resource("services").expect(false)
	lost := func() bool { return !c.Outage().Lost.IsZero() }
	c.resource("services").recordLoss(&timeoutError{noEvent, staleAfter})
	if c.resource("services").recordOpenWatch(false); lost() {
		t.Error("lost, though a watch opened, and the server never sent bookmarks")
	}
	c.resource("services").recordBookmark()
	c.resource("services").recordLoss(&timeoutError{noEvent, staleAfter})
	c.resource("services").recordLoss(errors.New("connection refused"))
	if c.resource("services").recordOpenWatch(false); !lost() {
		t.Error("heard before a bookmark came")
	}
	c.resource("services").recordEvent()
	c.resource("services").recordStored()
	c.resource("services").recordLoss(errors.New("connection refused"))
	if c.resource("services").recordOpenWatch(false); lost() {
		t.Error("lost after a refused connection, though a watch opened")
	}
}

// A series of watches, each of which breaks soon after an event or after it opened, is one outage. Lasting
// contact ends it.
func TestOutageOfBreakingWatches(t *testing.T) {
	start := time.Now()
	now := start
	c := NewContact(slog.New(slog.DiscardHandler), func() time.Time { return now })
	r := c.resource("services")
	r.expect(false)
	since := func() time.Duration { return now.Sub(c.Outage().Lost) }
	r.recordLoss(errors.New("connection reset"))
	for i := range 60 {
		now = now.Add(5 * time.Second)
		if i%2 == 0 {
			r.recordEvent()
			r.recordStored()
		} else {
			r.recordOpenWatch(false)
		}
		if !c.Outage().Lost.IsZero() {
			t.Fatal("lost, though contact has returned")
		}
		now = now.Add(2 * time.Second)
		r.recordLoss(errors.New("connection reset"))
	}
	if got := since(); got != now.Sub(start) {
		t.Errorf("lost for %s, want %s", got, now.Sub(start))
	}
	r.recordOpenWatch(false)
	now = now.Add(steadyAfter)
	if r.recordLoss(errors.New("connection reset")); since() != 0 {
		t.Errorf("lost for %s after lasting contact", since())
	}
}

// A silent watch ends without an error event, whose text would replace the cause.
func TestSilenceIsTimeout(t *testing.T) {
	if !utilnet.IsTimeout(&timeoutError{noEvent, staleAfter}) {
		t.Error("client-go sees no timeout")
	}
}

// A server cannot make a client wait longer than maxRetryAfter.
func TestRetryAfter(t *testing.T) {
	for given, want := range map[string]string{"": "", "1": "1", "86400": "30", "tomorrow": "tomorrow"} {
		d := newTransport(roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {given}}, Body: http.NoBody}, nil
		}), NewContact(slog.New(slog.DiscardHandler), time.Now), "server")
		resp, err := d.RoundTrip(&http.Request{Method: http.MethodGet, URL: &url.URL{}})
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Retry-After"); got != want {
			t.Errorf("Retry-After %q became %q, want %q", given, got, want)
		}
		resp.Body.Close()
	}
}

// The first rules do not wait for the ServiceCIDRs of a failing or silent server. They are added
// when it responds.
func TestOptionalDoesNotBlock(t *testing.T) {
	for name, fault := range map[string]struct {
		begin, end func(*fakeAPI)
		cause      string
	}{
		"silence":      {func(f *fakeAPI) { f.Silence("servicecidrs") }, func(f *fakeAPI) { f.Silence() }, "no answer for 10s"},
		"500":          {func(f *fakeAPI) { f.Refuse("servicecidrs", metav1.StatusReasonInternalError) }, func(f *fakeAPI) { f.Refuse("", "") }, "500 Internal Server Error"},
		"unauthorized": {func(f *fakeAPI) { f.Refuse("servicecidrs", metav1.StatusReasonUnauthorized) }, func(f *fakeAPI) { f.Refuse("", "") }, "401 Unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := &lockedBuffer{}
			f := newFakeAPI(t)
			f.objects["services"] = []any{service("a", "10.0.0.1")}
			f.objects["servicecidrs"] = []any{cidr("kubernetes", "10.96.0.0/16")}
			fault.begin(f)
			g := followUnstarted(t, f.config(), io.MultiWriter(said, t.Output()))
			g.after = func(d time.Duration) <-chan time.Time { return time.After(d / 50) } // between two requests
			g.start()
			g.waitSynced()
			g.until(has("a"))
			g.eventually("ServiceCIDRs are lost", func() bool { return strings.Contains(g.heard("servicecidrs").Cause, fault.cause) })
			if o := g.Contact.Outage(); !o.Lost.IsZero() {
				t.Errorf("contact counts as lost: %+v", o)
			}
			fault.end(f)
			g.until(func(s *snapshot.Snapshot) bool { return s.ServiceCIDR("kubernetes") != nil })
			timesSaid(t, said, "servicecidrs can be read again")
			if n := timesSaid(t, said, "servicecidrs cannot be read"); n != 1 {
				t.Errorf("the loss is logged %d times", n)
			}
		})
	}
}

// A first request without a response does not block the others.
func TestFirstRequestUnanswered(t *testing.T) {
	for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		f := newFakeAPI(t)
		f.Silence(resource)
		g := followUnstarted(t, f.config(), t.Output())
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan struct{})
		go func() {
			defer close(first)
			g.clients.core.Get().Resource(resource).Do(ctx)
		}()
		g.eventually("the first request is waiting", func() bool { return f.asked() == 1 })
		g.start()
		g.eventually("others are answered", func() bool {
			answered := 0
			for _, h := range g.Contact.Resources() {
				if !h.Last.IsZero() {
					answered++
				}
			}
			return answered == 3
		})
		cancel()
		<-first
	}
}

func cidr(name, of string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{TypeMeta: typeMeta("networking.k8s.io/v1", "ServiceCIDR"),
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "2"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{of}}}
}
