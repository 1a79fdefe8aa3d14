package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Cluster reads every Service, EndpointSlice, Node and ServiceCIDR of an API server, including
// headless Services and those of other proxies.
type Cluster struct {
	api API
}

// NewCluster returns a Cluster for the API server that kubectl would use with a kubeconfig file and
// a context, both optional. It sends no request. Loss and return of contact are logged to log.
func NewCluster(kubeconfig, context, userAgent string, log *slog.Logger) (*Cluster, error) {
	base, err := asKubectl(kubeconfig, context, userAgent)
	if err != nil {
		return nil, err
	}
	return newCluster(base, log)
}

func newCluster(base *rest.Config, log *slog.Logger) (*Cluster, error) {
	c := &Cluster{API{Log: log, unreduced: true}}
	return c, c.api.connect(base)
}

// unfilteredKind is a kind that is read without selectors.
type unfilteredKind struct {
	resource string
	group    string // "" for the core group
	client   rest.Interface
	typed    objectTypes
	expected any
	optional bool
}

func (c *Cluster) kinds() []unfilteredKind {
	a := &c.api
	return []unfilteredKind{
		{"services", "", a.clients.core, typesOf[corev1.ServiceList, corev1.Service, snapshot.Service](), &corev1.Service{}, false},
		{"endpointslices", "discovery.k8s.io", a.clients.discovery, typesOf[discoveryv1.EndpointSliceList, discoveryv1.EndpointSlice, snapshot.EndpointSlice](), &discoveryv1.EndpointSlice{}, false},
		{"nodes", "", a.clients.core, typesOf[corev1.NodeList, corev1.Node, ownNode](), &corev1.Node{}, false},
		{"servicecidrs", "networking.k8s.io", a.clients.networking, typesOf[networkingv1.ServiceCIDRList, networkingv1.ServiceCIDR, snapshot.ServiceCIDR](), &networkingv1.ServiceCIDR{}, true},
	}
}

// noSelector requests all objects.
func noSelector(*metav1.ListOptions) {}

// pageSize is the number of objects per request.
const pageSize = 500

// List returns all objects, those of each kind at one resourceVersion. err joins the errors of all
// kinds. A server without ServiceCIDRs is accepted. broken names the skipped objects, which cannot
// be decoded.
func (c *Cluster) List(ctx context.Context) (all *snapshot.Objects, broken, err error) {
	all = &snapshot.Objects{Versions: map[string]string{}}
	var errs, left []error
	for _, k := range c.kinds() {
		objects, version, without, err := k.all(ctx)
		switch {
		case err == nil:
			all.Versions[k.typed.kind] = version
			for _, o := range objects {
				all.Add(o)
			}
			left = append(left, without...)
		case k.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		default:
			errs = append(errs, k.explain(err, "list"))
		}
	}
	return all, errors.Join(left...), errors.Join(errs...)
}

// explain adds the missing permission to an authorization error.
func (k *unfilteredKind) explain(err error, verb string) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return fmt.Errorf("%s: the account needs the right to %s %s (API group %q) in all namespaces: %w", k.resource, verb, k.resource, k.group, err)
	}
	return fmt.Errorf("%s: %w", k.resource, err)
}

// all returns the objects of a kind, trimmed by snapshot.Trim, and the errors of the broken ones.
func (k *unfilteredKind) all(ctx context.Context) (objects []any, version string, broken []error, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	var pages paging
	for {
		page, err := k.client.Get().Resource(k.resource).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Get()
		if options.Continue != "" && apierrors.IsResourceExpired(err) { // the remaining pages would be of another version
			objects, broken, options = nil, nil, metav1.ListOptions{}
			continue
		}
		if err == nil {
			err = pages.check(options.Continue, page, k.typed)
		}
		if err != nil {
			return nil, "", nil, err
		}
		meta, err := apimeta.ListAccessor(page)
		if err != nil {
			return nil, "", nil, err
		}
		version = meta.GetResourceVersion()
		err = apimeta.EachListItem(page, func(item runtime.Object) error {
			o, err := apimeta.Accessor(item)
			if err != nil {
				return err
			}
			if why := o.GetAnnotations()[brokenAnnotation]; why != "" {
				name := strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
				broken = append(broken, fmt.Errorf("%s %s: is left out: %s", k.typed.kind, name, why))
				return nil
			}
			objects = append(objects, snapshot.Trim(item))
			return nil
		})
		if options.Continue = meta.GetContinue(); err != nil || options.Continue == "" {
			return objects, version, broken, err
		}
	}
}
