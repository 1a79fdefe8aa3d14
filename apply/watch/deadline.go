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

// answerWithin is how long a server may leave a request without an answer, or a list without its
// next bytes. kube-apiserver itself ends a request after a minute (--request-timeout).
const answerWithin = 70 * time.Second

// mostRetryAfter is the longest wait that a server may ask for. client-go would wait for days.
const mostRetryAfter = 30 * time.Second

// noEvent is how a watch is silent.
const noEvent = "no event and no bookmark"

// silence is the error of a request that a server left without an answer.
type silence struct {
	what string
	long time.Duration
}

func (s *silence) Error() string { return fmt.Sprintf("%s for %s", s.what, s.long) }

// Timeout and Temporary make it a net.Error. client-go ends a watch by one without an error event,
// which would replace the cause.
func (*silence) Timeout() bool   { return true }
func (*silence) Temporary() bool { return true }

// deadlines is a transport that ends requests to a silent server. client-go waits for headers and
// for events without an end, as long as the connection answers pings.
type deadlines struct {
	next http.RoundTripper
	// events returns how long a watch may be without an event.
	events func(*http.Request) time.Duration
}

// WrappedRoundTripper lets client-go find the transport itself.
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

// orSilence returns the silence that ended a request, or else the error that it ended with.
func orSilence(ctx context.Context, err error) error {
	if silent, ok := errors.AsType[*silence](context.Cause(ctx)); ok {
		return silent
	}
	return err
}

// timedBody ends a request whose body is silent. The time between two reads does not count: the
// reader may be busy.
type timedBody struct {
	io.ReadCloser
	ctx     context.Context // of the request
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
