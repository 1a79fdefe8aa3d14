package watch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/compiler/config"
)

// clients contains one REST client per API group in use. They share a connection and a rate limit.
// The typed clientset would link all API groups, which costs memory.
type clients struct {
	core, discovery, networking, events rest.Interface
}

// restConfig returns the connection settings from the kubeconfig file and master, or the in-cluster
// settings if both are empty. userAgent is the program's name and version.
func restConfig(c config.ClientConnection, master, userAgent string) (*rest.Config, error) {
	var out *rest.Config
	var err error
	if c.Kubeconfig == "" && master == "" {
		out, err = rest.InClusterConfig()
		if err != nil {
			err = fmt.Errorf("clientConnection.kubeconfig: must be set, as neither --master nor a pod's ServiceAccount is available: %w", err)
		}
	} else {
		out, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: master}}).ClientConfig()
		if err != nil {
			err = fmt.Errorf("clientConnection.kubeconfig: %w", apply.RedactError(err))
		}
	}
	if err != nil {
		return nil, err
	}
	if err := hidePassword(out); err != nil {
		return nil, fmt.Errorf("clientConnection.kubeconfig: %w", err)
	}
	out.AcceptContentTypes = c.AcceptContentTypes
	out.ContentType = cmp.Or(c.ContentType, runtime.ContentTypeProtobuf)
	out.QPS, out.Burst = c.QPS, int(c.Burst)
	out.UserAgent = userAgent
	return out, nil
}

// hidePassword moves the user and password of the server's URL to the fields for them, since errors, the
// log and metrics contain the URL. They replace a token, as in net/http. It removes the query, which
// client-go ignores.
func hidePassword(c *rest.Config) error {
	u, _, err := rest.DefaultServerUrlFor(c)
	if err != nil || strings.Contains(u.Host+u.Path, "@") {
		return errors.New("server: must be a URL such as https://192.0.2.1:6443; special characters in a user or password must be percent-encoded")
	}
	if u.User != nil {
		c.Username = u.User.Username()
		c.Password, _ = u.User.Password()
		c.BearerToken, c.BearerTokenFile = "", ""
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		c.Host = u.String()
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return redacting{next} })
	return nil
}

// redacting removes passwords from errors, which can contain the URL of a proxy.
type redacting struct{ http.RoundTripper }

func (r redacting) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.RoundTripper.RoundTrip(request)
	return response, apply.RedactError(err)
}

// WrappedRoundTripper lets client-go find the underlying transport.
func (r redacting) WrappedRoundTripper() http.RoundTripper { return r.RoundTripper }

// asKubectl returns the connection settings that kubectl would use: those of file, or else of
// $KUBECONFIG, ~/.kube/config or the pod's service account. context selects the context; "" selects
// the current one.
func asKubectl(file, context, userAgent string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context})
	out, err := loader.ClientConfig()
	raw, unreadable := loader.RawConfig()
	unknown := unreadable == nil && context != "" && raw.Contexts[context] == nil
	switch {
	case unknown && len(raw.Contexts) > 0:
		return nil, fmt.Errorf("--context: must be a context of the kubeconfig, which has %s, got %q", strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", "), context)
	case unknown && file == "":
		return nil, errors.New("--context: no kubeconfig was found: set --kubeconfig or KUBECONFIG; ~/.kube/config does not exist")
	case clientcmd.IsEmptyConfig(err) && len(raw.Contexts) > 0:
		return nil, fmt.Errorf("--kubeconfig: has no current context: select one with --context: %s", strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", "))
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("--kubeconfig: no cluster is configured: set --kubeconfig or KUBECONFIG; ~/.kube/config does not exist, and this is not a pod")
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("--kubeconfig: %s: %w", file, fs.ErrNotExist)
	case err != nil && isOtherKind(file):
		return nil, fmt.Errorf("--kubeconfig: %s: must be a kubeconfig (apiVersion: v1, kind: Config), is an object of another kind", file)
	case err != nil:
		return nil, fmt.Errorf("--kubeconfig: %w", apply.RedactError(err))
	}
	if err := hidePassword(out); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	out.ContentType, out.UserAgent = runtime.ContentTypeProtobuf, userAgent
	out.QPS = -1 // the server limits requests itself (429)
	return out, nil
}

// isOtherKind reports whether a file contains an API object that is not a kubeconfig.
func isOtherKind(file string) bool {
	_, err := clientcmd.LoadFromFile(file)
	return runtime.IsNotRegisteredError(err)
}

// Client returns the URL of the API server and an HTTP client with the configured credentials.
func Client(c config.ClientConnection, master, userAgent string) (server string, client *http.Client, err error) {
	base, err := restConfig(c, master, userAgent)
	if err != nil {
		return "", nil, err
	}
	client, err = rest.HTTPClientFor(base)
	u, _, urlErr := rest.DefaultServerUrlFor(base)
	if err := errors.Join(err, urlErr); err != nil {
		return "", nil, err
	}
	return strings.TrimSuffix(u.String(), "/"), client, nil
}

// newCodecs returns the codecs for the API groups in use.
func newCodecs() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	utilruntime.Must(networkingv1.AddToScheme(scheme))
	utilruntime.Must(eventsv1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}

func newClients(base *rest.Config, contact *Contact) (*clients, error) {
	shared := rest.CopyConfig(base)
	shared.DisableCompression = true // compressing a stream takes longer than sending it (WatchListCompression, Kubernetes 1.37)
	if shared.NegotiatedSerializer == nil {
		shared.NegotiatedSerializer = newCodecs()
	}
	if shared.RateLimiter == nil && shared.QPS > 0 {
		shared.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(shared.QPS, max(1, shared.Burst))
	}
	transport, err := rest.TransportFor(shared)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: newTransport(transport, contact, base.Host), Timeout: shared.Timeout}
	var c clients
	for _, g := range []struct {
		to      *rest.Interface
		version schema.GroupVersion
		path    string
	}{
		{&c.core, corev1.SchemeGroupVersion, "/api"},
		{&c.discovery, discoveryv1.SchemeGroupVersion, "/apis"},
		{&c.networking, networkingv1.SchemeGroupVersion, "/apis"},
		{&c.events, eventsv1.SchemeGroupVersion, "/apis"},
	} {
		if *g.to, err = groupClient(shared, client, g.version, g.path); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

func groupClient(shared *rest.Config, client *http.Client, version schema.GroupVersion, path string) (rest.Interface, error) {
	c := rest.CopyConfig(shared)
	c.GroupVersion, c.APIPath = &version, path
	return rest.RESTClientForConfigAndClient(c, client)
}
