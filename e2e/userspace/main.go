// Userspace runs the proxier of mode userspace of kube-proxy 1.25, the last release with that
// mode. Files replace the API server.
//
// Each line of its standard input names a file with a List of objects as YAML. When the Services
// and EndpointSlices in it are in force, the program prints a line: "ok", or the error. It ends
// with its input, and leaves its rules.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/userspace"
	"k8s.io/kubernetes/pkg/util/iptables"
	"k8s.io/utils/exec"
)

var (
	nodeIP         = flag.String("node-ip", "", "of the only family that is served")
	bindAddress    = flag.String("bind-address", "", "where proxy ports listen; everywhere when empty")
	portRange      = flag.String("proxy-port-range", "", "range of proxy ports; chosen by the kernel when empty")
	udpIdleTimeout = flag.Duration("udp-timeout", 250*time.Millisecond, "timeout of idle UDP clients")
	syncPeriod     = flag.Duration("iptables-sync-period", 30*time.Second, "interval of full syncs")
	minSyncPeriod  = flag.Duration("iptables-min-sync-period", 10*time.Millisecond, "minimum interval of changes")
)

func main() {
	klog.InitFlags(nil)
	flag.Parse()
	n, err := newNode()
	if err != nil {
		fmt.Fprintln(os.Stderr, "userspace:", err)
		os.Exit(1)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := n.update(lines.Text()); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("ok")
	}
}

// A node has a proxier and the objects that it received.
type node struct {
	family   family
	proxier  *userspace.Proxier
	balancer *balancer
	objects  objects
	updates  int
}

// newNode creates the proxier like kube-proxy.
func newNode() (*node, error) {
	host := net.ParseIP(*nodeIP)
	if host == nil {
		return nil, fmt.Errorf("-node-ip: must be an IP address, got %q", *nodeIP)
	}
	n := &node{family: ipv4Family, balancer: &balancer{LoadBalancerRR: userspace.NewLoadBalancerRR(), looked: map[proxy.ServicePortName]chan struct{}{}}}
	if host.To4() == nil {
		n.family = ipv6Family
	}
	if *bindAddress == "" {
		*bindAddress = n.family.anywhere
	}
	listen := net.ParseIP(*bindAddress)
	if listen == nil {
		return nil, fmt.Errorf("-bind-address: must be an IP address, got %q", *bindAddress)
	}
	ports, err := utilnet.ParsePortRange(*portRange)
	if err != nil {
		return nil, fmt.Errorf("-proxy-port-range: %w", err)
	}
	execer := exec.New()
	n.proxier, err = createProxier(n.balancer, listen, iptables.New(execer, n.family.protocol), execer, host,
		newPortAllocator(*ports), *syncPeriod, *minSyncPeriod, *udpIdleTimeout, newProxySocket)
	return n, err
}

// update passes the changes to the proxier, and waits for its rules.
func (n *node) update(file string) error {
	want, err := readObjects(file, n.family)
	if err != nil {
		return err
	}
	n.updates++
	mark := n.family.mark(n.updates)
	want.services[types.NamespacedName{Namespace: mark.Namespace, Name: mark.Name}] = mark
	done := n.balancer.look(proxy.ServicePortName{
		NamespacedName: types.NamespacedName{Namespace: mark.Namespace, Name: mark.Name}, Port: mark.Spec.Ports[0].Name})
	changes(n.objects.endpoints, want.endpoints, n.proxier.OnEndpointsAdd, n.proxier.OnEndpointsUpdate, n.proxier.OnEndpointsDelete)
	changes(n.objects.services, want.services, n.proxier.OnServiceAdd, n.proxier.OnServiceUpdate, n.proxier.OnServiceDelete)
	n.objects = want
	if n.updates == 1 {
		n.proxier.OnEndpointsSynced()
		n.proxier.OnServiceSynced()
		go n.proxier.SyncLoop()
	}
	<-done
	return nil
}
