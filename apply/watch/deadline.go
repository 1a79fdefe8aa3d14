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

// answerWithin is how long a server may take to answer a request, or to send the next bytes of a
// list. kube-apiserver itself ends requests after a minute (--request-timeout).
const answerWithin = 70 * time.Second

// mostRetryAfter bounds the Retry-After header. client-go would wait for days.
const mostRetryAfter = 30 * time.Second

// noEvent is the silence of a watch.
const noEvent = "no event and no bookmark"

// silence is the error of a request that the server did not answer in time.
type silence struct {
	what string
	long time.Duration
}

func (s *silence) Error() string { return fmt.Sprintf("%s for %s", s.what, s.long) }

// Timeout and Temporary make silence a net.Error. client-go then ends the watch without an error
// event, which would replace the cause.
func (*silence) Timeout() bool   { return true }
func (*silence) Temporary() bool { return true }

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
	timer := time.AfterFunc(answerWithin, func() { cancel(&silence{"no answer", answerWithin}) })
	resp, err := d.next.RoundTrip(r.WithContext(ctx))
	timer.Stop()
	if err != nil {
		cancel(nil)
		return nil, orSilence(ctx, err)
	}
	if after, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && after > int(mostRetryAfter.Seconds()) {
		resp.Header.Set("Retry-After", strconv.Itoa(int(mostRetryAfter.Seconds())))
	}
	body := &timedBody{ReadCloser: resp.Body, ctx: ctx, end: cancel, silence: silence{"the answer stopped", answerWithin}}
	if r.URL.Query().Has("watch") {
		body.silence = silence{noEvent, d.events(r)}
	}
	resp.Body = body
	return resp, nil
}

// orSilence returns the silence that ended a request, or else err.
func orSilence(ctx context.Context, err error) error {
	if silent, ok := errors.AsType[*silence](context.Cause(ctx)); ok {
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
	silence silence
}

func (b *timedBody) Read(p []byte) (int, error) {
	timer := time.AfterFunc(b.silence.long, func() { b.end(&b.silence) })
	n, err := b.ReadCloser.Read(p)
	timer.Stop()
	if err != nil && err != io.EOF {
		err = orSilence(b.ctx, err)
	}
	return n, err
}

func (b *timedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(nil)
	return err
}
