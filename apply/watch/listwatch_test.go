package watch

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// page sends the same response to every request.
func page(contentType, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		io.WriteString(w, body)
	}
}

// half responds with a truncated list or watch.
func half(w http.ResponseWriter, _ *http.Request) {
	const body = `{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": []}`
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "100000")
	io.WriteString(w, body[:len(body)/2])
}

// A response with code 200 that does not come from an API server is no contact, at the start or
// later.
func TestContactForeign(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request)
		cause  string
	}{
		{"HTML", page("text/html; charset=utf-8", "<html>maintenance</html>"), "200 OK with text/html; charset=utf-8, is not from an API server"},
		{"garbage", page("application/json", "\x00\xffgarbage"), "invalid character"},
		{"other JSON", page("application/json", `{"status":"maintenance"}`), ""},
		{"half a body", half, "unexpected EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			said := &lockedBuffer{}
			f := newFakeAPI(t)
			f.objects["services"] = []any{service("a", "10.0.0.1")}
			f.Instead(tc.answer)
			g := followUnstarted(t, f.config(), io.MultiWriter(said, t.Output()))
			g.after = func(time.Duration) <-chan time.Time { return time.After(10 * time.Millisecond) }
			g.start()
			if s := g.outage(true); !strings.Contains(s.Cause, tc.cause) || s.Cause == "" {
				t.Errorf("cause %q, want %q in it", s.Cause, tc.cause)
			}
			timesSaid(t, said, neverSaid)
			allLost := func() bool {
				return !slices.ContainsFunc(g.Contact.Resources(), func(h ResourceState) bool { return h.Lost.IsZero() })
			}
			g.eventually("all resources are lost", allLost) // a pending response would be logged as a separate loss
			select {
			case <-g.synced:
				t.Error("synced by what no server says")
			default:
			}
			f.Instead(nil)
			g.waitSynced()
			g.until(has("a"))
			g.outage(false)

			f.Instead(tc.answer)
			g.eventually("all resources are lost", allLost)
			before, asked := g.Contact.Resources(), f.asked()
			g.eventually("the server is asked again", func() bool { return f.asked() >= asked+4 })
			for i, h := range g.Contact.Resources() {
				if h.Last.After(before[i].Last) {
					t.Errorf("%s: heard by what no server says", h.Resource)
				}
			}
			g.Store.View(func(s *snapshot.Snapshot) {
				if !has("a")(s) {
					t.Error("the Service is gone")
				}
			})
			f.Instead(nil)
			g.outage(false)
			g.eventually("its return is reported, too", func() bool { return strings.Contains(said.String(), backSaid) })
			var times []int
			for _, what := range []string{neverSaid, `msg="contact with the API server is established`, lostSaid, backSaid} {
				times = append(times, strings.Count(said.String(), what))
			}
			if !slices.Equal(times, []int{1, 1, 1, 1}) {
				t.Errorf("%d times there was no contact, it was established, lost, and restored, want 1 each", times)
			}
		})
	}
}

