package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// RunClient is client-go alone. It requests the same objects as proxies, in the same form, and
// returns when its stores contain all. It keeps them up to date until ctx ends.
func RunClient(ctx context.Context, master, kubeconfig, node string) error {
	config, err := clientcmd.BuildConfigFromFlags(master, kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	kinds := []struct {
		resource       string
		client         rest.Interface
		of             runtime.Object
		labels, fields string
	}{
		{"services", client.CoreV1().RESTClient(), &corev1.Service{}, "!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"},
		{"endpointslices", client.DiscoveryV1().RESTClient(), &discoveryv1.EndpointSlice{}, "!" + corev1.IsHeadlessService, ""},
		{"nodes", client.CoreV1().RESTClient(), &corev1.Node{}, "", fields.OneTermEqualSelector("metadata.name", node).String()},
	}
	filled := make(chan struct{}, len(kinds))
	for _, k := range kinds {
		lw := cache.NewFilteredListWatchFromClient(k.client, k.resource, metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.LabelSelector, o.FieldSelector = k.labels, k.fields
		})
		store := &heldStore{cache.NewStore(cache.MetaNamespaceKeyFunc), filled}
		go cache.NewReflectorWithOptions(lw, k.of, store, cache.ReflectorOptions{}).RunWithContext(ctx)
	}
	for range kinds {
		select {
		case <-filled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// heldStore signals when it is filled.
type heldStore struct {
	cache.Store
	filled chan<- struct{}
}

func (s *heldStore) Replace(all []any, version string) error {
	err := s.Store.Replace(all, version)
	select {
	case s.filled <- struct{}{}:
	default: // nobody waits any longer
	}
	return err
}
