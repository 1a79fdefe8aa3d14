package watch

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net"
	"net/http"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Contact knows, by resource, when an API server was last heard of, and
// whether it can be heard at all. It says once when contact is lost, and once
// when it is back. It is safe for use by several goroutines.
type Contact struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	server string
	heard  map[string]*Heard
	outage Outage
}

// Heard is what is known of one resource.
type Heard struct {
	Resource string `json:"resource"` // "services"
	// Last is when the last event or bookmark came, or first objects; zero:
	// none did yet.
	Last time.Time `json:"last,omitzero"`
	// Lost is since when nothing can be heard, be it that this became known later; zero: it
	// can, as far as is known.
	Lost  time.Time `json:"lost,omitzero"`
	Cause string    `json:"cause,omitempty"` // of Lost
	Fix   string    `json:"fix,omitempty"`   // of Cause, where it is known
	// Optional reports whether rules do without the resource: it is no Outage where it is lost.
	Optional bool `json:"optional,omitempty"`
	// NotGiven is why nothing is heard, nor waited for: the server does not have the
	// resource, or does not let it be read.
	NotGiven string `json:"notGiven,omitempty"`

	failure  string    // Cause in general terms
	answered time.Time // when a watch last began, or the server began to be asked
	told     time.Time // when Cause was
	marked   bool      // bookmarks come
	silent   bool      // lost for want of bookmarks: only what arrives ends that
}

// mayBeSilent returns how long nothing may come of it.
func (h *Heard) mayBeSilent() time.Duration {
	if !h.marked && !h.Last.IsZero() { // it may have nothing to send
		return silentAfter
	}
	return staleAfter
}

// Outage is that an API server cannot be heard.
type Outage struct {
	Since    time.Time // zero: it can be heard
	Resource string
	Cause    string
	Fix      string // "" if it is not known
	failure  string // Cause in general terms
}

const (
	// staleAfter is how long nothing may come of a resource before it counts
	// as lost: an API server sends a bookmark each minute.
	staleAfter = 3 * time.Minute
	// silentAfter is staleAfter for a resource of which objects came, and no bookmark: a
	// watch lasts 10 minutes at most, as client-go asks, and the next is answered.
	silentAfter = 15 * time.Minute
	// listenEvery is how often an outage is looked for.
	listenEvery = 10 * time.Second
)

// NewContact returns a Contact that has heard nothing yet.
func NewContact(log *slog.Logger, now func() time.Time) *Contact {
	return &Contact{log: log, now: now, heard: map[string]*Heard{}}
}

// GoOn begins with what was heard by another Contact, which has ended; nil: by none.
func (c *Contact) GoOn(before *Contact) {
	if before == nil {
		return
	}
	c.outage = before.Outage()
	for _, h := range before.Resources() {
		c.heard[h.Resource] = &h
	}
}

// Server is where the API server is, as the client was told.
func (c *Contact) Server() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

// Resources returns what is known of each, in order of name.
func (c *Contact) Resources() []Heard {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Heard, 0, len(c.heard))
	for _, name := range slices.Sorted(maps.Keys(c.heard)) {
		out = append(out, *c.heard[name])
	}
	return out
}

// Outage returns since when there is no contact, and why.
func (c *Contact) Outage() Outage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outage
}

// expect begins to ask for a resource. What was lost before stays so until it is heard.
func (c *Contact) expect(resource string, optional bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := Heard{Resource: resource}
	if before := c.heard[resource]; before != nil {
		h = *before
	}
	h.answered, h.Optional, h.NotGiven = c.now(), optional, ""
	c.heard[resource] = &h
}

// without is told of a resource that the server does not give.
func (c *Contact) without(resource, why string) {
	c.change(resource, func(h *Heard) { *h = Heard{Resource: resource, NotGiven: why, Optional: true} })
}

