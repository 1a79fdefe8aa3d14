package watch

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// What a server is heard by are objects, lists, events and bookmarks that could be
// decoded. That a request was answered says nothing: a load balancer before
// the server may answer with a page of its own, and code 200.

// watchHolds is how long a watch has to stay open without an event to be taken for
// one: it may have nothing to tell, and the first bookmark comes after a minute.
// What is no watch ends at once.
const watchHolds = 2 * time.Second

// listening returns a ListWatch of a resource all of whose answers are noted.
func (c *Contact) listening(resource string, lw *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			began := c.now()
			list, err := lw.ListWithContext(ctx, o)
			if err == nil {
				err = checkList(list)
			}
			if err != nil {
				c.unreadable(ctx, resource, began, err)
				return nil, err
			}
			c.hear(resource)
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			began := c.now()
			w, err := lw.WatchWithContext(ctx, o)
			if err != nil {
				c.unreadable(ctx, resource, began, err)
				return nil, err
			}
			return c.attend(ctx, resource, w), nil
		},
	}
}

// checkList tells a list from other JSON: `{"status":"maintenance"}` can be decoded as a
// list of nothing, and all Services would go.
func checkList(list runtime.Object) error {
	if meta, err := apimeta.ListAccessor(list); err != nil {
		return err
	} else if meta.GetResourceVersion() == "" {
		return errors.New("is no list of an API server: metadata.resourceVersion is missing")
	}
	return nil
}

// unreadable notes why an answer to a request that began then was no use, unless that is
// known better: of what the transport saw, or the server said.
func (c *Contact) unreadable(ctx context.Context, resource string, began time.Time, err error) {
	if said := apierrors.APIStatus(nil); errors.As(err, &said) || ctx.Err() != nil {
		return
	}
	c.loseUnlessSince(resource, began, "the answer cannot be read: "+err.Error())
}

// attended is a watch whose events are noted.
type attended struct {
	watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	stop    sync.Once
}

func (a *attended) ResultChan() <-chan watch.Event { return a.events }

func (a *attended) Stop() {
	a.stop.Do(func() { close(a.stopped) })
	a.Interface.Stop()
}

// attend notes what a watch tells, and whether it is one.
func (c *Contact) attend(ctx context.Context, resource string, w watch.Interface) watch.Interface {
	a := &attended{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	began := c.now()
	holds := time.AfterFunc(watchHolds, func() { c.answer(resource) })
	go func() {
		defer close(a.events)
		told := false
		for e := range w.ResultChan() {
			told = true
			holds.Stop()
			if ctx.Err() == nil {
				c.event(resource, e)
			}
			select {
			case a.events <- e:
			case <-a.stopped:
			}
		}
		select {
		case <-a.stopped: // by who reads it
			holds.Stop()
			return
		default:
		}
		if holds.Stop() && !told && ctx.Err() == nil {
			c.loseUnlessSince(resource, began, "a watch ended at once, without an event")
		}
	}()
	return a
}

// event notes an event of a watch. One that tells of an error says nothing of the
// server where the watch only has to begin anew.
func (c *Contact) event(resource string, e watch.Event) {
	if e.Type != watch.Error {
		c.hear(resource)
		return
	}
	switch err := apierrors.FromObject(e.Object); {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsTooManyRequests(err):
	default:
		c.lose(resource, err.Error())
	}
}

// foreign says what an answer is that no API server gives; "": nothing speaks against one.
func foreign(resp *http.Response) string {
	is := resp.Header.Get("Content-Type")
	if is == "" {
		return ""
	}
	kind, _, err := mime.ParseMediaType(is)
	known := func(info runtime.SerializerInfo) bool { return info.MediaType == kind }
	if err == nil && slices.ContainsFunc(newCodecs().SupportedMediaTypes(), known) {
		return ""
	}
	return fmt.Sprintf("the answer, %s with %s, is no API server's", resp.Status, is)
}
