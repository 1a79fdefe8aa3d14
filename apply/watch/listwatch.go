package watch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Only objects, lists, events and bookmarks that can be decoded count as contact. A response alone
// does not: a load balancer in front of the server may answer with a page of its own and code 200.
// Lost contact is restored when the sink has stored them.

// watchOpenAfter is how long a watch must stay open without an event to count as a watch. It may
// have nothing to send, and the first bookmark arrives after a minute. A response that is no watch
// ends immediately.
const watchOpenAfter = 2 * time.Second

// listWatch returns a ListWatch that records all results of lw. It rejects responses with
// objects of another type, which would count as an empty list.
func (r resourceContact) listWatch(of objectTypes, lw *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			began := r.now()
			list, err := lw.ListWithContext(ctx, o)
			if err == nil {
				_, err = of.checkList(list)
			}
			if err != nil {
				r.recordUndecodable(ctx, began, err)
				return nil, err
			}
			r.recordEvent()
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			began := r.now()
			w, err := lw.WatchWithContext(ctx, o)
			if err != nil {
				r.recordUndecodable(ctx, began, err)
				return nil, err
			}
			return r.recordWatch(ctx, of, w, o.SendInitialEvents != nil && *o.SendInitialEvents), nil
		},
	}
}

// objectTypes are the types of decoded objects of a kind, complete or reduced.
type objectTypes struct {
	kind                  string // "Service"
	list, object, reduced reflect.Type
}

func typesOf[List, Object, Reduced any]() objectTypes {
	return objectTypes{reflect.TypeFor[Object]().Name(), reflect.TypeFor[*List](), reflect.TypeFor[*Object](), reflect.TypeFor[*Reduced]()}
}

// checkList rejects responses that decode as an empty list: lists of another kind, a Status, or
// `{"status":"maintenance"}`. Accepting one would remove all Services.
func (t *objectTypes) checkList(list runtime.Object) (metav1.ListInterface, error) {
	if is := typeOf(list); is != t.list {
		return nil, fmt.Errorf("must be a %sList, got a %s", t.kind, is.Elem().Name())
	}
	meta, err := apimeta.ListAccessor(list)
	if err == nil && meta.GetResourceVersion() == "" {
		err = errors.New("must be a list from an API server: metadata.resourceVersion is missing")
	}
	return meta, err
}

// checkObject is checkList for an object of a watch, including bookmarks.
func (t *objectTypes) checkObject(obj runtime.Object) error {
	if is := typeOf(obj); is != t.object && is != t.reduced {
		return fmt.Errorf("must be a %s, got a %s", t.kind, is.Elem().Name())
	}
	return nil
}

// typeOf returns the type of a decoded object, or of what it was reduced to.
func typeOf(obj any) reflect.Type {
	if small, ok := obj.(*reduced); ok {
		obj = small.object
	}
	return reflect.TypeOf(obj)
}

// recordUndecodable records an undecodable response to a request that began at began, unless the
// transport recorded a better cause: a refusal has a status code. A Status with code 200 never
// comes from an API server.
func (r resourceContact) recordUndecodable(ctx context.Context, began time.Time, err error) {
	refusal := apierrors.APIStatus(nil)
	if errors.As(err, &refusal) && refusal.Status().Code >= http.StatusBadRequest || ctx.Err() != nil {
		return
	}
	if err.Error() == "" {
		err = errors.New("a Status without a message")
	}
	r.recordLossUnlessNewer(began, fmt.Errorf("the response cannot be decoded: %w", err))
}

// recordWatch returns a watch with the events of w. It records them, and whether the watch stays open. It
// ends with an error after an object of another type. all reports whether the watch begins with all objects.
func (r resourceContact) recordWatch(ctx context.Context, of objectTypes, w watch.Interface, all bool) watch.Interface {
	events := make(chan watch.Event)
	out := watch.NewProxyWatcher(events)
	began := r.now()
	open := time.NewTimer(watchOpenAfter)
	go func() {
		defer close(events)
		defer w.Stop()
		defer open.Stop()
		for silent := true; ; {
			var e watch.Event
			ok := true
			select {
			case <-out.StopChan(): // by the reader
				return
			case <-open.C:
				silent = false
				r.recordOpenWatch(all)
				continue
			case e, ok = <-w.ResultChan():
			}
			switch {
			case out.Stopping() || ctx.Err() != nil: // the event is caused by the stop
				return
			case ok:
			case silent:
				r.recordLossUnlessNewer(began, errors.New("the watch ended immediately, without an event"))
				return
			default:
				return
			}
			silent = false
			open.Stop()
			if e.Type != watch.Error {
				if err := of.checkObject(e.Object); err != nil {
					status := apierrors.NewInternalError(err).Status()
					e = watch.Event{Type: watch.Error, Object: &status}
				}
			}
			r.recordWatchEvent(e)
			select {
			case events <- e:
			case <-out.StopChan():
			}
		}
	}()
	return out
}

// recordWatchEvent records an event of a watch. Errors after which the watch only has to restart
// are no loss of contact.
func (r resourceContact) recordWatchEvent(e watch.Event) {
	if e.Type != watch.Error {
		r.recordEvent()
		return
	}
	switch err := apierrors.FromObject(e.Object); {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsTooManyRequests(err):
	default:
		r.recordLoss(err)
	}
}
