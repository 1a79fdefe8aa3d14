package watch

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"

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

	"github.com/proxyc/proxyc/compiler/config"
)

// clients are one for each API group that is used, over one connection and
// with one limit of requests. The typed clientset would bring all other groups
// along, and the memory that they take.
type clients struct {
	core, discovery, networking, events rest.Interface
}

// restConfig is how the API server is reached: as the kubeconfig file or
// master say, or, without either, as a pod of the cluster does. userAgent is
// the program's name and version.
func restConfig(c config.ClientConnection, master, userAgent string) (*rest.Config, error) {
	var out *rest.Config
	var err error
	if c.Kubeconfig == "" && master == "" {
		out, err = rest.InClusterConfig()
		if err != nil {
			err = fmt.Errorf("clientConnection.kubeconfig: neither it nor --master is set, and this is no pod of a cluster: %w", err)
		}
	} else {
		out, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: master}}).ClientConfig()
		if err != nil {
			err = fmt.Errorf("clientConnection.kubeconfig: %w", err)
		}
	}
	if err != nil {
		return nil, err
	}
	out.AcceptContentTypes = c.AcceptContentTypes
	out.ContentType = cmp.Or(c.ContentType, runtime.ContentTypeProtobuf)
	out.QPS, out.Burst = c.QPS, int(c.Burst)
	out.UserAgent = userAgent
	return out, nil
}

// asKubectl is how kubectl would reach a cluster: as file says, or without one $KUBECONFIG,
// ~/.kube/config or the pod's own account; by the context of that name, or the current one.
func asKubectl(file, context, userAgent string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	out, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("--kubeconfig: no cluster is known: give a file, or set KUBECONFIG; there is no ~/.kube/config, and this is no pod of a cluster")
	case err != nil && isOtherKind(file):
		return nil, fmt.Errorf("--kubeconfig: %s: must be a kubeconfig (apiVersion: v1, kind: Config), and is an object of another kind", file)
	case err != nil:
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	out.ContentType, out.UserAgent = runtime.ContentTypeProtobuf, userAgent
	out.QPS = -1 // the server says when it is too much
	return out, nil
}

// isOtherKind reports whether a file is an object, and no kubeconfig.
func isOtherKind(file string) bool {
	_, err := clientcmd.LoadFromFile(file)
	return runtime.IsNotRegisteredError(err)
}

// Client returns the address of the API server and a client that may ask it, as the
// configuration says.
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

// newCodecs are how objects of the groups are read and written.
func newCodecs() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	utilruntime.Must(networkingv1.AddToScheme(scheme))
	utilruntime.Must(eventsv1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return lenientCodecs{serializer.NewCodecFactory(scheme).WithoutConversion()}
}

func newClients(base *rest.Config, contact *Contact) (*clients, error) {
	shared := rest.CopyConfig(base)
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
	client := &http.Client{Transport: newFirstAlone(contact.over(transport, base.Host)), Timeout: shared.Timeout}
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

// firstAlone lets the first request make the connection over which all others
// go. Begun side by side, each would make its own. The others do not wait for the answer to the
// first one.
type firstAlone struct {
	next http.RoundTripper
	turn chan struct{} // holds a token for the first, and is closed when that has its connection
}

func newFirstAlone(next http.RoundTripper) *firstAlone {
	f := &firstAlone{next: next, turn: make(chan struct{}, 1)}
	f.turn <- struct{}{}
	return f
}

func (f *firstAlone) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case _, first := <-f.turn:
		if first {
			release := sync.OnceFunc(func() { close(f.turn) })
			defer release() // without a connection
			r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { release() }}))
		}
	}
	return f.next.RoundTrip(r)
}
