package fleet

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/ir"
)

const (
	namespace = "default"
	atOnce    = 8 // requests
)

func serviceName(i int) string { return fmt.Sprintf("svc-%05d", i) }

// marker returns the address of an endpoint that only the n-th change adds.
func marker(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 200 + byte(n>>16), byte(n >> 8), byte(n)})
}

// sliceOf returns the EndpointSlice of a Service, whose first endpoint has the address.
func sliceOf(i int, o options, first netip.Addr) *discoveryv1.EndpointSlice {
	ready, port, tcp := true, int32(8080), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: serviceName(i), Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &tcp}},
	}
	for e := range o.endpoints {
		addr, node := first, nodeName(e%o.nodes)
		if e > 0 {
			addr = netip.AddrFrom4([4]byte{10, 128 + byte(e), byte(i >> 8), byte(i)})
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%d", serviceName(i), e)}})
	}
	return s
}

// populate creates the nodes, and the Services with their endpoints.
func populate(ctx context.Context, cluster *kube.Cluster, o options) error {
	client := cluster.Client()
	for i := range o.nodes {
		if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return kube.Parallel(atOnce, o.services, func(i int) error {
		_, err := client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		if err == nil {
			_, err = client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, sliceOf(i, o, marker(i)), metav1.CreateOptions{})
		}
		return err
	})
}

// change changes one Service after the other at the rate. Four of five get another endpoint. The
// EndpointSlice of the fifth is deleted, and created again in its next turn. It returns the
// number of changes.
func change(ctx context.Context, cluster *kube.Cluster, o options, t *tracker) (made int, err error) {
	slices := cluster.Client().DiscoveryV1().EndpointSlices(namespace)
	turn := time.NewTicker(time.Duration(float64(time.Second) / o.rate))
	defer turn.Stop()
	absent := map[int]bool{}
	var all sync.WaitGroup
	defer all.Wait()
	room, failed := make(chan struct{}, atOnce), make(chan error, 1)
	for n := range o.changes {
		select {
		case <-turn.C:
		case err := <-failed:
			return made, err
		case <-ctx.Done():
			return made, ctx.Err()
		}
		i := n % o.services
		addr, remove, create := marker(o.services+n), n%5 == 4 && !absent[i], absent[i]
		if remove {
			addr = netip.Addr{}
		}
		if !t.send(ir.Name{Namespace: namespace, Name: serviceName(i)}, addr) {
			return made, fmt.Errorf("Service %s: not all nodes have its last change: --rate is too high for --services", serviceName(i))
		}
		absent[i] = remove
		made++
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			var err error
			switch {
			case remove:
				err = slices.Delete(ctx, serviceName(i), metav1.DeleteOptions{})
			case create:
				_, err = slices.Create(ctx, sliceOf(i, o, addr), metav1.CreateOptions{})
			default:
				_, err = slices.Update(ctx, sliceOf(i, o, addr), metav1.UpdateOptions{})
			}
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	all.Wait()
	select {
	case err := <-failed:
		return made, err
	default:
		return made, nil
	}
}
