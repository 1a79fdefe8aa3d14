package main

import (
	"net"
	"time"
	_ "unsafe" // for go:linkname

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/kubernetes/pkg/proxy/userspace"
	"k8s.io/kubernetes/pkg/util/iptables"
	"k8s.io/utils/exec"
)

// These are parts of userspace.NewProxier. As a whole it requires the right to raise the limit of
// open files, which root of a container may lack, and it uses the node's IPv4 address even to
// serve IPv6.

//go:linkname createProxier k8s.io/kubernetes/pkg/proxy/userspace.createProxier
func createProxier(loadBalancer userspace.LoadBalancer, listenIP net.IP, iptables iptables.Interface, exec exec.Interface, hostIP net.IP,
	proxyPorts userspace.PortAllocator, syncPeriod, minSyncPeriod, udpIdleTimeout time.Duration, makeProxySocket userspace.ProxySocketFunc) (*userspace.Proxier, error)

//go:linkname newPortAllocator k8s.io/kubernetes/pkg/proxy/userspace.newPortAllocator
func newPortAllocator(r utilnet.PortRange) userspace.PortAllocator

//go:linkname newProxySocket k8s.io/kubernetes/pkg/proxy/userspace.newProxySocket
func newProxySocket(protocol v1.Protocol, ip net.IP, port int) (userspace.ProxySocket, error)
