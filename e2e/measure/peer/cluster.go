package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/e2e/kube"
)

// canaries are Services that are changed and queried, in addition to those of the generated
// cluster. Each has one endpoint, so that one connection shows where that is.
const (
	canaries  = "canaries"
	canary    = 0 // its endpoint moves
	comeAndGo = 1 // is added and removed; its EndpointSlice stays
	burst     = 2 // the first of those that change at once
)

// populate sends a cluster, and canaries, to the API server.
func populate(ctx context.Context, api kubernetes.Interface, c cluster.Cluster, atOnce int) error {
	names := []string{canaries}
	for i := range min(c.Services, 50) {
		names = append(names, c.Service(i).Namespace)
	}
	nodes := c.Nodes()
	return firstOf(
		func() error {
			return kube.Parallel(workers, len(names), func(i int) error {
				ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: names[i]}}
				_, err := api.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
				return err
			})
		},
		func() error {
			return kube.Parallel(workers, len(nodes), func(i int) error { return createNode(ctx, api, nodes[i]) })
		},
		func() error {
			return kube.Parallel(workers, c.Services, func(i int) error { return create(ctx, api, c.Service(i), c.Slices(i)...) })
		},
		func() error {
			return kube.Parallel(workers, burst+atOnce, func(i int) error {
				if i == comeAndGo {
					_, err := api.DiscoveryV1().EndpointSlices(canaries).Create(ctx, canarySlice(i, home), metav1.CreateOptions{})
					return err
				}
				return create(ctx, api, canaryService(i), canarySlice(i, home))
			})
		})
}

// firstOf runs steps until one fails.
func firstOf(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// workers is the number of concurrent requests.
const workers = 32

func createNode(ctx context.Context, api kubernetes.Interface, n *corev1.Node) error {
	got, err := api.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	got.Status.Addresses = n.Status.Addresses
	_, err = api.CoreV1().Nodes().UpdateStatus(ctx, got, metav1.UpdateOptions{})
	return err
}

// create sends a Service with its status and EndpointSlices.
func create(ctx context.Context, api kubernetes.Interface, s *corev1.Service, slices ...*discoveryv1.EndpointSlice) error {
	got, err := api.CoreV1().Services(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		got.Status = s.Status
		if _, err := api.CoreV1().Services(s.Namespace).UpdateStatus(ctx, got, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("Service %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	for _, slice := range slices {
		if _, err := api.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("EndpointSlice %s/%s: %w", slice.Namespace, slice.Name, err)
		}
	}
	return nil
}

func canaryName(i int) string { return fmt.Sprintf("canary-%03d", i) }

// canaryAddr returns the address of a canary.
func canaryAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 111, byte(i >> 8), byte(i) + 1}), 80)
}

func canaryAddrs(from, n int) (all []netip.AddrPort) {
	for i := range n {
		all = append(all, canaryAddr(from+i))
	}
	return all
}

func canaryService(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: canaries, Name: canaryName(i)},
		Spec: corev1.ServiceSpec{ClusterIP: canaryAddr(i).Addr().String(),
			Ports: []corev1.ServicePort{{Name: "p0", Port: 80, TargetPort: intstr.FromInt32(targetPort)}}},
	}
}

func canarySlice(i int, endpoint netip.Addr) *discoveryv1.EndpointSlice {
	name, protocol, port, yes, node := "p0", corev1.ProtocolTCP, int32(targetPort), true, nodeName
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: canaries, Name: canaryName(i),
			Labels: map[string]string{discoveryv1.LabelServiceName: canaryName(i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{endpoint.String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
	}
}

// move gives a canary another endpoint.
func move(ctx context.Context, api kubernetes.Interface, i int, to netip.Addr) error {
	_, err := api.DiscoveryV1().EndpointSlices(canaries).Update(ctx, canarySlice(i, to), metav1.UpdateOptions{})
	return err
}

// reset restores the canaries that populate has created.
func reset(ctx context.Context, api kubernetes.Interface, atOnce int) error {
	err := api.CoreV1().Services(canaries).Delete(ctx, canaryName(comeAndGo), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(err, kube.Parallel(workers, burst+atOnce, func(i int) error { return move(ctx, api, i, home) }))
}

// serviceAddrs returns the addresses of the Services of a cluster.
func serviceAddrs(c cluster.Cluster) (all []netip.AddrPort) {
	for i := range c.Services {
		if s := c.Service(i); s.Spec.ClusterIP != corev1.ClusterIPNone {
			all = append(all, netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), 80))
		}
	}
	return all
}
