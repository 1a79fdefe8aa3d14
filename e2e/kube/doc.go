// Package kube runs the control plane of a real cluster for tests, and the proxies that follow
// it: etcd and kube-apiserver in their own network namespace, kube-proxy or proxyc in those of
// nodes. Nodes have no route to the control plane. A [Gate] at their loopback address forwards to
// it, can be cut, and counts bytes.
//
//   - [Tool]: the executable of a tool of this module.
//   - [Cluster]: etcd and kube-apiserver; stop, kill and start them again.
//   - [Gate]: how a node reaches the API server, and its kubeconfig.
//   - [Cluster.Apply], [Cluster.Replace]: objects through the API.
//   - [Proxy]: a running kube-proxy or proxyc.
package kube