// change changes what is known of a resource, and says what follows from it.
func (c *Contact) change(resource string, f func(*Heard)) {
	c.mu.Lock()
	var was, is Heard
	if h := c.heard[resource]; h != nil {
		was = *h
		f(h)
		is = *h
	}
	before, now := c.outage, c.findOutage()
	c.outage = now
	at := c.now()
	c.mu.Unlock()
	switch {
	case !now.Since.IsZero() && before.failure != now.failure:
		c.log.Warn(now.failure+": the rules stay as they are", withFix(now.Fix, "resource", now.Resource, "err", now.Cause)...)
	case !before.Since.IsZero() && now.Since.IsZero():
		c.log.Info("contact with the API server is back", "after", at.Sub(before.Since).Round(time.Millisecond), "cause", before.Cause)
	}
	switch {
	case !is.Optional:
	case was.Lost.IsZero() && !is.Lost.IsZero():
		c.log.Warn(resource+" cannot be read: the rules depend on those that were read last", withFix(is.Fix, "err", is.Cause)...)
	case !was.Lost.IsZero() && is.Lost.IsZero() && is.NotGiven == "":
		c.log.Info(resource+" can be read again", "after", at.Sub(was.Lost).Round(time.Millisecond))
	}
}

// withFix adds the fix, if it is known, to what is logged.
func withFix(fix string, args ...any) []any {
	if fix == "" {
		return args
	}
	return append(args, "fix", fix)
}

// failureOf returns in general terms why a request failed. A refused account and an untrusted
// certificate are no loss of contact: their fixes are others.
func failureOf(err error) string {
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return "the API server refuses this account"
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	if op, ok := errors.AsType[*net.OpError](err); untrusted || ok && op.Op == "remote error" {
		return "the TLS handshake with the API server fails"
	}
	return "contact with the API server is lost"
}

// findOutage returns the resource that was lost first, of those that the rules cannot be without.
func (c *Contact) findOutage() (s Outage) {
	for _, name := range slices.Sorted(maps.Keys(c.heard)) {
		if h := c.heard[name]; !h.Optional && !h.Lost.IsZero() && (s.Since.IsZero() || h.Lost.Before(s.Since)) {
			s = Outage{h.Lost, name, h.Cause, h.Fix, h.failure}
		}
	}
	return s
}

// answer notes that a watch goes on: the server will be heard.
func (c *Contact) answer(resource string) {
	c.change(resource, func(h *Heard) {
		if h.answered = c.now(); !h.silent {
			h.found()
		}
	})
}

// hear notes that something of a resource came, as it does all the time.
func (c *Contact) hear(resource string) {
	c.mu.Lock()
	h := c.heard[resource]
	if h != nil && h.Lost.IsZero() {
		h.Last = c.now()
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.change(resource, func(h *Heard) { h.Last = c.now(); h.found() })
}

// mayBeSilent returns how long a watch may be without an event.
func (c *Contact) mayBeSilent(r *http.Request) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.heard[path.Base(r.URL.Path)]; h != nil {
		return h.mayBeSilent()
	}
	return silentAfter
}

// mark notes that bookmarks come.
func (c *Contact) mark(resource string) {
	c.change(resource, func(h *Heard) { h.marked = true })
}

// lose notes that nothing of a resource can be heard.
func (c *Contact) lose(resource string, err error) {
	c.change(resource, func(h *Heard) { h.lose(c.now(), err) })
}

// loseUnlessSince is lose, unless something was noted of the resource since then.
func (c *Contact) loseUnlessSince(resource string, then time.Time, err error) {
	c.change(resource, func(h *Heard) {
		if h.told.Before(then) {
			h.lose(c.now(), err)
		}
	})
}

func (h *Heard) lose(now time.Time, err error) {
	silent, ok := errors.AsType[*silence](err)
	h.silent = h.silent || ok && h.marked && silent.what == noEvent
	if h.Lost.IsZero() {
		if h.Lost = now; ok {
			h.Lost = h.heard()
		}
	}
	h.told, h.Cause, h.Fix, h.failure = now, err.Error(), Remedy(err), failureOf(err)
}

