package watch

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"reflect"
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

// listening returns a ListWatch of a resource all of whose answers are noted. An answer with
// objects of another type is refused: it would count as a list of nothing.
func (c *Contact) listening(resource string, of typed, lw *cache.ListWatch) *cache.ListWatch {
	var pages paging
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			began := c.now()
			list, err := lw.ListWithContext(ctx, o)
			if err == nil {
				err = pages.check(o.Continue, list, of)
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
			return c.attend(ctx, resource, of, w), nil
		},
	}
}

// typed reports whether objects are of a kind.
type typed struct {
	kind   string // "Service"
	list   func(runtime.Object) bool
	object func(runtime.Object) bool
}

// typesOf returns what a server sends of a kind: lists, and objects one by one, whole or reduced.
func typesOf[List, Object, Reduced any]() typed {
	return typed{
		kind: reflect.TypeFor[Object]().Name(),
		list: func(list runtime.Object) bool { _, ok := any(list).(*List); return ok },
		object: func(obj runtime.Object) bool {
			if small, ok := obj.(*reduced); ok {
				_, ok := small.object.(*Reduced)
				return ok
			}
			_, ok := any(obj).(*Object)
			return ok
		},
	}
}

// checkList distinguishes a list from other answers that decode as a list of nothing: one of
// another kind, a Status, or `{"status":"maintenance"}`. All Services would go.
func (t *typed) checkList(list runtime.Object) (metav1.ListInterface, error) {
	if !t.list(list) {
		return nil, fmt.Errorf("must be a %sList, got a %s", t.kind, typeName(list))
	}
	meta, err := apimeta.ListAccessor(list)
	if err == nil && meta.GetResourceVersion() == "" {
		err = errors.New("is no list of an API server: metadata.resourceVersion is missing")
	}
	return meta, err
}

// checkObject is checkList for an object of a watch, bookmarks included.
func (t *typed) checkObject(obj runtime.Object) error {
	if !t.object(obj) {
		return fmt.Errorf("must be a %s, got a %s", t.kind, typeName(obj))
	}
	return nil
}

// typeName returns the kind of an object that was decoded.
func typeName(obj runtime.Object) string {
	if small, ok := obj.(*reduced); ok {
		return reflect.TypeOf(small.object).Elem().Name()
	}
	return reflect.TypeOf(obj).Elem().Name()
}

// mostPages bounds a list, of some 500 objects a page. A server whose continue tokens do not end
// would otherwise fill the memory.
const mostPages = 1000

// paging checks the pages of lists, one after another.
type paging struct{ pages int }

// check checks the page that a continue token led to; "" begins a list.
func (p *paging) check(token string, page runtime.Object, of typed) error {
	meta, err := of.checkList(page)
	if err != nil {
		return err
	}
	if token == "" {
		p.pages = 0
	}
	p.pages++
	switch next := meta.GetContinue(); {
	case next == "":
	case next == token:
		return fmt.Errorf("the list does not end: page %d has the continue token of the page before", p.pages)
	case p.pages >= mostPages:
		return fmt.Errorf("the list does not end: page %d has a continue token, and a list may have %d pages", p.pages, mostPages)
	}
	return nil
}

// unreadable notes why an answer to a request that began then was no use, unless the transport noted
// a better reason: a refusal has a code. A Status with code 200 is one that no server sends.
func (c *Contact) unreadable(ctx context.Context, resource string, began time.Time, err error) {
	refusal := apierrors.APIStatus(nil)
	if errors.As(err, &refusal) && refusal.Status().Code >= http.StatusBadRequest || ctx.Err() != nil {
		return
	}
	if err.Error() == "" {
		err = errors.New("it is a Status without a message")
	}
	c.loseUnlessSince(resource, began, fmt.Errorf("the answer cannot be read: %w", err))
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
func (c *Contact) attend(ctx context.Context, resource string, of typed, w watch.Interface) watch.Interface {
	a := &attended{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	began := c.now()
	holds := time.AfterFunc(watchHolds, func() { c.answer(resource) })
	go func() {
		defer close(a.events)
		told := false
		for e := range w.ResultChan() {
			told = true
			holds.Stop()
			var refused error
			if e.Type != watch.Error {
				refused = of.checkObject(e.Object)
			}
			if refused != nil {
				status := apierrors.NewInternalError(refused).Status()
				e = watch.Event{Type: watch.Error, Object: &status}
			}
			select {
			case <-a.stopped: // what comes now tells of the stop
				return
			default:
			}
			if ctx.Err() == nil {
				c.event(resource, e)
			}
			select {
			case a.events <- e:
			case <-a.stopped:
			}
			if refused != nil {
				w.Stop()
				return
			}
		}
		select {
		case <-a.stopped: // by who reads it
			holds.Stop()
			return
		default:
		}
		if holds.Stop() && !told && ctx.Err() == nil {
			c.loseUnlessSince(resource, began, errors.New("a watch ended at once, without an event"))
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
		c.lose(resource, err)
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
