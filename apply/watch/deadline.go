package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// responseTimeout is how long a server may take to answer a request, or to send the next bytes of a
// list. kube-apiserver itself ends requests after a minute (--request-timeout).
const responseTimeout = 70 * time.Second

// maxRetryAfter bounds the Retry-After header. client-go would wait for days.
const maxRetryAfter = 30 * time.Second

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

// deadlines is a transport that ends requests to a silent server. client-go waits forever for
// headers and events while the connection answers pings.
type deadlines struct {
	next http.RoundTripper
	// events returns how long the watch of a request may be without an event.
	events func(*http.Request) time.Duration
}

// WrappedRoundTripper lets client-go find the underlying transport.
func (d *deadlines) WrappedRoundTripper() http.RoundTripper { return d.next }

func (d *deadlines) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(responseTimeout, func() { cancel(&timeoutError{"no answer", responseTimeout}) })
	resp, err := d.next.RoundTrip(r.WithContext(ctx))
	timer.Stop()
	if err != nil {
		cancel(nil)
		return nil, timeoutOr(ctx, err)
	}
	if after, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && after > int(maxRetryAfter.Seconds()) {
		resp.Header.Set("Retry-After", strconv.Itoa(int(maxRetryAfter.Seconds())))
	}
	body := &timedBody{ReadCloser: resp.Body, ctx: ctx, end: cancel, timeout: timeoutError{"the answer stopped", responseTimeout}}
	if r.URL.Query().Has("watch") {
		body.timeout = timeoutError{noEvent, d.events(r)}
	}
	resp.Body = body
	return resp, nil
}

// timeoutOr returns the silence that ended a request, or else err.
func timeoutOr(ctx context.Context, err error) error {
	if silent, ok := errors.AsType[*timeoutError](context.Cause(ctx)); ok {
		return silent
	}
	return err
}

// timedBody ends a request if a read of its body takes too long. The time between two reads does
// not count, since the reader may be busy.
type timedBody struct {
	io.ReadCloser
	ctx     context.Context // context of the request
	end     context.CancelCauseFunc
	timeout timeoutError
}

func (b *timedBody) Read(p []byte) (int, error) {
	timer := time.AfterFunc(b.timeout.limit, func() { b.end(&b.timeout) })
	n, err := b.ReadCloser.Read(p)
	timer.Stop()
	if err != nil && err != io.EOF {
		err = timeoutOr(b.ctx, err)
	}
	return n, err
}

func (b *timedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(nil)
	return err
}