// found notes that the resource can be heard.
func (h *Heard) found() {
	h.Lost, h.Cause, h.Fix, h.failure, h.silent = time.Time{}, "", "", "", false
}

// heard returns when the resource was last heard, or the server began to be asked for it.
func (h *Heard) heard() time.Time {
	if h.answered.After(h.Last) {
		return h.answered
	}
	return h.Last
}

// listen looks for resources of which nothing comes any more.
func (c *Contact) listen() {
	for _, was := range c.Resources() {
		c.change(was.Resource, func(h *Heard) {
			if most := h.mayBeSilent(); h.Lost.IsZero() && h.NotGiven == "" && c.now().Sub(h.heard()) >= most {
				h.lose(c.now(), &silence{noEvent, most})
			}
		})
	}
}

// run looks for an outage until ctx ends.
func (c *Contact) run(ctx context.Context) {
	tick := time.NewTicker(listenEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.listen()
		}
	}
}

// over makes requests go over a transport, with all that fails noted.
func (c *Contact) over(next http.RoundTripper, server string) http.RoundTripper {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = server
	return &listener{c, &deadlines{next, c.mayBeSilent}}
}

// listener is a transport that notes what does not come back. Reflectors tell neither
// of a watch that cannot begin nor of one that broke.
type listener struct {
	*Contact
	next http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport itself.
func (l *listener) WrappedRoundTripper() http.RoundTripper { return l.next }

func (l *listener) RoundTrip(r *http.Request) (*http.Response, error) {
	resource := path.Base(r.URL.Path)
	l.mu.Lock()
	h := l.heard[resource]
	optional := h != nil && h.Optional
	l.mu.Unlock()
	resp, err := l.next.RoundTrip(r)
	switch {
	case h == nil || r.Method != http.MethodGet || r.Context().Err() != nil:
		return resp, err
	case err != nil:
		l.lose(resource, err)
		return resp, err
	}
	switch code := resp.StatusCode; {
	case code < http.StatusBadRequest:
		if why := foreign(resp); why != "" {
			l.lose(resource, errors.New(why))
		}
		resp.Body = &heardBody{ReadCloser: resp.Body, of: l.Contact, ctx: r.Context(), resource: resource}
	case code == http.StatusGone, code == http.StatusUnprocessableEntity, code == http.StatusTooManyRequests:
		// A version that is too old, or a way of asking that an old server does
		// not know, or too often: it is asked again in another way, or later.
	case optional && (code == http.StatusNotFound || code == http.StatusForbidden):
	default:
		l.lose(resource, refusalOf(resp))
	}
	return resp, err
}

// refusalOf returns why a server refused a request.
func refusalOf(resp *http.Response) error {
	const most = 64 << 10
	begin, _ := io.ReadAll(io.LimitReader(resp.Body, most))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(begin), resp.Body), resp.Body}
	refusal := &apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(resp.StatusCode), Message: resp.Status}}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if info, ok := runtime.SerializerInfoForMediaType(newCodecs().SupportedMediaTypes(), kind); ok {
		obj, _, _ := info.Serializer.Decode(begin, nil, nil)
		if status, ok := obj.(*metav1.Status); ok && status.Message != "" {
			refusal.ErrStatus.Message, refusal.ErrStatus.Reason = status.Message, status.Reason
		}
	}
	return refusal
}

// heardBody is the body of an answer, which may break.
type heardBody struct {
	io.ReadCloser
	of       *Contact
	ctx      context.Context // of the request
	resource string
	closed   atomic.Bool // by who reads it
}

func (b *heardBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	// A request that is canceled, as all are when the process ends, says nothing
	// of the server; one whose time is over does.
	if err != nil && err != io.EOF && !b.closed.Load() && b.ctx.Err() != context.Canceled {
		b.of.lose(b.resource, err)
	}
	return n, err
}

func (b *heardBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
