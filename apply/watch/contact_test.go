package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// way is a connection to a server that can lose packets.
type way struct {
	t        *testing.T
	to, addr string
	running  sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener
	open     []net.Conn
	thaw     chan struct{} // closed while bytes pass through
}

func newWay(t *testing.T, to string) *way {
	w := &way{t: t, to: to, addr: "127.0.0.1:0", thaw: make(chan struct{})}
	close(w.thaw)
	w.listen()
	t.Cleanup(func() { w.shut(); w.running.Wait() })
	return w
}

// listen accepts connections; shut breaks all and refuses new ones.
func (w *way) listen() {
	l, err := net.Listen("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addr, w.listener = l.Addr().String(), l
	w.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.relay(conn)
		}
	})
}

func (w *way) shut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listener.Close()
	for _, c := range w.open {
		c.Close()
	}
	w.open = nil
	select {
	case <-w.thaw:
	default:
		close(w.thaw)
	}
}

// freeze drops all bytes from now on, without closing connections.
func (w *way) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thaw = make(chan struct{})
}

func (w *way) relay(client net.Conn) {
	server, err := net.Dial("tcp", w.to)
	if err != nil {
		client.Close()
		return
	}
	w.mu.Lock()
	w.open = append(w.open, client, server)
	w.mu.Unlock()
	pass := func(to, from net.Conn) {
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			w.mu.Lock()
			thaw := w.thaw
			w.mu.Unlock()
			<-thaw
			if n > 0 {
				to.Write(buffer[:n])
			}
			if err != nil {
				to.Close()
				return
			}
		}
	}
	w.running.Go(func() { pass(server, client) })
	w.running.Go(func() { pass(client, server) })
}

// cutOff returns an API that follows a fake server over a way.
func cutOff(t *testing.T) (*way, *fakeAPI, *follower, *lockedBuffer) {
	t.Helper()
	f := newFakeAPI(t)
	f.objects["services"] = []any{service("a", "10.0.0.1")}
	secure := httptest.NewUnstartedServer(f)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	// The server name separates the connections and their timeouts from those of other tests.
	w := newWay(t, secure.Listener.Addr().String())
	said := &lockedBuffer{}
	g := followConfig(t, &rest.Config{Host: "https://" + w.addr, TLSClientConfig: rest.TLSClientConfig{Insecure: true, ServerName: t.Name()}}, io.MultiWriter(said, t.Output()))
	return w, f, g, said
}

// outage waits until the API has an outage, or has none.
func (g *follower) outage(want bool) (s ResourceState) {
	g.t.Helper()
	g.eventually(fmt.Sprintf("contact lost: %t", want), func() bool {
		s = g.Contact.Outage()
		return !s.Lost.IsZero() == want
	})
	return s
}

// timesSaid waits until the log contains what, and returns how often.
func timesSaid(t *testing.T, log *lockedBuffer, what string) int {
	t.Helper()
	applytest.Until(t, 2*time.Minute, "the log has "+what, func() bool { return strings.Contains(log.String(), what) })
	return strings.Count(log.String(), what)
}

const (
	neverSaid = `level=WARN msg="there is no contact with the API server yet`
	lostSaid  = `level=WARN msg="contact with the API server is lost`
	backSaid  = `level=INFO msg="contact with the API server is restored`
)

// A server that refuses connections is logged once, and its return once.
func TestContactRefused(t *testing.T) {
	w, f, g, said := cutOff(t)
	g.waitSynced()
	if g.outage(false); strings.Contains(said.String(), "contact") {
		t.Errorf("said while all is well:\n%s", said.String())
	}
	began := time.Now()
	w.shut()
	if s := g.outage(true); s.Cause == "" || s.Lost.Before(began) {
		t.Errorf("silence since %s, %s before: cause %q", s.Lost, began.Sub(s.Lost), s.Cause)
	}
	g.eventually("connections are refused", func() bool { return strings.Contains(g.Contact.Outage().Cause, "connection refused") })
	w.listen()
	g.outage(false)
	if n := timesSaid(t, said, backSaid); n != 1 {
		t.Errorf("the return is reported %d times", n)
	}
	if _, line, _ := strings.Cut(said.String(), backSaid); strings.Contains(strings.SplitAfter(line, "\n")[0], "err=") {
		t.Errorf("the return is reported with an error:%s", line)
	}
	if n := timesSaid(t, said, lostSaid); n != 1 {
		t.Errorf("the loss is reported %d times", n)
	}
	if strings.Contains(said.String(), "watch ended") {
		t.Errorf("each try is reported:\n%s", said.String())
	}
	f.Send("services", "ADDED", service("b", "10.0.0.2"))
	g.until(has("b"))
	g.eventually("each resource is heard again", func() bool {
		return !slices.ContainsFunc(g.Contact.Resources(), func(h ResourceState) bool { return h.Last.Before(began) })
	})
}