// A list or event of another kind is rejected, in JSON and protobuf. It is not an empty list.
func TestAnotherKind(t *testing.T) {
	pods := metav1.ListMeta{ResourceVersion: "7"}
	initial := func(obj runtime.Object) func(f *fakeAPI, w http.ResponseWriter, r *http.Request) {
		return func(f *fakeAPI, w http.ResponseWriter, r *http.Request) {
			if f.protobuf {
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
			}
			f.writeEvent(w, event{"BOOKMARK", obj})
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}
	list := func(kind schema.GroupVersionKind, obj any) func(f *fakeAPI, w http.ResponseWriter, r *http.Request) {
		return func(f *fakeAPI, w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Query().Has("watch"):
				refuse(w, metav1.StatusReasonInvalid, http.StatusUnprocessableEntity)
			case f.protobuf:
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
				w.Write(envelope(kind, message(obj)))
			default:
				json.NewEncoder(w).Encode(obj)
			}
		}
	}
	podMark := &corev1.Pod{TypeMeta: typeMeta("v1", "Pod"), ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	v1 := corev1.SchemeGroupVersion
	for _, tc := range []struct {
		name   string
		answer func(*fakeAPI, http.ResponseWriter, *http.Request)
		cause  string
	}{
		{"pods", list(v1.WithKind("PodList"), &corev1.PodList{TypeMeta: typeMeta("v1", "PodList"), ListMeta: pods}), "got a PodList"},
		{"a Status", list(v1.WithKind("Status"), &metav1.Status{TypeMeta: typeMeta("v1", "Status"), ListMeta: pods, Status: metav1.StatusSuccess}), "got a Status"},
		{"a Service", list(v1.WithKind("Service"), service("b", "10.0.0.2")), "got a Service"},
		{"a mark of pods", initial(podMark), "got a Pod"},
	} {
		for _, protobuf := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, protobuf %t", tc.name, protobuf), func(t *testing.T) {
				t.Parallel()
				f := newFakeAPI(t)
				f.protobuf = protobuf
				f.objects["services"] = []any{service("a", "10.0.0.1")}
				f.objects["endpointslices"] = []any{slice("a-1", "a", "10.1.0.1")}
				f.objects["servicecidrs"] = []any{cidr("kubernetes", "10.96.0.0/16")}
				g := follow(t, f)
				g.waitSynced()
				whole := func(s *snapshot.Snapshot) bool {
					return has("a")(s) && s.Slice(name("a-1")) != nil && s.ServiceCIDR("kubernetes") != nil
				}
				g.until(whole)
				f.Instead(func(w http.ResponseWriter, r *http.Request) {
					if !r.URL.Query().Has("watch") || r.URL.Query().Has("sendInitialEvents") {
						w.Header().Set("Content-Type", "application/json")
						tc.answer(f, w, r)
						return
					}
					refuse(w, metav1.StatusReasonExpired, http.StatusGone)
				})
				var cause string
				g.eventually("the answer is refused", func() bool {
					cause = g.heard("endpointslices").Cause
					return strings.Contains(cause, tc.cause)
				})
				if !strings.Contains(cause, "must be a EndpointSlice") {
					t.Errorf("cause %q", cause)
				}
				g.Store.View(func(s *snapshot.Snapshot) {
					if !whole(s) {
						t.Error("objects are gone")
					}
				})
			})
		}
	}
}

// Events of another Node are ignored, if a server ignores the selector.
func TestAnotherNode(t *testing.T) {
	other := func(taint string) *corev1.Node {
		n := nodeObject(taint)
		n.Name = "node2"
		return n
	}
	f := newFakeAPI(t)
	f.objects["nodes"] = []any{other("other"), nodeObject("mine")}
	g := follow(t, f)
	g.waitSynced()
	g.eventually("the node is watched", func() bool { return f.Watches("nodes") > 0 })
	f.Send("nodes", "MODIFIED", other("changed"))
	f.Send("nodes", "DELETED", other(""))
	f.Send("nodes", "MODIFIED", nodeObject("changed"))
	f.Send("nodes", "DELETED", nodeObject())
	g.waitStates(&NodeState{Taints: []string{"mine"}}, &NodeState{Taints: []string{"changed"}}, nil)
	g.Store.View(func(s *snapshot.Snapshot) {
		if s.Node("node2") != nil {
			t.Error("another node is kept")
		}
	})
}

// A resource that the server forbids reading at the start is requested again.
func TestUnavailable(t *testing.T) {
	said := &lockedBuffer{}
	f := newFakeAPI(t)
	f.Refuse("servicecidrs", metav1.StatusReasonForbidden)
	waits := make(chan time.Duration, 100)
	again := make(chan time.Time)
	g := followUnstarted(t, f.config(), io.MultiWriter(said, t.Output()))
	g.after = func(d time.Duration) <-chan time.Time { waits <- d; return again }
	g.start()
	g.waitSynced()
	for _, want := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second} {
		if got := <-waits; got != want {
			t.Errorf("waits %s, want %s", got, want)
		}
		if is := g.heard("servicecidrs"); is.Unavailable == "" || !is.Lost.IsZero() {
			t.Errorf("what is known of ServiceCIDRs: %+v, want why they are not given", is)
		}
		if want == 20*time.Second {
			f.Refuse("", "")
		}
		again <- time.Time{}
	}
	timesSaid(t, said, "the API server serves servicecidrs now")
	if n := strings.Count(said.String(), "continuing without them"); n != 1 {
		t.Errorf("reported %d times that there are none", n)
	}
	g.eventually("ServiceCIDRs are followed", func() bool { return f.Watches("servicecidrs") > 0 })
}
