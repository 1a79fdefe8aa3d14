package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

// API is an API server with a client.
type API struct {
	Server   string // https://host:6443
	Client   *http.Client
	Err      error // why Client is nil
	NodeName string
	Now      func() time.Time
}

// apiCheck checks the API server.
type apiCheck struct {
	*examination
	*API
}

// Clock differences that are reported. Certificates and tokens of a cluster are checked against the
// clocks.
const (
	skewWarning = 30 * time.Second
	skewError   = 5 * time.Minute
)

// rights are the permissions that the daemon uses (docs/deploy/rbac.yaml).
var rights = [...]struct {
	group, resource string
	verbs           []string
	optional        bool
}{
	{"", "services", []string{"list", "watch"}, false},
	{"discovery.k8s.io", "endpointslices", []string{"list", "watch"}, false},
	{"", "nodes", []string{"list", "watch"}, false},
	{"networking.k8s.io", "servicecidrs", []string{"list", "watch"}, true},
	{"events.k8s.io", "events", []string{"create"}, true},
}

// run checks whether the API server is reachable, the permissions of the client, the clock, and the
// Node object.
func (e *apiCheck) run(ctx context.Context) {
	const check = "API server"
	if e.Err != nil {
		e.add(check, Error, "correct clientConnection.kubeconfig", "%s", e.Err)
		return
	}
	var version struct{ GitVersion string }
	date, err := e.request(ctx, http.MethodGet, "/version", nil, &version)
	if err != nil {
		e.add(check, Error, e.fix(err), "%s", err)
		return
	}
	e.add(check, OK, "", "%s is %s", e.Server, version.GitVersion)
	e.clock(date)
	e.rights(ctx)
	e.node(ctx)
}

func (e *apiCheck) clock(theirs time.Time) {
	if theirs.IsZero() {
		return
	}
	const check, do = "clock", "set the clock (chronyc makestep, timedatectl set-ntp true)"
	skew := e.Now().Sub(theirs).Abs().Round(time.Second)
	switch {
	case skew > skewError:
		e.add(check, Error, do, "differs from the API server's by %s: certificates and tokens may not be valid", skew)
	case skew > skewWarning:
		e.add(check, Warning, do, "differs from the API server's by %s", skew)
	default:
		e.add(check, OK, "", "agrees with the API server's")
	}
}

func (e *apiCheck) rights(ctx context.Context) {
	const check = "rights"
	ok := true
	for _, r := range rights {
		var refused []string
		for _, verb := range r.verbs {
			review := authorizationv1.SelfSubjectAccessReview{
				TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: r.group, Resource: r.resource, Verb: verb}},
			}
			if _, err := e.request(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, &review); err != nil {
				e.add(check, Warning, "check with kubectl auth can-i", "unknown: %s", err)
				return
			}
			if !review.Status.Allowed {
				refused = append(refused, verb)
			}
		}
		if len(refused) == 0 {
			continue
		}
		ok = false
		s, without := Error, ""
		if r.optional {
			s, without = Warning, "; proxyc works without"
		}
		e.add(check, s, "grant them by a ClusterRole, as docs/deploy/rbac.yaml does", "may not %s %s%s", strings.Join(refused, ", "), r.resource, without)
	}
	if ok {
		e.add(check, OK, "", "all granted")
	}
}

// node compares the Node object with the machine.
func (e *apiCheck) node(ctx context.Context) {
	const check = "Node"
	var nodes corev1.NodeList
	query := url.Values{"fieldSelector": {"metadata.name=" + e.NodeName}} // like the daemon, which may have no permission to get a Node
	if _, err := e.request(ctx, http.MethodGet, "/api/v1/nodes?"+query.Encode(), nil, &nodes); err != nil {
		e.add(check, Error, e.fix(err), "%s: %s", e.NodeName, err)
		return
	}
	if len(nodes.Items) != 1 {
		e.add(check, Error, "set --hostname-override to the name of the node, as the kubelet does", "the cluster has no Node %s", e.NodeName)
		return
	}
	ok := true
	for _, a := range nodes.Items[0].Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if err == nil && !slices.Contains(e.addrs.Of(ir.FamilyOf(addr)), addr.Unmap().String()) {
			ok = false
			e.add(check, Error, "run it in the node's network namespace, or correct --node-ip of the kubelet", "%s has address %s, which no interface here has", e.NodeName, a.Address)
		}
	}
	if ok {
		e.add(check, OK, "", "%s has addresses of this machine", e.NodeName)
	}
}

// fix returns the fix for a failed request.
func (a *API) fix(err error) string {
	return cmp.Or(watch.Remedy(err), "check that "+a.Server+" is the API server's address, and read its log")
}

// request sends a request, decodes the response into out, and returns the server's time.
func (a *API) request(ctx context.Context, method, path string, in, out any) (date time.Time, err error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return date, err
		}
		body = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.Server, "/")+path, body)
	if err != nil {
		return date, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.Client.Do(req)
	if err != nil {
		return date, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return date, err
	}
	if resp.StatusCode/100 != 2 {
		refused := apierrors.NewGenericServerResponse(resp.StatusCode, method, schema.GroupResource{}, "", "", 0, false)
		var status metav1.Status
		if json.Unmarshal(text, &status) == nil && status.Message != "" {
			refused.ErrStatus.Message = status.Message
		}
		return date, fmt.Errorf("%s: %w", resp.Status, refused)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return date, fmt.Errorf("%s: the answer is not JSON: another server may listen at %s", resp.Status, a.Server)
	}
	date, _ = http.ParseTime(resp.Header.Get("Date")) // zero without the header; it is then not compared
	return date, nil
}
