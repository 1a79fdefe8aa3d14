package watch

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// pages is an API server that returns Services, two per page. It adds one Service between two
// requests, so that a new list is of a newer version.
type pages struct {
	t       *testing.T
	refused map[string]int // status code by resource
	expired int            // number of continue tokens that are expired
	now     int            // resourceVersion, and number of Services
	asked   []string
}

func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	q := r.URL.Query()
	p.asked = append(p.asked, resource+" "+q.Get("limit")+" "+q.Get("continue"))
	w.Header().Set("Content-Type", "application/json")
	fail := func(code int, reason metav1.StatusReason) {
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(metav1.Status{TypeMeta: typeMeta("v1", "Status"), Status: "Failure", Reason: reason, Message: resource + " is refused", Code: int32(code)})
	}
	if code := p.refused[resource]; code != 0 {
		fail(code, map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 401: metav1.StatusReasonUnauthorized, 500: metav1.StatusReasonInternalError}[code])
		return
	}
	kinds := map[string][2]string{"services": {"v1", "ServiceList"}, "endpointslices": {"discovery.k8s.io/v1", "EndpointSliceList"},
		"nodes": {"v1", "NodeList"}, "servicecidrs": {"networking.k8s.io/v1", "ServiceCIDRList"}}
	list := map[string]any{"apiVersion": kinds[resource][0], "kind": kinds[resource][1]}
	if resource != "services" {
		list["metadata"], list["items"] = metav1.ListMeta{ResourceVersion: "9"}, []any{}
		json.NewEncoder(w).Encode(list)
		return
	}
	version, from := p.now, 0
	p.now++
	if token := q.Get("continue"); token != "" {
		if p.expired > 0 {
			p.expired--
			fail(http.StatusGone, metav1.StatusReasonExpired)
			return
		}
		if _, err := fmt.Sscanf(token, "%d-%d", &version, &from); err != nil {
			p.t.Error(err)
		}
	}
	to, meta := version, metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}
	if q.Get("limit") != "" && from+2 < version {
		to = from + 2
		meta.Continue = fmt.Sprintf("%d-%d", version, to)
	}
	var items []any
	for i := from; i < to; i++ {
		svc := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("s%d", i), UID: "uid",
			Annotations:   map[string]string{corev1.LastAppliedConfigAnnotation: "secret", "winProxyOptimization": "disabled"},
			Labels:        map[string]string{"team": "a"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "secret"}}},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}
		items = append(items, svc)
	}
	list["metadata"], list["items"] = meta, items
	json.NewEncoder(w).Encode(list)
}

func (p *pages) list(t *testing.T) (*snapshot.Objects, error) {
	t.Helper()
	p.t = t
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	c, err := newCluster(&rest.Config{Host: server.URL}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c.List(t.Context())
}

func textOf(t *testing.T, all *snapshot.Objects) string {
	t.Helper()
	var out strings.Builder
	if err := all.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A list is of one resourceVersion. It is paged, or, if that version expires between two pages, a
// complete list of a later one.
func TestListIsOfOneVersion(t *testing.T) {
	for _, c := range []struct {
		expired, version int
		asked            []string
	}{
		{0, 5, []string{"services 500 ", "services 500 5-2", "services 500 5-4"}},
		{1, 7, []string{"services 500 ", "services 500 5-2", "services  "}},
	} {
		p := &pages{now: 5, expired: c.expired}
		all, err := p.list(t)
		if err != nil {
			t.Fatal(err)
		}
		if got := all.Versions["Service"]; got != strconv.Itoa(c.version) || len(all.Services) != c.version {
			t.Errorf("%d Services at resourceVersion %s, want %d of each", len(all.Services), got, c.version)
		}
		if asked := p.asked[:len(p.asked)-3]; !slices.Equal(asked, c.asked) {
			t.Errorf("asked for %q, want %q", asked, c.asked)
		}
	}
}

// List keeps the fields that the compiler, lint, assert and diff read, one object per line.
func TestListIsTrimmed(t *testing.T) {
	all, err := (&pages{now: 1}).list(t)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"v1","kind":"ServiceList","metadata":{"resourceVersion":"1"},"items":[
{"apiVersion":"v1","kind":"Service","metadata":{"annotations":{"winProxyOptimization":"disabled"},"labels":{"team":"a"},"name":"s0","namespace":"ns","uid":"uid"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}],"selector":{"app":"web"}}}]},
{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSliceList","metadata":{"resourceVersion":"9"},"items":[]},
{"apiVersion":"v1","kind":"NodeList","metadata":{"resourceVersion":"9"},"items":[]},
{"apiVersion":"networking.k8s.io/v1","kind":"ServiceCIDRList","metadata":{"resourceVersion":"9"},"items":[]}
]}
`
	if got := textOf(t, all); got != want {
		t.Errorf("got %s", got)
	}
}

// All refused kinds are reported together, with the missing permission. ServiceCIDRs may be
// refused.
func TestListTellsWhatIsRefused(t *testing.T) {
	_, err := (&pages{refused: map[string]int{"services": 403, "endpointslices": 401, "nodes": 500, "servicecidrs": 403}}).list(t)
	for _, want := range []string{
		`services: the account needs the right to list services (API group "") in all namespaces: services is refused`,
		`endpointslices: the account needs the right to list endpointslices (API group "discovery.k8s.io") in all namespaces`,
		"nodes: ",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("does not say %q: %v", want, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), "servicecidrs") {
		t.Error(err)
	}
	all, err := (&pages{now: 1, refused: map[string]int{"servicecidrs": 404}}).list(t)
	if err != nil || strings.Contains(textOf(t, all), "ServiceCIDR") {
		t.Error(err, "a server without ServiceCIDRs has none")
	}
}
