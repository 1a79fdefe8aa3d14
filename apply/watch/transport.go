package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"path"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// responseTimeout is how long a server may take to answer a request, or to send the next bytes of a
// list. kube-apiserver itself ends requests after a minute (--request-timeout).
const responseTimeout = 70 * time.Second

// maxRetryAfter bounds the Retry-After header in seconds. client-go would wait for days.
const maxRetryAfter = 30

// noEvent is the silence of a watch.
const noEvent = "no event and no bookmark"

// timeoutError is the error of a request that the server did not answer in time.
type timeoutError struct {
	what  string
	limit time.Duration
}

func (s *timeoutError) Error() string { return fmt.Sprintf("%s for %s", s.what, s.limit) }

// Timeout and Temporary make silence a net.Error. client-go then ends the watch without an error
// event, which would replace the cause.
func (*timeoutError) Timeout() bool   { return true }
func (*timeoutError) Temporary() bool { return true }

// transport sends all requests over one connection, ends requests to a silent server, and records
// failures of requests that read a resource. client-go waits forever for headers and events while the
// connection answers pings, and Reflectors report neither a watch that cannot start nor one that breaks.
type transport struct {
	next    http.RoundTripper
	contact *Contact
	// turn contains a token for the first request. It is closed once that has a connection: concurrent
	// first requests would each open their own. The others do not wait for the first response.
	turn chan struct{}
}

func newTransport(next http.RoundTripper, c *Contact, server string) *transport {
	c.mu.Lock()
	c.server = server
	c.mu.Unlock()
	if c.log != nil {
		c.log.Info("reading objects from the API server", "server", server)
	}
	t := &transport{next, c, make(chan struct{}, 1)}
	t.turn <- struct{}{}
	return t
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, end := context.WithCancelCause(r.Context())
	select {
	case <-ctx.Done():
		end(nil)
		return nil, r.Context().Err()
	case _, first := <-t.turn:
		if first {
			release := sync.OnceFunc(func() { close(t.turn) })
			defer release() // in case no connection was obtained
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { release() }})
		}
	}
	read := t.contact.reads(r)
	slow := time.AfterFunc(slowAfter, func() {
		if read != nil && t.contact.setSlow(true) {
			t.contact.log.Warn("the API server does not answer: waiting", "server", t.contact.Server(), "resource", read.Resource, "for", slowAfter.String())
		}
	})
	limit := time.AfterFunc(responseTimeout, func() { end(&timeoutError{"no answer", responseTimeout}) })
	resp, err := t.next.RoundTrip(r.WithContext(ctx))
	limit.Stop()
	if slow.Stop(); err == nil && t.contact.setSlow(false) {
		t.contact.log.Info("the API server answers again", "server", t.contact.Server())
	}
	record := func(error) {}
	if read != nil && r.Context().Err() == nil {
		record = t.contact.resource(read.Resource).recordLoss
	}
	b := &body{request: r.Context(), ctx: ctx, end: end, limit: timeoutError{"the answer stopped", responseTimeout}, record: record}
	if err != nil {
		err = b.failed(err)
		end(nil)
		return nil, err
	}
	if after, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		resp.Header.Set("Retry-After", strconv.Itoa(min(after, maxRetryAfter)))
	}
	if r.URL.Query().Has("watch") {
		b.limit = timeoutError{noEvent, silentAfter}
		if read != nil {
			b.limit.limit = read.silenceLimit()
		}
	}
	b.ReadCloser, resp.Body = resp.Body, b
	if resp.StatusCode >= http.StatusBadRequest {
		b.record = func(error) {} // the response is the failure, not its end
	}
	if read != nil {
		if err := failureIn(resp, read.Optional); err != nil {
			record(err)
		}
	}
	return resp, nil
}

// reads returns the state of the resource that a request reads, or nil.
func (c *Contact) reads(r *http.Request) *ResourceState {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.resources[path.Base(r.URL.Path)]
	if h == nil || r.Method != http.MethodGet {
		return nil
	}
	now := *h
	return &now
}

// setSlow sets whether requests are without an answer, and reports whether that is new.
func (c *Contact) setSlow(is bool) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = c.slow != is
	c.slow = is
	return changed
}

// failureIn returns the error in a server's response, or nil. optional reports whether the server may
// refuse the resource.
func failureIn(resp *http.Response, optional bool) error {
	switch code := resp.StatusCode; {
	case code < http.StatusBadRequest:
		return foreignResponse(resp)
	case code == http.StatusGone, code == http.StatusUnprocessableEntity, code == http.StatusTooManyRequests:
		// The resource version is too old, an old server does not support the request, or there are too
		// many requests. client-go then asks differently, or later.
		return nil
	case optional && (code == http.StatusNotFound || code == http.StatusForbidden):
		return nil
	}
	return rejectionOf(resp)
}

// foreignResponse returns an error for a response that does not come from an API server, judged by its
// content type.
func foreignResponse(resp *http.Response) error {
	is := resp.Header.Get("Content-Type")
	if is == "" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(is)
	known := func(info runtime.SerializerInfo) bool { return info.MediaType == kind }
	if err == nil && slices.ContainsFunc(newCodecs().SupportedMediaTypes(), known) {
		return nil
	}
	return fmt.Errorf("the answer, %s with %s, is not from an API server", resp.Status, is)
}

// rejectionOf returns the error in a server's response.
func rejectionOf(resp *http.Response) error {
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

// body is the body of a response. It ends the request if a read takes too long, and records read
// errors. The time between two reads does not count, since the reader may be busy.
type body struct {
	io.ReadCloser
	request, ctx context.Context // of the request; the transport ends only ctx
	end          context.CancelCauseFunc
	limit        timeoutError
	record       func(error)
	closed       atomic.Bool // by the reader
}

func (b *body) Read(p []byte) (int, error) {
	timer := time.AfterFunc(b.limit.limit, func() { b.end(&b.limit) })
	n, err := b.ReadCloser.Read(p)
	timer.Stop()
	if err != nil && err != io.EOF {
		err = b.failed(err)
	}
	return n, err
}

// failed records the error of a request, and returns it or the silence that ended the request. A canceled
// request, as at the end of the process, is no failure of the server. A request that exceeded its deadline
// is one.
func (b *body) failed(err error) error {
	if silent, ok := errors.AsType[*timeoutError](context.Cause(b.ctx)); ok {
		err = silent
	}
	if !b.closed.Load() && b.request.Err() != context.Canceled {
		b.record(err)
	}
	return err
}

func (b *body) Close() error {
	b.closed.Store(true)
	err := b.ReadCloser.Close()
	b.end(nil)
	return err
}
