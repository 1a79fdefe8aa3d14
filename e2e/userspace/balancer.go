package main

import (
	"sync"

	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/userspace"
)

// A balancer is kube-proxy's balancer, which also signals that the proxier has finished. The
// proxier's last action, after all its rules, is to clean up stale clients of each service port.
type balancer struct {
	*userspace.LoadBalancerRR

	mu     sync.Mutex
	looked map[proxy.ServicePortName]chan struct{}
}

// look returns a channel that is closed when the proxier has cleaned up the service port.
func (b *balancer) look(port proxy.ServicePortName) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(chan struct{})
	b.looked[port] = c
	return c
}

func (b *balancer) CleanupStaleStickySessions(port proxy.ServicePortName) {
	b.LoadBalancerRR.CleanupStaleStickySessions(port)
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.looked[port]; c != nil {
		close(c)
		delete(b.looked, port)
	}
}
