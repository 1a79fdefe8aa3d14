package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

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

// resource is a kind of objects of the API server.
type resource struct {
	name   string // as in the path
	group  string // "" for the core group
	client rest.Interface
	types  objectTypes // types that a server sends for the kind
	// optional reports whether the rules can be compiled without the kind. If the server does not
	// serve the kind, or forbids reading it, the kind counts as empty.
	optional bool
}

func (c *clients) services() resource {
	return resource{"services", "", c.core, typesOf[corev1.ServiceList, corev1.Service, snapshot.Service](), false}
}

func (c *clients) slices() resource {
	return resource{"endpointslices", "discovery.k8s.io", c.discovery,
		typesOf[discoveryv1.EndpointSliceList, discoveryv1.EndpointSlice, snapshot.EndpointSlice](), false}
}

func (c *clients) nodes() resource {
	return resource{"nodes", "", c.core, typesOf[corev1.NodeList, corev1.Node, ownNode](), false}
}

func (c *clients) serviceCIDRs() resource {
	return resource{"servicecidrs", "networking.k8s.io", c.networking,
		typesOf[networkingv1.ServiceCIDRList, networkingv1.ServiceCIDR, snapshot.ServiceCIDR](), true}
}

// resources returns all kinds of objects.
func (c *clients) resources() []resource {
	return []resource{c.services(), c.slices(), c.nodes(), c.serviceCIDRs()}
}

// noSelector requests all objects.
func noSelector(*metav1.ListOptions) {}

// pageSize is the number of objects per request.
const pageSize = 500

// List returns all objects, those of each kind at one resourceVersion. err joins the errors of all
// kinds. A server without ServiceCIDRs is accepted.
func (c *Cluster) List(ctx context.Context) (all *snapshot.Objects, err error) {
	all = &snapshot.Objects{Versions: map[string]string{}}
	var errs []error
	for _, k := range c.api.clients.resources() {
		objects, version, err := k.all(ctx)
		switch {
		case err == nil:
			all.Versions[k.types.kind] = version
			for _, o := range objects {
				all.Add(o)
			}
		case k.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		default:
			errs = append(errs, k.explain(err))
		}
	}
	return all, errors.Join(errs...)
}

// Daemons returns all Nodes, and the Pods of all namespaces that a label selector matches.
func (c *Cluster) Daemons(ctx context.Context, selector string) ([]corev1.Node, []corev1.Pod, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	list := func(k resource, options metav1.ListOptions, to runtime.Object) error {
		err := k.client.Get().Resource(k.name).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(to)
		if err != nil {
			return k.explain(err)
		}
		return nil
	}
	err := errors.Join(list(c.api.clients.nodes(), metav1.ListOptions{}, &nodes),
		list(resource{name: "pods", client: c.api.clients.core}, metav1.ListOptions{LabelSelector: selector}, &pods))
	return nodes.Items, pods.Items, err
}

// explain adds the missing permission to an authorization error.
func (k *resource) explain(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return fmt.Errorf("%s: the account needs the right to list %s (API group %q) in all namespaces: %w", k.name, k.name, k.group, err)
	}
	return fmt.Errorf("%s: %w", k.name, err)
}

// all returns the objects of a kind, trimmed by snapshot.Trim.
func (k *resource) all(ctx context.Context) (objects []any, version string, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := k.client.Get().Resource(k.name).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Get()
		if options.Continue != "" && apierrors.IsResourceExpired(err) { // the remaining pages would be of another version
			objects, options = nil, metav1.ListOptions{}
			continue
		}
		if err != nil {
			return nil, "", err
		}
		meta, err := k.types.checkList(page)
		if err != nil {
			return nil, "", err
		}
		version = meta.GetResourceVersion()
		err = apimeta.EachListItem(page, func(item runtime.Object) error {
			objects = append(objects, snapshot.Trim(item))
			return nil
		})
		if options.Continue = meta.GetContinue(); err != nil || options.Continue == "" {
			return objects, version, err
		}
	}
}