// A peer that disappears without a packet is detected by missing responses.
func TestContactVanished(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1") // client-go's default is 30
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")      // client-go's default is 15
	w, _, g, said := cutOff(t)
	g.waitSynced()
	g.until(has("a"))
	w.freeze()
	if s := g.outage(true); !strings.Contains(s.Cause, "connection lost") {
		t.Errorf("cause: %q", s.Cause)
	}
	w.shut()
	w.listen()
	g.outage(false)
	if lost, back := timesSaid(t, said, lostSaid), timesSaid(t, said, backSaid); lost != 1 || back != 1 {
		t.Errorf("reported %d times that contact is lost, and %d times that it is back", lost, back)
	}
}

// A server that never existed is logged once, not for each attempt.
func TestContactNever(t *testing.T) {
	said := &lockedBuffer{}
	g := followConfig(t, &rest.Config{Host: "http://127.0.0.1:1"}, io.MultiWriter(said, t.Output()))
	if s := g.outage(true); !strings.Contains(s.Cause, "connection refused") {
		t.Errorf("cause: %q", s.Cause)
	}
	for range 2 * len(g.Contact.Resources()) { // several attempts later
		g.Contact.resource("services").recordLoss(errors.New("dial: connection refused"))
	}
	if n := timesSaid(t, said, neverSaid); n != 1 || strings.Contains(said.String(), "level=ERROR") {
		t.Errorf("reported %d times:\n%s", n, said.String())
	}
	select {
	case <-g.synced:
		t.Error("synced without a server")
	default:
	}
}

// roundTrip answers requests.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A body that breaks is a failure of the server, unless the request was canceled, as at the end of
// the process.
func TestContactEnds(t *testing.T) {
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated signal received"))
	over, end := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer end()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		lost bool
	}{
		{"the connection broke", t.Context(), true},
		{"the process ends", canceled, false},
		{"the server took too long", over, true},
	} {
		c := NewContact(slog.New(slog.DiscardHandler), time.Now)
		c.resource("services").expect(false)
		b := &body{ReadCloser: io.NopCloser(iotest.ErrReader(errors.New("broken"))), record: c.resource("services").recordLoss,
			request: tt.ctx, ctx: tt.ctx, end: func(error) {}, limit: timeoutError{noEvent, time.Hour}}
		b.Read(make([]byte, 1))
		if lost := !c.Outage().Lost.IsZero(); lost != tt.lost {
			t.Errorf("%s: contact lost: %t, want %t", tt.name, lost, tt.lost)
		}
	}
}

// A rejected account or an untrusted certificate is no loss of contact. The log and the Outage
// contain the fix.
func TestContactRefusal(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	refused := func(reason metav1.StatusReason) *rest.Config {
		f := newFakeAPI(t)
		f.Refuse("services", reason)
		return f.config()
	}
	for _, tc := range []struct {
		name   string
		config *rest.Config
		log    string
		fix    string
	}{
		{"401", refused(metav1.StatusReasonUnauthorized), `msg="the API server refuses this account: the rules are kept" resource=services`, "renew the credentials"},
		{"403", refused(metav1.StatusReasonForbidden), `msg="the API server refuses this account: the rules are kept" resource=services`, "ClusterRole"},
		{"CA", &rest.Config{Host: secure.URL}, `msg="the TLS handshake with the API server fails: the rules are kept"`, "certificate-authority"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			said := &lockedBuffer{}
			g := followConfig(t, tc.config, io.MultiWriter(said, t.Output()))
			if o := g.outage(true); !strings.Contains(o.Fix, tc.fix) {
				t.Errorf("outage %+v, want fix %q", o, tc.fix)
			}
			if n := timesSaid(t, said, tc.log); n != 1 {
				t.Errorf("logged %d times", n)
			}
			if text := said.String(); strings.Contains(text, lostSaid) || strings.Contains(text, neverSaid) || !strings.Contains(text, "fix=") {
				t.Errorf("log:\n%s", text)
			}
		})
	}
}

// The server's response decides whether there is contact.
func TestContactAnswers(t *testing.T) {
	status := func(code int, contentType, body string) roundTrip {
		return func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: code, Status: http.StatusText(code), Header: http.Header{"Content-Type": {contentType}},
				Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	const forbidden = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"services is forbidden: User \"x\" cannot list","reason":"Forbidden","code":403}`
	for _, tc := range []struct {
		name, path string
		answer     roundTrip
		want       string // cause; empty if there is contact
	}{
		{"all is well", "/api/v1/services", status(200, "application/json", "{}"), ""},
		{"forbidden", "/api/v1/services", status(403, "application/json", forbidden), `services is forbidden: User "x" cannot list`},
		{"no Status", "/api/v1/services", status(503, "text/html", "<html>"), "Service Unavailable"},
		{"too old", "/api/v1/services", status(410, "application/json", forbidden), ""},
		{"no streaming of first objects", "/api/v1/services", status(422, "application/json", forbidden), ""},
		{"optional", "/apis/networking.k8s.io/v1/servicecidrs", status(403, "application/json", forbidden), ""},
		{"another matter", "/apis/events.k8s.io/v1/namespaces/default/events", status(403, "application/json", forbidden), ""},
		{"no answer", "/api/v1/services", func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") }, "no route to host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewContact(slog.New(slog.DiscardHandler), time.Now)
			c.resource("services").expect(false)
			c.resource("servicecidrs").expect(true)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server"+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := newTransport(tc.answer, c, "server").RoundTrip(r)
			if err == nil {
				if body, err := io.ReadAll(resp.Body); err != nil || len(body) == 0 {
					t.Errorf("the body is gone: %q, %v", body, err)
				}
			}
			if got := c.Outage().Cause; got != tc.want {
				t.Errorf("cause %q, want %q", got, tc.want)
			}
		})
	}
}

// If a server sends bookmarks, missing ones are a loss of contact. Otherwise there may be nothing
// to send.
func TestContactSilent(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var said lockedBuffer
	c := NewContact(slog.New(slog.NewTextHandler(&said, nil)), func() time.Time { return now })
	c.resource("nodes").expect(false)
	c.resource("services").expect(false)
	arrives := func(name string) { r := c.resource(name); r.recordEvent(); r.recordStored() }
	began, silent := now, now // silent is when the lost resource last had an event, before the loss was detected
	steps := []struct {
		name string
		do   func()
		want string // the lost resource
	}{
		{"at first", func() {}, ""},
		{"services come, without bookmarks", func() { c.resource("services").recordOpenWatch(false); arrives("services") }, ""},
		{"a minute", func() { now = now.Add(time.Minute) }, ""},
		{"nothing of nodes", func() { now = now.Add(staleAfter) }, "nodes"},
		{"nodes come", func() {
			c.resource("nodes").recordOpenWatch(false)
			arrives("nodes")
			c.resource("nodes").recordBookmark()
			silent = now
		}, ""},
		{"a little less than long", func() { now = now.Add(staleAfter - time.Second) }, ""},
		{"long", func() { now = now.Add(time.Second) }, "nodes"},
		{"longer, and of services as well, which came before", func() { now = now.Add(time.Hour); silent = began }, "services"},
		{"a bookmark, and services", func() { arrives("nodes"); arrives("services"); silent = now }, ""},
		{"services without bookmarks for less than a watch lasts", func() { now = now.Add(silentAfter - time.Second); arrives("nodes") }, ""},
		{"for longer", func() { now = now.Add(time.Second) }, "services"},
		{"the next watch begins", func() { c.resource("services").recordOpenWatch(false) }, ""},
	}
	for _, s := range steps {
		s.do()
		c.checkSilence()
		lost := c.Outage()
		if lost.Resource != s.want || s.want != "" && !lost.Lost.Equal(silent) {
			t.Errorf("%s: lost: %q since %s, want %q since %s", s.name, lost.Resource, lost.Lost, s.want, silent)
		}
	}
	if lost, back := strings.Count(said.String(), lostSaid), strings.Count(said.String(), backSaid); lost != 3 || back != 3 {
		t.Errorf("reported %d times that contact is lost, %d times that it is back, want 3:\n%s", lost, back, said.String())
	}
}

// Contact that is lost while objects are stored stays lost.
func TestContactLostWhileStoring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewContact(slog.New(slog.DiscardHandler), time.Now)
		r := c.resource("services")
		r.expect(false)
		for _, stored := range []func(){r.recordStored, r.recordBookmark} {
			r.recordEvent()
			time.Sleep(time.Second)
			r.recordLoss(errors.New("connection reset by peer"))
			if stored(); c.Outage().Lost.IsZero() {
				t.Error("there is contact")
			}
			time.Sleep(time.Second)
			r.recordEvent()
			if stored(); !c.Outage().Lost.IsZero() {
				t.Error("there is no contact after another event")
			}
		}
	})
}

// Contact is restored when the Store has the objects of a server, not when it answers.
func TestContactWhileListing(t *testing.T) {
	for _, streams := range []bool{true, false} {
		f := newFakeAPI(t)
		f.noStream = !streams
		f.objects["services"] = []any{service("a", "10.0.0.1")}
		g := follow(t, f)
		g.waitSynced()
		f.Refuse("services", metav1.StatusReasonInternalError)
		f.End("services", service("b", "10.0.0.2"))
		g.outage(true)
		g.Store.mu.Lock() // nothing is stored
		refused := time.Now()
		f.Refuse("", "")
		g.eventually("the objects arrive", func() bool { return g.heard("services").Last.After(refused) })
		g.Contact.resource("services").recordOpenWatch(true)
		if g.Contact.Outage().Lost.IsZero() {
			t.Errorf("streams %t: contact before the Store has the objects", streams)
		}
		g.Store.mu.Unlock()
		g.until(has("b"))
		g.outage(false)
	}
}

// A bookmark counts as contact, although it changes nothing.
func TestContactBookmark(t *testing.T) {
	f := newFakeAPI(t)
	f.objects["services"] = []any{service("a", "10.0.0.1")}
	g := follow(t, f)
	g.waitSynced()
	g.until(func(s *snapshot.Snapshot) bool { return has("a")(s) })
	last := func() time.Time {
		for _, h := range g.Contact.Resources() {
			if h.Resource == "services" {
				return h.Last
			}
		}
		return time.Time{}
	}
	before := last()
	f.Send("services", "BOOKMARK", service("", ""))
	g.eventually("the bookmark is recorded", func() bool { return last().After(before) })
}

// A server that does not answer is named after slowAfter, once, and again when it answers. An optional
// resource that was never read is reported as such.
func TestContactSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		c := NewContact(slog.New(slog.NewTextHandler(&said, nil)), time.Now)
		c.resource("servicecidrs").expect(true)
		answers := time.Now().Add(3 * slowAfter)
		over := newTransport(roundTrip(func(r *http.Request) (*http.Response, error) {
			select {
			case <-time.After(time.Until(answers)):
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}), c, "https://192.0.2.1:6443")
		ask := func(after time.Duration) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://192.0.2.1:6443/apis/networking.k8s.io/v1/servicecidrs", nil)
			if err != nil {
				t.Fatal(err)
			}
			answers = time.Now().Add(after)
			if resp, err := over.RoundTrip(r); err == nil {
				resp.Body.Close()
			}
		}
		logged := func(after time.Duration, want ...string) {
			t.Helper()
			said.Reset()
			ask(after)
			text := said.String()
			for _, one := range want {
				if !strings.Contains(text, one) {
					t.Errorf("an answer after %s: no %q in\n%s", after, one, text)
				}
			}
			if n := strings.Count(text, "\n"); n != len(want) {
				t.Errorf("an answer after %s: %d lines, want %d:\n%s", after, n, len(want), text)
			}
		}
		const slow, again = `msg="the API server does not answer: waiting" server=https://192.0.2.1:6443 resource=servicecidrs for=10s`, `msg="the API server answers again" server=https://192.0.2.1:6443`
		logged(slowAfter - 1)
		logged(slowAfter+time.Second, slow, again)
		logged(2*responseTimeout, slow, `msg="servicecidrs cannot be read: none were read so far" err="no answer for 1m10s"`)
		c.resource("servicecidrs").recordEvent()
		c.resource("servicecidrs").recordStored()
		logged(2*responseTimeout, `msg="servicecidrs cannot be read: the rules use the last objects that were read"`)
	})
}
